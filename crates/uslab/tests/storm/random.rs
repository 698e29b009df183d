//! Random numbers for stress tests: deterministic for a seed, and cheap enough to generate between
//! two allocations.

/// Marsaglia's xorshift: fast, and random enough for a stress test.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u32) -> Random {
        Random(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

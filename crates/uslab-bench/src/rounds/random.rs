//! Random numbers inside timed loops: the xorshift of Marsaglia (2003), three shifts in registers.
//!
//! The C library's `rand` takes a lock, whose cost would be measured as well. Must never: be seeded
//! by the time; every contestant gets the same numbers.

#[derive(Clone)]
pub struct Xorshift(u64);

impl Xorshift {
    /// Each `stream` has its own numbers, the same in every run.
    pub fn new(stream: usize) -> Self {
        // An odd multiple of an odd constant is never zero, which the shifts would never leave.
        let mut random = Self((2 * stream as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Neighbouring seeds give neighbouring first numbers.
        (0..16).for_each(|_| {
            random.next();
        });
        random
    }

    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "an iterator that never ends would only add an Option")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to below `end`, by a multiplication (Lemire) of the upper half, whose bits are the
    /// better ones.
    #[inline(always)]
    pub fn below(&mut self, end: usize) -> usize {
        (((self.next() >> 32) * end as u64) >> 32) as usize
    }
}

/// A size between the two, spread evenly over their logarithms.
pub fn spread(random: &mut Xorshift, smallest: usize, largest: usize) -> u32 {
    let fraction = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
    (smallest as f64 * (largest as f64 / smallest as f64).powf(fraction)).round() as u32
}

/// The numbers below `n` in an order that is random and always the same: Fisher and Yates.
pub fn shuffle(n: usize) -> Vec<u32> {
    // Made at its size: an array that grew would leave freed memory in the process's malloc, which
    // is a contestant.
    let mut order = Vec::with_capacity(n);
    order.extend(0..n as u32);
    let mut random = Xorshift::new(0);
    (1..n).rev().for_each(|i| order.swap(i, random.below(i + 1)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_holds_every_number_once_and_is_not_sorted() {
        let mut order = shuffle(1000);
        assert!(order.windows(2).any(|pair| pair[0] > pair[1]));
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..1000));
        assert!(shuffle(0).is_empty());
    }

    #[test]
    fn streams_differ_repeat_and_stay_below_the_end() {
        let take = |stream| {
            let mut random = Xorshift::new(stream);
            (0..100).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(take(3), take(3));
        assert_ne!(take(3), take(4));
        let mut seen = take(0);
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.iter().copied().eq(0..10));
    }
}

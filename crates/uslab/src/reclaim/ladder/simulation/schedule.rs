//! The schedules of the simulation: events for the model, drawn from a seed.

use super::cache::Manner;
use super::model::Place;
use std::vec::Vec;

/// One event. It names a cache by number, and does nothing if there is no such cache. So a schedule
/// remains valid if events are removed.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The program sets its limits, in pages; 0 for no limit.
    Limit { soft: usize, hard: usize },
    /// It registers a cache of `per_page` entries on a page. Each eviction takes the entry `stride`
    /// further on; pages that come free land in `lands`.
    Register { seeks: u32, batch: usize, per_page: usize, stride: usize, lands: Place },
    /// It unregisters the cache, and drops its entries.
    Unregister { cache: usize },
    /// It inserts entries, for which it allocates pages.
    Insert { cache: usize, entries: usize },
    /// The cache behaves like this from now on.
    Behave { cache: usize, manner: Manner },
    /// The program allocates this many pages in one run and keeps them.
    Allocate { pages: usize },
    /// It frees pages that it allocated, which land there.
    Free { pages: usize, lands: Place },
    /// It calls `reclaim`.
    Reclaim { pages: usize },
    /// A pressure source reports stalls: a share of the memory.
    Stall,
    /// A pressure source reports how many pages are missing.
    Headroom { pages: usize },
    /// Another thread acts during the next pass, at its `at`th call.
    Meanwhile { at: usize, act: Act },
    /// Time passes.
    Sleep { ms: u64 },
}

/// The action of another thread during a pass.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Allocates pages, as far as there are any.
    Steal { pages: usize },
    /// Frees pages of the program.
    Free { pages: usize, lands: Place },
    /// Frees pages of the program and purges them. The count of what was purged follows later.
    Purge { pages: usize },
    /// Unregisters a cache.
    Unregister { cache: usize },
}

/// Xorshift with a multiplier (Vigna 2016), from a seed that is not 0.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not look alike.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((mixed ^ mixed >> 31) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// A random number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() as usize) % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Upper bound on the caches of a schedule.
const MAX_CACHES: usize = 3;

/// The schedule of a seed.
pub fn schedule(seed: u64) -> Vec<Event> {
    let mut random = Random::new(seed);
    let mut events = Vec::new();
    let hard = random.pick(&[0, 8, 16, 24, 24, 32, 32]);
    let soft = random.pick(&[0, 0, hard / 2, hard * 3 / 4]);
    events.push(Event::Limit { soft, hard });
    for cache in 0..1 + random.below(MAX_CACHES) {
        events.push(Event::Register {
            seeks: random.pick(&[0, 1, 2, 2, 2, 20, 1000, 1 << 20, u32::MAX]),
            batch: random.pick(&[1, 8, 128, 128, usize::MAX]),
            per_page: random.pick(&[1, 2, 4, 8]),
            stride: random.pick(&[0, 1, 3, 7]),
            lands: place(&mut random),
        });
        events.push(Event::Insert { cache, entries: 1 + random.below(60) });
    }
    for _ in 0..2 + random.below(8) {
        events.push(event(&mut random));
    }
    events
}

fn event(random: &mut Random) -> Event {
    let cache = random.below(MAX_CACHES);
    match random.below(16) {
        0..=3 => Event::Allocate { pages: random.pick(&[1, 1, 2, 4, 12]) },
        4 | 5 => Event::Insert { cache, entries: 1 + random.below(60) },
        6 | 7 => Event::Behave { cache, manner: manner(random) },
        8 | 9 => Event::Meanwhile { at: random.below(40), act: act(random) },
        10 => Event::Free { pages: 1 + random.below(6), lands: place(random) },
        11 | 12 => Event::Reclaim { pages: random.pick(&[1, 2, 8, 1 << 20]) },
        13 => random.pick(&[Event::Stall, Event::Headroom { pages: 4 }]),
        14 => Event::Unregister { cache },
        _ => Event::Sleep { ms: random.pick(&[1, 20, 600]) },
    }
}

fn manner(random: &mut Random) -> Manner {
    match random.below(16) {
        0..=3 => Manner::Busy { ms: random.pick(&[1, 5, 100]) },
        4 => Manner::Busy { ms: 1 << 40 },
        5..=7 => Manner::Stops { ms: random.pick(&[1, 30]) },
        8..=10 => Manner::Late { asks: random.pick(&[1, 1, 2, usize::MAX]) },
        11 | 12 => Manner::Slow,
        13 => random.pick(&[Manner::Liar, Manner::Faker]),
        14 => Manner::Leaves { asks: random.below(3) },
        _ => Manner::Honest,
    }
}

fn place(random: &mut Random) -> Place {
    random.pick(&Place::ALL)
}

fn act(random: &mut Random) -> Act {
    match random.below(4) {
        0 | 1 => Act::Steal { pages: 1 + random.below(6) },
        2 if random.below(2) == 0 => Act::Purge { pages: 1 + random.below(6) },
        2 => Act::Free { pages: 1 + random.below(4), lands: place(random) },
        _ => Act::Unregister { cache: random.below(MAX_CACHES) },
    }
}

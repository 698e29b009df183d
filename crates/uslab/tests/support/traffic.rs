//! The traffic of three caches that share a memory, and its simulation: no clock, no threads, one
//! seed.
//!
//! Entries of the caches cost 1, 10 and 100 to make again. Their popularity follows Zipf's law. It
//! shifts from phase to phase, and so does each cache's part of the traffic. A step is a function
//! of its number, so several threads may share a trace in blocks.
//!
//! `balance.rs` compares the simulation with all static splits; `tests/vm/guest` runs the same
//! traffic on real caches under a real limit, and compares with the simulation. It must never
//! depend on time or on the machine.

use std::collections::{BTreeMap, HashMap};
use uslab::internal::balance::{LIGHTEST, Owed, Weight};

/// The cost of an entry of each cache.
pub const COSTS: [u64; 3] = [1, 10, 100];
/// Keys of each cache.
pub const KEYS: usize = 20_000;
/// Entries that one call of a shrinker asks for.
const BATCH: usize = 128;
/// Each cache's part of the traffic, phase by phase.
const PHASES: [[f64; 3]; 3] = [[0.70, 0.25, 0.05], [0.30, 0.60, 0.10], [0.50, 0.10, 0.40]];

/// The traffic.
pub struct Traffic {
    /// Cumulative popularity of the ranks.
    cumulated: Vec<f64>,
    steps_a_phase: u64,
}

impl Traffic {
    /// Traffic with phases of `steps_a_phase` steps; the first phase follows the last.
    pub fn new(steps_a_phase: u64) -> Traffic {
        let mut sum = 0.0;
        let cumulated = (1..=KEYS)
            .map(|rank| {
                sum += (rank as f64).powf(-0.9);
                sum
            })
            .collect();
        Traffic { cumulated, steps_a_phase }
    }

    /// The cache and the key of a step.
    pub fn step(&self, number: u64) -> (usize, u32) {
        let phase = number / self.steps_a_phase;
        let shares = PHASES[(phase % PHASES.len() as u64) as usize];
        let at = random(2 * number);
        let cache = if at < shares[0] { 0 } else { 1 + usize::from(at >= shares[0] + shares[1]) };
        let drawn = random(2 * number + 1) * self.cumulated[KEYS - 1];
        let rank = self.cumulated.partition_point(|&sum| sum < drawn).min(KEYS - 1);
        // Popularity shifts by a quarter of the keys a phase.
        let shift = (phase % 4) as usize * (KEYS / 4);
        (cache, ((rank + shift) % KEYS) as u32)
    }
}

/// The bits of `number`, well mixed: the finaliser of SplitMix64.
pub fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A number in [0, 1).
fn random(number: u64) -> f64 {
    (mixed(number + 1) >> 11) as f64 / (1u64 << 53) as f64
}

/// A cache that evicts the least recently used entry.
#[derive(Default)]
struct Lru {
    by_key: HashMap<u32, u64>,
    by_age: BTreeMap<u64, u32>,
    owed: Owed,
}

impl Lru {
    fn hit(&mut self, key: u32, now: u64) -> bool {
        let before = self.by_key.insert(key, now);
        before.map(|before| self.by_age.remove(&before));
        self.by_age.insert(now, key);
        before.is_some()
    }

    /// A pass at `priority`; calls `gone` for each evicted entry.
    fn shrink(&mut self, priority: u32, seeks: u32, mut gone: impl FnMut(u32)) {
        let freeable = self.by_age.len();
        self.owed = self.owed.after_round(freeable, priority, Weight::of_seeks(seeks), BATCH);
        while let Some(lot) = self.owed.next(freeable, BATCH) {
            self.owed = self.owed.less(lot);
            for _ in 0..lot {
                let Some((_, key)) = self.by_age.pop_first() else { break };
                self.by_key.remove(&key);
                gone(key);
            }
        }
    }
}

/// The result of the traffic.
#[derive(Default, Debug)]
pub struct Tally {
    /// Steps.
    pub operations: u64,
    /// Steps whose entry was cached.
    pub hits: u64,
    /// The cost of all other steps.
    pub cost: u64,
}

/// Simulates caches that share `memory`; the entry of a key takes `size` of it. When they exceed
/// it, a pass evicts a sixty-fourth of it from all, by the shares of `uslab::internal::balance`
/// with these seeks.
pub fn balanced(
    trace: impl Iterator<Item = (usize, u32)>,
    seeks: [u32; 3],
    memory: usize,
    size: impl Fn(usize, u32) -> usize,
) -> Tally {
    let mut caches: [Lru; 3] = Default::default();
    let (mut tally, mut used) = (Tally::default(), 0);
    for (cache, key) in trace {
        let now = tally.operations;
        tally.operations += 1;
        if caches[cache].hit(key, now) {
            tally.hits += 1;
        } else {
            tally.cost += COSTS[cache];
            used += size(cache, key);
        }
        if used > memory {
            let (goal, mut freed, mut priority) = (memory / 64, 0, LIGHTEST);
            while freed < goal {
                for (at, cache) in caches.iter_mut().enumerate() {
                    cache.shrink(priority, seeks[at], |key| freed += size(at, key));
                }
                priority = priority.saturating_sub(1);
            }
            used -= freed;
        }
    }
    tally
}

//! The simulation of three caches under pressure, beside all static splits of the same memory: `balance.rs` judges what comes out,
//! `examples/balance_curves.rs` hands it to `cargo xtask balance`, which draws it.
//!
//! The memory holds a fifth of what the caches want. They shrink by the shares of `uslab::internal::balance`, with seeks in proportion to
//! the costs. In a static split each cache is an LRU of fixed size, whose misses follow exactly from the reuse distances of the trace.
//!
//! Must never: depend on time or on the machine.

use crate::traffic::{self, COSTS, KEYS, Traffic};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// In proportion to the costs.
const SEEKS: [u32; 3] = [2, 20, 200];
/// Entries that there is memory for.
pub const MEMORY: usize = 12_000;
/// How often the traffic shifts, and when.
pub const PHASES: u64 = 3;
pub const STEPS_A_PHASE: u64 = 400_000;
/// Steps between two samples of the sizes.
pub const SAMPLE_STEPS: u64 = 4000;

/// Everything that is compared.
pub struct Simulation {
    /// Entries of each cache in the static split whose misses cost least, found by trying all in steps of a hundredth.
    pub best: [usize; 3],
    pub best_cost: u64,
    /// A third of the memory for each.
    pub equal_cost: u64,
    /// The shares of `uslab::reclaim`.
    pub balanced: Run,
    /// The same, as if all entries cost the same.
    pub blind: Run,
    /// First requests of a key, which every cache must miss.
    pub unavoidable: u64,
}

/// What came of sharing the memory by pressure.
pub struct Run {
    /// All misses, each at its cost.
    pub cost: u64,
    /// Entries of each cache, every so many steps.
    pub sizes: Vec<[usize; 3]>,
}

/// Simulates it all.
pub fn simulate() -> Simulation {
    let traffic = Traffic::new(STEPS_A_PHASE);
    let trace: Vec<_> = (0..PHASES * STEPS_A_PHASE).map(|number| traffic.step(number)).collect();
    let distances = [0, 1, 2].map(|cache| Distances::of(&trace, cache));
    let cost = |sizes: [usize; 3]| (0..3).map(|at| distances[at].misses(sizes[at]) * COSTS[at]).sum::<u64>();
    let part = MEMORY / 100;
    let best = (0..=100)
        .flat_map(|a| (0..=100 - a).map(move |b| [a * part, b * part, (100 - a - b) * part]))
        .min_by_key(|&sizes| cost(sizes))
        .expect("there are splits");
    Simulation {
        best,
        best_cost: cost(best),
        equal_cost: cost([MEMORY / 3; 3]),
        balanced: balanced(&trace, SEEKS),
        blind: balanced(&trace, [2; 3]),
        unavoidable: (0..3).map(|at| distances[at].1 * COSTS[at]).sum(),
    }
}

/// Pressure balances the caches.
fn balanced(trace: &[(usize, u32)], seeks: [u32; 3]) -> Run {
    // The size of an entry is asked for when it comes and when it goes. Entries go only in a step that brought one, after it.
    let (fresh, sizes) = (Cell::new(false), Cell::new([0usize; 3]));
    let samples = RefCell::new(Vec::new());
    let sample = || samples.borrow_mut().push(sizes.get());
    let watched = trace.iter().enumerate().map(|(number, &step)| {
        if number > 0 && (number as u64).is_multiple_of(SAMPLE_STEPS) {
            sample();
        }
        fresh.set(true);
        step
    });
    let tally = traffic::balanced(watched, seeks, MEMORY, |cache, _| {
        let mut now = sizes.get();
        now[cache] = if fresh.replace(false) { now[cache] + 1 } else { now[cache] - 1 };
        sizes.set(now);
        1
    });
    sample();
    Run { cost: tally.cost, sizes: samples.into_inner() }
}

/// For each cache, how many of its requests have each reuse distance; `misses(size)` follows.
struct Distances(Vec<u64>, u64);

impl Distances {
    fn of(trace: &[(usize, u32)], cache: usize) -> Self {
        // A Fenwick tree over the steps marks the last use of each key: the marks after it are the distance.
        let mut tree = vec![0i32; trace.len() + 1];
        let mut last = HashMap::new();
        let (mut counts, mut first) = (vec![0; KEYS + 1], 0);
        let add = |tree: &mut Vec<i32>, at: usize, what: i32| {
            let mut at = at + 1;
            while at < tree.len() {
                tree[at] += what;
                at += at & at.wrapping_neg();
            }
        };
        let until = |tree: &Vec<i32>, at: usize| {
            let (mut at, mut sum) = (at + 1, 0);
            while at > 0 {
                sum += tree[at];
                at -= at & at.wrapping_neg();
            }
            sum
        };
        for (now, &(of, key)) in trace.iter().enumerate() {
            if of != cache {
                continue;
            }
            match last.insert(key, now) {
                Some(before) => {
                    let others = until(&tree, trace.len() - 1) - until(&tree, before);
                    counts[others as usize] += 1;
                    add(&mut tree, before, -1);
                }
                None => first += 1,
            }
            add(&mut tree, now, 1);
        }
        // From counts of each distance to misses at each size.
        let mut misses = vec![0; KEYS + 1];
        let mut beyond: u64 = first;
        for size in (0..=KEYS).rev() {
            misses[size] = beyond;
            beyond += if size > 0 { counts[size - 1] } else { 0 };
        }
        Distances(misses, first)
    }

    fn misses(&self, size: usize) -> u64 {
        self.0[size.min(KEYS)]
    }
}

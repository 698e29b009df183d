//! A simulation of three caches under pressure, compared with all static splits of the same memory.
//! `balance.rs` checks the result; `examples/balance_curves.rs` passes it to `cargo xtask balance`,
//! which draws it.
//!
//! The memory holds a fifth of all entries. They shrink by the shares of
//! `uslab::internal::balance`, with seeks in proportion to the costs. In a static split each cache
//! is an LRU of fixed size, whose misses follow exactly from the reuse distances of the trace.
//!
//! The result never depends on time or on the machine.

use crate::traffic::{self, COSTS, KEYS, Traffic};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Seeks of each cache, in proportion to the costs.
const SEEKS: [u32; 3] = [2, 20, 200];
/// Entries that fit in the memory.
pub const MEMORY: usize = 12_000;
/// The number of phases of the traffic; their length follows.
pub const PHASES: u64 = 3;
pub const STEPS_A_PHASE: u64 = 400_000;
/// Steps between two samples of the sizes.
pub const SAMPLE_STEPS: u64 = 4000;

/// The results to compare.
pub struct Simulation {
    /// Entries of each cache in the static split with the lowest cost, found by trial in steps of a
    /// hundredth.
    pub best: [usize; 3],
    pub best_cost: u64,
    /// The cost with a third of the memory for each cache.
    pub equal_cost: u64,
    /// The result with the shares of `uslab::reclaim`.
    pub balanced: Run,
    /// The result with these shares and equal seeks for all caches.
    pub blind: Run,
    /// The cost of first requests of keys, which every cache must miss.
    pub unavoidable: u64,
}

/// The result of sharing the memory by pressure.
pub struct Run {
    /// The sum of all misses' costs.
    pub cost: u64,
    /// Entries of each cache, every [`SAMPLE_STEPS`] steps.
    pub sizes: Vec<[usize; 3]>,
}

/// Runs all simulations.
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

/// The simulation in which pressure balances the caches.
fn balanced(trace: &[(usize, u32)], seeks: [u32; 3]) -> Run {
    // The simulation asks for an entry's size when the entry is added and when it is evicted.
    // Evictions follow the insertion in the same step.
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

/// The number of a cache's requests at each reuse distance, from which `misses(size)` follows.
struct Distances(Vec<u64>, u64);

impl Distances {
    fn of(trace: &[(usize, u32)], cache: usize) -> Self {
        // A Fenwick tree over the steps marks the last use of each key. The number of marks after a
        // key's last use is its distance.
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
        // Turns counts of each distance into misses at each size.
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

//! The balance of caches under pressure, simulated: no clock, no threads, one seed.
//!
//! Three caches whose entries cost 1, 10 and 100 to make again share a memory that holds a fifth of what they want. Their traffic is
//! Zipf's and shifts in three phases. They shrink by the shares of `uslab::reclaim::balance`, with seeks in proportion to the costs. Beside
//! it stand all static splits of the same memory, each cache an LRU of fixed size, whose misses follow exactly from the
//! reuse distances of the trace.

#[path = "support/traffic.rs"]
mod traffic;

use std::collections::HashMap;
use traffic::{COSTS, KEYS, Traffic};

const SEEKS: [u32; 3] = [2, 20, 200];
/// Entries that there is memory for.
const MEMORY: usize = 12_000;
const STEPS_A_PHASE: u64 = 400_000;

/// (cache, key) for each step.
fn trace() -> Vec<(usize, u32)> {
    let traffic = Traffic::new(STEPS_A_PHASE);
    (0..3 * STEPS_A_PHASE).map(|number| traffic.step(number)).collect()
}

/// The total cost of the misses when pressure balances the caches.
fn balanced(trace: &[(usize, u32)], seeks: [u32; 3]) -> u64 {
    traffic::balanced(trace.iter().copied(), seeks, MEMORY, |_, _| 1).cost
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

#[test]
fn the_cost_of_misses_is_near_the_best_split_and_far_below_the_equal_one() {
    let trace = trace();
    let distances = [0, 1, 2].map(|cache| Distances::of(&trace, cache));
    let cost = |sizes: [usize; 3]| (0..3).map(|at| distances[at].misses(sizes[at]) * COSTS[at]).sum::<u64>();
    let part = MEMORY / 100;
    let best = (0..=100)
        .flat_map(|a| (0..=100 - a).map(move |b| [a * part, b * part, (100 - a - b) * part]))
        .min_by_key(|&sizes| cost(sizes))
        .expect("there are splits");
    let (best, best_cost) = (best, cost(best));
    let equal_cost = cost([MEMORY / 3; 3]);
    let ours = balanced(&trace, SEEKS);
    let blind = balanced(&trace, [2; 3]);
    let unavoidable: u64 = (0..3).map(|at| distances[at].1 * COSTS[at]).sum();
    println!(
        "best split {best:?}: {best_cost}; equal: {equal_cost}; balanced: {ours} ({:.3} of the best, {:.3} of the equal); \
         balanced without costs: {blind}; unavoidable: {unavoidable}",
        ours as f64 / best_cost as f64,
        ours as f64 / equal_cost as f64
    );
    assert!(ours as f64 <= 1.10 * best_cost as f64);
    assert!(ours as f64 <= 0.75 * equal_cost as f64);
}

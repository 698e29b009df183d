//! The balance of caches under pressure, simulated: no clock, no threads, one seed.
//!
//! Three caches whose entries cost 1, 10 and 100 to make again share a memory that holds a fifth of what they want. Their traffic is
//! Zipf's and shifts in three phases. They shrink by the shares of `uslab::reclaim::balance`, with seeks in proportion to the costs. Beside
//! it stand all static splits of the same memory, each cache an LRU of fixed size, whose misses follow exactly from the
//! reuse distances of the trace.

use std::collections::{BTreeMap, HashMap};
use uslab::reclaim::balance::{LIGHTEST, Owed, Weight};

const COSTS: [u64; 3] = [1, 10, 100];
const SEEKS: [u32; 3] = [2, 20, 200];
const BATCH: usize = 128;
const KEYS: usize = 20_000;
const MEMORY: usize = 12_000;
/// Entries that a pressure event wants back.
const GOAL: usize = MEMORY / 64;
/// How the traffic is shared, phase by phase.
const PHASES: [[f64; 3]; 3] = [[0.70, 0.25, 0.05], [0.30, 0.60, 0.10], [0.50, 0.10, 0.40]];
const STEPS_A_PHASE: usize = 400_000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// (cache, key) for each step.
fn trace() -> Vec<(usize, u32)> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=KEYS)
        .map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        })
        .collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut steps = Vec::with_capacity(PHASES.len() * STEPS_A_PHASE);
    for (phase, shares) in PHASES.iter().enumerate() {
        for _ in 0..STEPS_A_PHASE {
            let at = random.next();
            let cache = if at < shares[0] { 0 } else { 1 + usize::from(at >= shares[0] + shares[1]) };
            let drawn = random.next() * sum;
            let rank = cumulated.partition_point(|&c| c < drawn).min(KEYS - 1);
            // What is popular shifts as well: a quarter of the keys a phase.
            steps.push((cache, ((rank + phase * KEYS / 4) % KEYS) as u32));
        }
    }
    steps
}

/// A cache that forgets what was used longest ago.
#[derive(Default)]
struct Lru {
    by_key: HashMap<u32, u64>,
    by_age: BTreeMap<u64, u32>,
    owed: Owed,
    scanned: usize,
}

impl Lru {
    fn hit(&mut self, key: u32, now: u64) -> bool {
        let before = self.by_key.insert(key, now);
        before.map(|before| self.by_age.remove(&before));
        self.by_age.insert(now, key);
        before.is_some()
    }

    fn len(&self) -> usize {
        self.by_age.len()
    }

    /// A pass at `priority`; how many entries went.
    fn shrink(&mut self, priority: u32, seeks: u32) -> usize {
        let freeable = self.len();
        self.owed = self.owed.after_pass(freeable, priority, Weight::of_seeks(seeks), BATCH);
        let mut freed = 0;
        while let Some(lot) = self.owed.next(freeable, BATCH) {
            self.owed = self.owed.less(lot);
            for _ in 0..lot.min(self.len()) {
                let (_, key) = self.by_age.pop_first().expect("it has entries");
                self.by_key.remove(&key);
                freed += 1;
            }
        }
        self.scanned += freed;
        freed
    }
}

/// The total cost of the misses when pressure balances the caches.
fn balanced(trace: &[(usize, u32)], seeks: [u32; 3]) -> u64 {
    let mut caches: [Lru; 3] = Default::default();
    let mut cost = 0;
    for (now, &(cache, key)) in trace.iter().enumerate() {
        if !caches[cache].hit(key, now as u64) {
            cost += COSTS[cache];
        }
        if caches.iter().map(Lru::len).sum::<usize>() > MEMORY {
            let (mut freed, mut priority) = (0, LIGHTEST);
            while freed < GOAL {
                freed += (0..3).map(|at| caches[at].shrink(priority, seeks[at])).sum::<usize>();
                priority = priority.saturating_sub(1);
            }
        }
    }
    cost
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

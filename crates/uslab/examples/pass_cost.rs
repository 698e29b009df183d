//! The cost of allocations while a reclaim pass runs on another thread.
//!
//! ```sh
//! cargo run --release -p uslab --example pass_cost
//! ```
//!
//! One thread allocates, frees and times each call. Another thread fills a cache of a million
//! entries, waits, and reclaims it bit by bit. Each call counts under the other thread's activity
//! at that time. The program prints the quantiles over all rounds, and the ratio within each round.
//! On a machine with one CPU the figures mean nothing.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use uslab::malloc::{free, malloc};
use uslab::reclaim::LruCache;

const ROUNDS: usize = 15;
const ENTRIES: u64 = 1_000_000;
const LIVE: usize = 1000;
const IDLE: usize = 0;
const PASS: usize = 1;
const OTHER: usize = 2;

/// A histogram of call times in nanoseconds; the last place counts all longer ones.
struct Times(Vec<u32>, u64);

impl Times {
    fn new() -> Times {
        Times(vec![0; 1 << 20], 0)
    }

    fn add(&mut self, ns: u64) {
        let last = self.0.len() as u64 - 1;
        self.0[ns.min(last) as usize] += 1;
        self.1 += 1;
    }

    /// Adds another histogram, and empties it.
    fn take(&mut self, other: &mut Times) {
        self.0.iter_mut().zip(&mut other.0).for_each(|(sum, n)| *sum += std::mem::take(n));
        self.1 += std::mem::take(&mut other.1);
    }

    fn at(&self, part: f64) -> usize {
        let mut left = (self.1 as f64 * part) as u64;
        let place = self.0.iter().position(|&n| {
            let here = left <= u64::from(n);
            left = left.saturating_sub(u64::from(n));
            here
        });
        place.unwrap_or(0)
    }
}

/// Fills a cache, waits, and reclaims it bit by bit, repeatedly; stores its activity in `doing`.
fn fill_and_reclaim(doing: &AtomicUsize) {
    let cache = LruCache::<u64, [u64; 8]>::new("million").expect("memory");
    for _ in 0..ROUNDS {
        (0..ENTRIES).for_each(|key| _ = cache.insert(key, [key; 8]));
        doing.store(IDLE, Relaxed);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        doing.store(PASS, Relaxed);
        while !cache.is_empty() {
            uslab::reclaim(1 << 20);
        }
        doing.store(OTHER, Relaxed);
    }
}

fn main() {
    if std::env::args().len() > 1 {
        eprintln!("pass_cost takes no arguments; it needs two CPUs and about 15 s");
        std::process::exit(2);
    }
    let (doing, done) = (AtomicUsize::new(OTHER), AtomicBool::new(false));
    let mut times = [Times::new(), Times::new()];
    // The ratio of each round by itself, because other load on the machine may disturb single
    // rounds.
    let mut ratios = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            fill_and_reclaim(&doing);
            done.store(true, Relaxed);
        });
        let mut round = [Times::new(), Times::new()];
        let mut live: Vec<*mut u8> = (0..LIVE).map(|n| malloc(16 + n)).collect();
        let mut state = 1u64;
        loop {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (at, size) = ((state >> 33) as usize % LIVE, 16 + (state >> 48) as usize % 1000);
            let before = doing.load(Relaxed);
            let start = Instant::now();
            // SAFETY: each is live until it is replaced here.
            unsafe { free(live[at]) };
            live[at] = black_box(malloc(size));
            let ns = start.elapsed().as_nanos() as u64;
            if before < OTHER && doing.load(Relaxed) == before {
                round[before].add(ns);
            } else if doing.load(Relaxed) == OTHER && round[PASS].1 > 0 {
                if round[IDLE].1 > 0 {
                    ratios.push(round[PASS].at(0.999) as f64 / round[IDLE].at(0.999) as f64);
                }
                times.iter_mut().zip(&mut round).for_each(|(sum, times)| sum.take(times));
            } else if done.load(Relaxed) {
                break;
            }
        }
        // SAFETY: as above.
        live.into_iter().for_each(|block| unsafe { free(block) });
    });
    println!("a free and a malloc, with the clock's own time, ns, of {ROUNDS} rounds");
    println!("{:<24} {:>10} {:>8} {:>8} {:>8} {:>8}", "beside", "calls", "p50", "p99", "p99.9", "p99.99");
    for (name, times) in ["nothing", "a reclaim pass"].iter().zip(&times) {
        let [p50, p99, p999, p9999] = [0.5, 0.99, 0.999, 0.9999].map(|part| times.at(part));
        println!("{name:<24} {:>10} {p50:>8} {p99:>8} {p999:>8} {p9999:>8}", times.1);
    }
    if ratios.is_empty() {
        eprintln!("pass_cost: this thread never ran beside the other; it needs two CPUs");
        std::process::exit(1);
    }
    ratios.sort_by(f64::total_cmp);
    let [least, median, most] = [0, ratios.len() / 2, ratios.len() - 1].map(|at| ratios[at]);
    println!("p99.9 beside a pass: {:.2} times", times[PASS].at(0.999) as f64 / times[IDLE].at(0.999) as f64);
    println!("of single rounds: {least:.2} to {most:.2}, median {median:.2}");
}

//! What 10 000 caches cost: to make each, its memory while it is unused, and a pair of allocation
//! and free on 400 busy ones, compared with ten caches of the same kind.
//!
//! ```sh
//! cargo run --release -p uslab --example many_caches
//! ```

use std::fs;
use std::hint::black_box;
use std::ptr::NonNull;
use std::thread;
use std::time::Instant;
use uslab::{CacheBuilder, RawCache};

const CACHES: usize = 10_000;
const BUSY: usize = 400;
const FEW: usize = 10;
const LIVE: usize = 16;
const BYTES: usize = 256;
const ROUNDS: usize = 41;
/// Visits of a cache in a round, and pairs at each visit.
const VISITS: usize = 400;
const TURNS: usize = 20;

/// Nanoseconds a pair, over `VISITS` visits of each of these caches.
fn pair_ns(caches: &[RawCache]) -> f64 {
    let start = Instant::now();
    for cache in caches.iter().cycle().take(VISITS) {
        for _ in 0..TURNS {
            let mut objects = [NonNull::dangling(); LIVE];
            objects.iter_mut().for_each(|place| *place = black_box(cache.alloc().expect("memory")));
            // SAFETY: from this cache, and used by no thread.
            objects.into_iter().for_each(|object| unsafe { cache.free(object) });
        }
    }
    start.elapsed().as_nanos() as f64 / (VISITS * TURNS * LIVE) as f64
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// The resident memory of this process.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel lists this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kib = line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number of KiB");
    kib << 10
}

/// Makes the caches, and prints what each took.
fn make() -> Vec<RawCache> {
    let mut caches = Vec::with_capacity(CACHES);
    let (before, start) = (resident_bytes(), Instant::now());
    caches.extend((0..CACHES).map(|_| CacheBuilder::new("many").build_raw(BYTES).expect("memory")));
    let took = start.elapsed();
    let each_bytes = resident_bytes().saturating_sub(before) / CACHES;
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    println!("creating a cache: {:.2} µs", took.as_secs_f64() * 1e6 / CACHES as f64);
    println!(
        "an unused cache: {each_bytes} bytes resident, {} for each of {cpus} CPUs",
        each_bytes.div_ceil(cpus)
    );
    caches
}

fn main() {
    let caches = make();
    // Each cache is used once, and most never again.
    for cache in &caches {
        let object = cache.alloc().expect("memory");
        // SAFETY: from this cache, and used by no thread.
        unsafe { cache.free(object) };
    }
    // The caches created last: the others already hold the extra capacity.
    let (few, busy) = (&caches[..FEW], &caches[CACHES - BUSY..]);
    let (mut of_few, mut of_busy, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (one, other) = (pair_ns(few), pair_ns(busy));
        of_few.push(one);
        of_busy.push(other);
        ratios.push(other / one);
    }
    println!("{FEW} caches: {:.2} ns a pair", median(of_few));
    println!("{BUSY} busy ones of {CACHES}: {:.2} ns a pair", median(of_busy));
    println!("ratio: {:.2}", median(ratios));
}

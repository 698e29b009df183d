//! The cost of a pair of allocation and free on each of 400 caches, which shows how many suffer
//! from 4 KiB aliasing (ADR 0015).
//!
//! ```sh
//! cargo run --release -p uslab --example pair_spread
//! ```

use std::hint::black_box;
use std::time::Instant;
use uslab::{CacheBuilder, RawCache};

const CACHES: usize = 400;
const ROUNDS: usize = 15;
const PAIRS: u32 = 2000;

fn main() {
    let make = |n: usize| CacheBuilder::new("spread").build_raw(64 + n % 40 * 8).expect("memory");
    let caches: Vec<RawCache> = (0..CACHES).map(make).collect();
    let mut least_ns = vec![f64::MAX; CACHES];
    for _ in 0..ROUNDS {
        for (cache, least) in caches.iter().zip(&mut least_ns) {
            let live = cache.alloc().expect("memory");
            let start = Instant::now();
            for _ in 0..PAIRS {
                let object = black_box(cache.alloc().expect("memory"));
                // SAFETY: from this cache, and used by no thread.
                unsafe { cache.free(object) };
            }
            *least = least.min(start.elapsed().as_nanos() as f64 / f64::from(PAIRS));
            // SAFETY: as above.
            unsafe { cache.free(live) };
        }
    }
    least_ns.sort_by(f64::total_cmp);
    let slow = least_ns.iter().filter(|&&ns| ns > 1.3 * least_ns[0]).count();
    println!("{CACHES} caches, a pair, ns: least {:.2}, median {:.2}", least_ns[0], least_ns[CACHES / 2]);
    println!("99th percentile {:.2}, most {:.2}", least_ns[CACHES * 99 / 100], least_ns[CACHES - 1]);
    println!("slower than 1.3 times the least: {slow}");
}

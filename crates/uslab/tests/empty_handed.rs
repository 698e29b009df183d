//! A reclaim call that finds nothing takes no lock. In Linux in 2002, nine in ten such calls found
//! nothing, and they queued for a lock. Here many calls run while another thread holds all locks of
//! the page layer, which every release of pages takes: one that took a lock would hang.
//!
//! A program of its own, because no thread may free anything meanwhile.
#![cfg(not(loom))]

use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;
use uslab::{CacheBuilder, Scan, ShrinkControl, Shrinker, ShrinkerOptions};

const CALLS: u128 = 20_000;

struct Empty;

impl Shrinker for Empty {
    fn count(&self, _: &ShrinkControl) -> usize {
        0
    }
    fn scan(&self, _: &ShrinkControl) -> Scan {
        Scan::Freed(0)
    }
}

#[test]
fn calls_with_nothing_freeable_take_no_lock() {
    let caches: Vec<_> = (1..=40).map(|n| CacheBuilder::new("held").build_raw(64 * n).unwrap()).collect();
    let live: Vec<_> = caches.iter().map(|cache| cache.alloc().unwrap()).collect();
    let _shrinkers: Vec<_> = (0..3)
        .map(|_| uslab::register_shrinker("empty", ShrinkerOptions::default(), Empty).unwrap())
        .collect();
    while uslab::reclaim(usize::MAX) > 0 {}

    let (held, wait_held) = channel();
    let (done, wait_done) = channel::<()>();
    let holder = thread::spawn(move || {
        uslab::internal::lock_pages();
        held.send(()).unwrap();
        wait_done.recv().unwrap();
        uslab::internal::unlock_pages(false);
    });
    wait_held.recv().unwrap();
    let start = Instant::now();
    for _ in 0..CALLS {
        assert_eq!(uslab::reclaim(1 << 20), 0);
    }
    println!(
        "a reclaim that finds nothing, with 40 caches and 3 shrinkers: {} ns",
        start.elapsed().as_nanos() / CALLS
    );
    done.send(()).unwrap();
    holder.join().unwrap();
    for (cache, object) in caches.iter().zip(live) {
        // SAFETY: from this cache, freed once.
        unsafe { cache.free(object) };
    }
}

//! Destroying a cache while other threads use the library: the call must succeed and must not
//! disturb them.
//!
//! A cache whose capacity grows takes capacity from idle ones and drains them; `trim` drains all.
//! Either may have objects of a cache in flight while the cache's only user destroys it.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use uslab::{CacheBuilder, RawCache};

fn use_and_destroy(cache: RawCache, objects: usize) {
    let mut objects = vec![null_mut(); objects];
    assert!(cache.alloc_bulk(&mut objects));
    // SAFETY: just allocated, and unused.
    unsafe { cache.free_bulk(&objects) };
    if let Err((_, busy)) = cache.destroy() {
        panic!("no object was in use, but destroy failed: {busy}");
    }
}

/// Creates and destroys caches for two seconds while `beside` runs repeatedly.
fn caches_come_and_go_beside(threads: usize, beside: impl Fn() + Sync) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    beside();
                }
            });
        }
        let work = || {
            let end = Instant::now() + Duration::from_secs(2);
            for round in 0.. {
                use_and_destroy(CacheBuilder::new("brief").build_raw(512 + 64 * (round % 7)).unwrap(), 100);
                if Instant::now() > end {
                    break;
                }
            }
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_cache_has_no_counters_of_the_one_before_it() {
    in_both_modes("a_cache_has_no_counters_of_the_one_before_it", &[], || {
        let first = CacheBuilder::new("first").build_raw(96).unwrap();
        let id = first.stats().unwrap().id;
        use_and_destroy(first, 5000);
        let second = CacheBuilder::new("second").build_raw(96).unwrap();
        let stats = second.stats().unwrap();
        assert_eq!(stats.id, id, "the least id is used again");
        let events =
            [stats.alloc_slow, stats.free_slow, stats.refills, stats.flushes, stats.grows, stats.shrinks];
        assert_eq!((events, stats.drains, stats.failures), ([0; 6], 0, 0));
    });
}

/// Caches that repeatedly outgrow the bound: each takes capacity from idle ones.
fn grow_at_the_cost_of_idle_caches() {
    let cache = CacheBuilder::new("grows").build_raw(1024).unwrap();
    for _ in 0..40 {
        let objects: Vec<NonNull<u8>> = (0..600).map(|_| cache.alloc().unwrap()).collect();
        // SAFETY: just allocated, and unused.
        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    }
    use_and_destroy(cache, 600);
}

#[test]
fn while_other_caches_grow_at_its_cost() {
    caches_come_and_go_beside(3, grow_at_the_cost_of_idle_caches);
}

#[test]
fn heaps_are_destroyed_while_caches_grow_at_their_cost() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    grow_at_the_cost_of_idle_caches();
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let heap = uslab::Heap::new().unwrap();
            for size in (16..2048).step_by(48).cycle().take(400) {
                let object = heap.alloc(size, 8).unwrap();
                if size % 3 == 0 {
                    // SAFETY: from this heap, and unused.
                    unsafe { heap.free(object) };
                }
            }
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn while_all_memory_is_released() {
    caches_come_and_go_beside(1, || {
        uslab::trim(0);
    });
}

/// A constructor may call any function: no lock is held around it, in locked mode neither.
#[test]
fn in_a_constructor_while_all_memory_is_released() {
    in_both_modes("in_a_constructor_while_all_memory_is_released", &[], || {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(|| {
            loop {
                uslab::trim(0);
            }
        });
        std::thread::spawn(move || {
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                let cache = CacheBuilder::new("constructed")
                    .build_constructed::<[u64; 16]>(|object| {
                        use_and_destroy(CacheBuilder::new("within").build_raw(64).unwrap(), 10);
                        object.write([7; 16])
                    })
                    .unwrap();
                assert_eq!(cache.constructed().unwrap()[15], 7);
            }
            done.send(()).unwrap();
        });
        // After a deadlock the threads are left behind.
        is_done.recv_timeout(Duration::from_secs(120)).expect("the threads deadlocked");
    });
}

/// An object that another thread's free pushes out of the quarantine is in that thread's hands. It
/// must not be one of the cache that goes.
#[test]
fn of_hardened_caches_while_other_threads_free() {
    in_both_modes("of_hardened_caches_while_other_threads_free", &[("USLAB_SECURE", "1")], || {
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let free_all_the_time = || {
            let cache = CacheBuilder::new("other").build_raw(48).unwrap();
            while !IS_OVER.load(Relaxed) {
                let mut objects = [null_mut(); 64];
                assert!(cache.alloc_bulk(&mut objects));
                // SAFETY: just allocated, and unused.
                unsafe { cache.free_bulk(&objects) };
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| _ = scope.spawn(free_all_the_time));
            for _ in 0..400 {
                use_and_destroy(CacheBuilder::new("hardened").build_raw(48).unwrap(), 300);
            }
            IS_OVER.store(true, Relaxed);
        });
    });
}

//! Destroying a cache while others are busy with the library: it must neither be refused nor hurt anybody.
//!
//! A cache that grows takes capacity from idle ones and drains them; `trim` drains all. Both may be at a cache that its one user
//! destroys, with its objects in their hands.
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
    // SAFETY: just allocated, unused.
    unsafe { cache.free_bulk(&objects) };
    if let Err((_, busy)) = cache.destroy() {
        panic!("nothing was in use, and it said: {busy}");
    }
}

/// Makes and destroys caches for two seconds while `beside` runs again and again.
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

/// Caches that outgrow the bound, again and again: each takes capacity from whatever is idle.
fn grow_at_others_cost() {
    let cache = CacheBuilder::new("grows").build_raw(1024).unwrap();
    for _ in 0..40 {
        let objects: Vec<NonNull<u8>> = (0..600).map(|_| cache.alloc().unwrap()).collect();
        // SAFETY: just allocated, unused.
        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    }
    use_and_destroy(cache, 600);
}

#[test]
fn while_others_grow_at_its_cost() {
    caches_come_and_go_beside(3, grow_at_others_cost);
}

#[test]
fn heaps_are_destroyed_whole_while_others_grow_at_their_cost() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    grow_at_others_cost();
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let heap = uslab::Heap::new().unwrap();
            for size in (16..2048).step_by(48).cycle().take(400) {
                let object = heap.alloc(size, 8).unwrap();
                if size % 3 == 0 {
                    // SAFETY: from this heap, unused.
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

/// A constructor may do whatever a program may: no lock is held around it, in locked mode either.
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
                        object.write([7; 16]);
                    })
                    .unwrap();
                assert_eq!(cache.constructed().unwrap()[15], 7);
            }
            done.send(()).unwrap();
        });
        // Threads that wait for each other are left behind.
        is_done.recv_timeout(Duration::from_secs(120)).expect("nobody waits for ever");
    });
}

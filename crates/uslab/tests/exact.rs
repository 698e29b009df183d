//! The figures of a cache are exact while no thread uses it, also where another thread trims: what
//! a drain moves from sheaves to slabs counts once. A walk visits the live objects alone.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use uslab::CacheBuilder;

#[test]
fn beside_trims() {
    in_both_modes("beside_trims", &[], || {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let trims = scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    uslab::trim(0);
                }
            });
            let users: Vec<_> = (0..4).map(|_| scope.spawn(count_objects)).collect();
            let counted = users.into_iter().map(|user| user.join());
            let first_wrong = counted.filter_map(Result::err).next();
            is_done.store(true, Relaxed);
            trims.join().unwrap();
            if let Some(wrong) = first_wrong {
                std::panic::resume_unwind(wrong);
            }
        });
    });
}

#[test]
fn a_walk_beside_trims() {
    const OBJECTS: usize = 4000;
    in_both_modes("a_walk_beside_trims", &[], || {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    uslab::trim(0);
                }
            });
            // Slabs of 128 KiB with 512 objects, of which the first of each 64 stay: most pages are
            // free, and each slab is in use.
            let cache = CacheBuilder::new("walked").min_order(5).max_order(5).build_raw(256).unwrap();
            let end = Instant::now() + Duration::from_secs(2);
            let mut wrong = 0;
            while Instant::now() < end && wrong == 0 {
                let objects = (0..OBJECTS).map(|_| cache.alloc().unwrap());
                let (kept, others): (Vec<_>, Vec<_>) = objects.partition(is_kept);
                // SAFETY: just allocated, and unused.
                others.into_iter().for_each(|object| unsafe { cache.free(object) });
                let mut visited = 0;
                cache.for_each_live(|_| {
                    visited += 1;
                    ControlFlow::Continue(())
                });
                wrong = kept.len().abs_diff(visited);
                // SAFETY: not freed above.
                kept.into_iter().for_each(|object| unsafe { cache.free(object) });
            }
            is_done.store(true, Relaxed);
            assert_eq!(wrong, 0, "free objects were visited");
        });
    });
}

/// Whether an object lies at the start of 16 KiB.
fn is_kept(object: &NonNull<u8>) -> bool {
    object.as_ptr().addr().is_multiple_of(16 << 10)
}

/// Caches of this thread alone, with a known number of live objects in each.
fn count_objects() {
    for live in 0..1500 {
        let cache = CacheBuilder::new("private").build::<[u64; 6]>().unwrap();
        let boxes: Vec<_> = (0..live % 300).map(|_| cache.insert([7; 6]).unwrap()).collect();
        assert_eq!(cache.stats().unwrap().active_objects, boxes.len() as u64);
        drop(boxes);
        cache.destroy().unwrap();
    }
}

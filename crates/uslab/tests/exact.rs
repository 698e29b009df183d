//! The figures of a cache are exact while no thread uses it, also where another thread trims: what
//! a drain moves from sheaves to slabs counts once.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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

//! Tests of the search for capacity.

use super::super::adapt::take_misses;
use super::*;
use crate::rseq::{Mode, mode};

/// A cache beyond its default capacity, with objects in its sheaves.
fn grown() -> &'static CpuCache {
    let (cache, _) = cache(64, 0);
    // Caches of other tests may use up the bound for a while.
    let is_charged = (0..2000).any(|_| {
        let objects = alloc(cache, 3000);
        free(cache, &objects);
        if cache.adapt().charged() == 0 {
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
        cache.adapt().charged() > 0
    });
    assert!(is_charged);
    cache
}

#[test]
fn a_search_makes_one_barrier_for_all_that_it_takes() {
    let caches: Vec<_> = (0..8).map(|_| grown()).collect();
    let charged = || caches.iter().filter(|cache| cache.adapt().charged() > 0).count();
    let (mut searches, mut most_taken) = (0, 0);
    while charged() > 0 && searches < 1000 {
        caches.iter().for_each(|cache| _ = take_misses(cache));
        let (calls, before) = (os::membarrier::counted::calls(), charged());
        adapt::take_from_idle(0);
        let calls = os::membarrier::counted::calls() - calls;
        searches += 1;
        most_taken = most_taken.max(before - charged());
        assert!(calls <= usize::from(mode() == Mode::Rseq), "{calls} barriers");
    }
    assert_eq!(charged(), 0, "idle caches give their capacity");
    assert!(most_taken > 1, "a search takes from several caches");
    caches.into_iter().for_each(finish);
}

#[test]
fn a_search_asks_busy_caches_once_and_leaves_them_their_capacity() {
    let cache = grown();
    take_misses(cache);
    for _ in 0..20 {
        let before = cache.adapt().charged();
        adapt::note_spare_objects(cache.tally());
        adapt::take_from_idle(0);
        assert_eq!(cache.adapt().charged(), before);
        assert!(!take_misses(cache), "the search asked the cache");
    }
    finish(cache);
}

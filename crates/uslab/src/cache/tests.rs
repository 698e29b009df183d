//! Tests of the public operations of caches, one subject each. The property tests against an oracle
//! are in `tests/`.

use super::*;
use crate::counters;
use crate::slab::Constructor;
use core::ops::ControlFlow;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

extern crate std;
use std::collections::HashSet;
use std::vec::Vec;

#[test]
fn objects_are_distinct_aligned_and_come_back() {
    let cache = CacheBuilder::new("distinct").align(32).build_raw(40).unwrap();
    for _ in 0..3 {
        let objects: Vec<NonNull<u8>> = (0..10_000).map(|_| cache.alloc().unwrap()).collect();
        let set: HashSet<_> = objects.iter().copied().collect();
        assert_eq!(set.len(), objects.len());
        for &object in &objects {
            assert_eq!(object.as_ptr() as usize % 32, 0);
            // SAFETY: allocated by this test, with 40 bytes.
            unsafe { object.write_bytes(0xa5, 40) };
        }
        for object in objects {
            // SAFETY: allocated by this test, and unused from here on.
            unsafe { cache.free(object) };
        }
    }
    cache.destroy().unwrap();
}

#[test]
fn a_static_cache_sets_itself_up() {
    static CACHE: Cache<[u64; 5]> = Cache::new("static");
    let mut boxed = CACHE.insert([1; 5]).unwrap();
    boxed[3] = 7;
    assert_eq!(boxed.into_inner(), [1, 1, 1, 7, 1]);
}

#[test]
fn boxes_drop_their_values_once() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Loud(#[allow(dead_code)] u32);
    impl Drop for Loud {
        fn drop(&mut self) {
            DROPS.fetch_add(1, Relaxed);
        }
    }
    let cache = Cache::<Loud>::new("loud");
    drop(cache.insert(Loud(1)));
    let raw = cache.insert(Loud(2)).ok().unwrap().into_raw();
    // SAFETY: from `into_raw`, passed once.
    drop(unsafe { CacheBox::from_raw(&cache, raw) });
    assert_eq!(DROPS.load(Relaxed), 2);
}

#[test]
fn constructors_run_once_an_object_and_state_survives() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let cache = CacheBuilder::new("constructed")
        .build_constructed::<[u32; 8]>(|object| {
            RUNS.fetch_add(1, Relaxed);
            object.write([3; 8])
        })
        .unwrap();
    for _ in 0..10_000 {
        let mut object = cache.constructed().unwrap();
        assert_eq!(object[0], 3);
        object[1] += 1;
    }
    let objects = cache.core_if_set_up().unwrap().usable_bytes();
    assert!(RUNS.load(Relaxed) <= 8 * 4096 / objects, "one slab, constructed once");
    assert!(cache.alloc_zeroed().is_none() && cache.insert([0; 8]).is_err());
}

#[test]
fn slabs_that_give_no_page_back_are_small() {
    /// # Safety
    /// None.
    unsafe fn leave_as_it_is(_: *mut u8, _: usize) {}
    let pages = |options: CacheBuilder<'_>| {
        let cache = options.build_raw(4096).unwrap();
        let pages = cache.stats().expect("a cache in use").pages_per_slab;
        cache.destroy().unwrap();
        pages
    };
    let plain = CacheBuilder::new("whole");
    let constructor = Constructor { call: leave_as_it_is, data: 0, release: None };
    // SAFETY: the constructor does nothing.
    let constructed = unsafe { plain.raw_constructor(constructor) };
    assert_eq!((pages(plain), pages(constructed), pages(constructed.max_order(5))), (32, 8, 32));
    assert_eq!((pages(plain.flags(Flags::POISON)), pages(plain.max_order(3))), (8, 8));
}

#[test]
fn bulk_is_all_or_nothing_and_of_any_size() {
    let cache = CacheBuilder::new("bulk").build_raw(100).unwrap();
    assert!(cache.alloc_bulk(&mut []));
    for n in [1, 2, 61, 62, 63, 64, 200, 1000, 5000] {
        let mut objects = std::vec![core::ptr::null_mut(); n];
        assert!(cache.alloc_bulk(&mut objects));
        assert_eq!(objects.iter().collect::<HashSet<_>>().len(), n);
        for &object in &objects {
            // SAFETY: allocated by this test.
            unsafe { object.write_bytes(1, 100) };
        }
        // SAFETY: allocated by this test, and unused from here on.
        unsafe { cache.free_bulk(&objects) };
    }
    cache.destroy().unwrap();
}

#[test]
fn zeroed_objects_are_zero_after_dirty_use() {
    let cache = CacheBuilder::new("zeroed").build_raw(64).unwrap();
    for _ in 0..200 {
        let object = cache.alloc_zeroed().unwrap();
        // SAFETY: allocated by this test, with 64 bytes.
        unsafe {
            assert!(core::slice::from_raw_parts(object.as_ptr(), 64).iter().all(|&b| b == 0));
            object.write_bytes(0xff, 64);
            cache.free(object);
        }
    }
}

#[test]
fn destroy_refuses_while_objects_live_and_says_which() {
    let cache = CacheBuilder::new("busy").build_raw(64).unwrap();
    let (a, b) = (cache.alloc().unwrap(), cache.alloc().unwrap());
    // SAFETY: allocated by this test.
    unsafe { cache.free(b) };
    let (cache, busy) = cache.destroy().err().unwrap();
    assert_eq!((busy.objects, busy.first[0], busy.first[1]), (1, a.as_ptr(), core::ptr::null_mut()));
    // The cache continues to work.
    let c = cache.alloc().unwrap();
    // SAFETY: allocated by this test.
    unsafe {
        cache.free(a);
        cache.free(c);
    }
    cache.destroy().unwrap();
}

#[test]
fn prefilled_objects_cannot_fail_and_go_back() {
    for n in [0, 1, 100, 2046, 2047, 5000] {
        let cache = CacheBuilder::new("prefilled").build_raw(32).unwrap();
        let mut store = cache.prefill(n).unwrap();
        let taken: Vec<_> = (0..n / 2).map(|_| store.alloc().unwrap()).collect();
        assert_eq!(store.len(), n - taken.len());
        drop(store);
        for object in taken {
            // SAFETY: from this cache.
            unsafe { cache.free(object) };
        }
        cache.destroy().unwrap();
    }
}

#[test]
fn bad_options_are_refused() {
    let refused = |result: Result<RawCache, CreateError>| result.err().unwrap();
    assert_eq!(refused(CacheBuilder::new("x").build_raw(0)), CreateError::Invalid);
    assert_eq!(refused(CacheBuilder::new("x").align(3).build_raw(8)), CreateError::Invalid);
    assert_eq!(refused(CacheBuilder::new("x").build_raw(usize::MAX)), CreateError::TooLarge);
}

#[test]
fn shrink_gives_pages_back() {
    let cache = CacheBuilder::new("shrink").build_raw(1024).unwrap();
    let mut objects = std::vec![core::ptr::null_mut(); 1000];
    assert!(cache.alloc_bulk(&mut objects));
    // SAFETY: allocated by this test.
    unsafe { cache.free_bulk(&objects) };
    assert!(cache.shrink() > 0);
    assert_eq!(cache.core().live_objects(), 0);
}

#[test]
fn few_objects_in_sheaves_keep_no_slabs_of_a_process_that_grows() {
    const COUNT: usize = 100_000;
    let cache = CacheBuilder::new("scattered").build_raw(48).unwrap();
    let objects: Vec<_> = (0..COUNT).map(|_| cache.alloc().unwrap()).collect();
    // So that the sheaves hold objects of many slabs.
    for i in 0..COUNT {
        // SAFETY: allocated by this test, and freed once: the step and the count have no divisor.
        unsafe { cache.free(objects[i * 7919 % COUNT]) };
    }
    let slabs = || counters::record(cache.core().id()).slabs.load(Relaxed);
    let before = slabs();
    trim::drain_sparse();
    assert!(slabs() <= 2, "{} of {before} slabs are left", slabs());
    cache.destroy().unwrap();
}

#[test]
fn caches_without_caching_serve_from_slabs() {
    let cache = CacheBuilder::new("uncached").flags(Flags::NO_CACHING).build_raw(64).unwrap();
    let object = cache.alloc().unwrap();
    // SAFETY: allocated by this test.
    unsafe { cache.free(object) };
    assert_eq!(cache.core().live_objects(), 0);
    cache.destroy().unwrap();
}

#[test]
fn threads_beyond_cpus_share_a_cache_without_loss() {
    static CACHE: Cache<[usize; 4]> = Cache::new("threads");
    let threads: Vec<_> = (0..8)
        .map(|id| {
            std::thread::spawn(move || {
                let mut mine: Vec<CacheBox<'static, [usize; 4]>> = Vec::new();
                for round in 0..20_000usize {
                    mine.push(CACHE.insert([id, round, id, round]).unwrap());
                    if round % 3 == 0 {
                        let victim = mine.swap_remove(round * 7 % mine.len());
                        assert_eq!((victim[0], victim[2]), (id, id));
                        assert_eq!(victim[1], victim[3]);
                    }
                    if mine.len() > 300 {
                        mine.clear();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let core = CACHE.core_if_set_up().unwrap();
    core.cpu.drain_all();
    assert_eq!(core.live_objects(), 0);
}

const DEBUGGED: Flags = Flags::CONSISTENCY_CHECKS.with(Flags::RED_ZONE).with(Flags::POISON);

/// The addresses of the cache's live objects.
fn live(cache: &RawCache) -> Vec<usize> {
    let mut live = Vec::new();
    cache.for_each_live(|object| {
        live.push(object.as_ptr() as usize);
        ControlFlow::Continue(())
    });
    live
}

#[test]
fn live_objects_are_visited_once_and_in_order() {
    for (size, flags) in
        [(48, Flags(0)), (48, Flags::NO_CACHING), (6000, Flags(0)), (200_000, Flags(0)), (61, DEBUGGED)]
    {
        let cache = CacheBuilder::new("live").flags(flags).build_raw(size).unwrap();
        assert_eq!(live(&cache), []);
        let objects: Vec<_> = (0..700).map(|_| cache.alloc().unwrap()).collect();
        let (freed, kept): (Vec<_>, Vec<_>) = objects.iter().enumerate().partition(|(n, _)| n % 3 == 0);
        // SAFETY: allocated above, freed once.
        freed.iter().for_each(|&(_, &object)| unsafe { cache.free(object) });
        let mut expected: Vec<_> = kept.iter().map(|(_, object)| object.as_ptr() as usize).collect();
        expected.sort_unstable();
        assert_eq!(live(&cache), expected, "{size} {flags:?}");
        // SAFETY: as above.
        kept.iter().for_each(|&(_, &object)| unsafe { cache.free(object) });
        assert_eq!(live(&cache), []);
        cache.destroy().unwrap();
    }
}

#[test]
fn a_visitor_may_free_allocate_and_break_off() {
    let cache = Cache::<[u64; 8]>::new("visited");
    cache.for_each_live(|_| panic!("no object is live"));
    let objects: Vec<_> = (0..500).map(|_| cache.alloc().unwrap()).collect();
    let prefilled = cache.prefill(20).unwrap();
    let mut visited = 0;
    cache.for_each_live(|_| {
        visited += 1;
        if visited == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(visited, 7);
    let held: HashSet<_> = objects.iter().copied().collect();
    let mut seen = HashSet::new();
    cache.for_each_live(|object| {
        if held.contains(&object) {
            assert!(seen.insert(object), "an object is visited once");
            // SAFETY: allocated above, freed once.
            unsafe { cache.free(object) };
            let other = cache.alloc().unwrap();
            // SAFETY: just allocated.
            unsafe { cache.free(other) };
        }
        ControlFlow::Continue(())
    });
    assert_eq!(seen.len(), objects.len());
    let mut left = 0;
    cache.for_each_live(|_| {
        left += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(left, prefilled.len());
    drop(prefilled);
    cache.destroy().unwrap();
}

/// Objects that live during the whole walk are visited, whatever other threads do meanwhile.
#[test]
fn a_walk_beside_threads_visits_what_stays() {
    for flags in [Flags(0), DEBUGGED] {
        let cache = CacheBuilder::new("walked").flags(flags).build_raw(200).unwrap();
        let kept: HashSet<_> = (0..300).map(|_| cache.alloc().unwrap()).collect();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (cache, is_over) = (&cache, &is_over);
                scope.spawn(move || {
                    let mut round = thread;
                    while !is_over.load(Relaxed) {
                        round += 1;
                        let objects: Vec<_> = (0..round * 37 % 400).map(|_| cache.alloc().unwrap()).collect();
                        // SAFETY: just allocated, freed once.
                        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
                        if round % 20 == thread {
                            cache.shrink();
                        }
                    }
                });
            }
            for _ in 0..100 {
                let (mut seen, mut last) = (0, 0);
                cache.for_each_live(|object| {
                    assert!(object.as_ptr() as usize > last);
                    last = object.as_ptr() as usize;
                    seen += usize::from(kept.contains(&object));
                    ControlFlow::Continue(())
                });
                assert_eq!(seen, kept.len());
            }
            is_over.store(true, Relaxed);
        });
        // SAFETY: allocated above, freed once.
        kept.into_iter().for_each(|object| unsafe { cache.free(object) });
        cache.destroy().unwrap();
    }
}

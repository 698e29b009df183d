//! The victims of a pass: it takes little memory in use as long as there is idle memory.
//!
//! Each test runs in a process of its own, in both modes, without the background thread, which
//! would reclaim too.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;
#[path = "support/pinned.rs"]
mod pinned;

use modes::in_both_modes;
use pinned::stay_on_this_cpu;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use uslab::internal::layout::Record;
use uslab::malloc::{aligned_alloc, free, malloc};
use uslab::reclaim::{LruCache, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker};
use uslab::{CacheBuilder, RawCache, reclaim, set_limit, stats};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const NO_REAPER: [(&str, &str); 1] = [("USLAB_REAPER", "0")];

fn record_of(cache: &RawCache) -> &'static Record {
    let records = uslab::internal::header().records_used.load(Relaxed) as u16;
    let named = |record: &&Record| {
        let name = record.name.iter().map(|byte| byte.load(Relaxed)).take_while(|&byte| byte != 0);
        name.eq(cache.name().bytes())
    };
    (0..records).map(uslab::internal::record).find(named).expect("the cache is listed")
}

/// A cache of entries; the test observes whether a pass evicts some.
fn entries(count: u64) -> LruCache<u64, [u8; 4000]> {
    let entries = LruCache::new("entries").unwrap();
    (0..count).for_each(|key| _ = entries.insert(key, [1; 4000]));
    entries
}

/// Written pages, 32 KiB apart, so that each is alone in a run.
fn pages_apart(count: usize) -> Vec<*mut u8> {
    let page = |_| {
        let page = aligned_alloc(32 * KIB, 4096);
        // SAFETY: allocated by this test, with that size.
        unsafe { page.write_bytes(1, 4096) };
        page
    };
    (0..count).map(page).collect()
}

fn empty_slabs(cache: &RawCache) -> usize {
    record_of(cache).empty_slabs.load(Relaxed) as usize
}

/// A cache of 4 KiB objects whose empty target has grown to the slabs of `objects`.
fn with_empty_slabs(name: &str, objects: usize) -> RawCache {
    // Small sheaves, so that free objects are in slabs, and small slabs, so that many are empty.
    let cache = CacheBuilder::new(name).sheaf_capacity(4).max_order(3).build_raw(4096).unwrap();
    for _ in 0..8 {
        let live: Vec<NonNull<u8>> = (0..objects).map(|_| cache.alloc().expect("memory")).collect();
        for object in live {
            // SAFETY: allocated by this test, with that size, and freed once.
            unsafe {
                object.as_ptr().write_bytes(1, 4096);
                cache.free(object);
            }
        }
    }
    cache
}

#[test]
fn sheaves_in_use_stay_while_entries_meet_the_goal() {
    in_both_modes("sheaves_in_use_stay_while_entries_meet_the_goal", &NO_REAPER, || {
        // A fixed capacity: an adaptive cache without a miss for 20 ms would give its capacity to
        // one with misses, and be drained.
        let busy = CacheBuilder::new("busy").sheaf_capacity(60).build_raw(64).unwrap();
        let use_it = || {
            let object = busy.alloc().expect("memory");
            // SAFETY: just allocated from it.
            unsafe { busy.free(object) };
        };
        let mut last = None;
        for round in 0..10 {
            // Each round uses fresh entries: where old and new ones share pages, only a pass at the
            // last priority frees pages.
            drop(last.take());
            let entries = entries(8000);
            use_it();
            let drains = record_of(&busy).drains.load(Relaxed);
            let before = entries.len();
            let given = reclaim(MIB);
            assert!(given >= MIB, "round {round}: {given}");
            println!("{round}: {given} bytes of {} entries", before - entries.len());
            assert_eq!(record_of(&busy).drains.load(Relaxed), drains, "the busy cache was drained");
            last = Some(entries);
        }
        let entries = last.expect("ten rounds");
        let drains = record_of(&busy).drains.load(Relaxed);
        reclaim(usize::MAX);
        assert!(
            record_of(&busy).drains.load(Relaxed) > drains,
            "a pass for everything must drain the busy cache"
        );
        assert_eq!((entries.len(), record_of(&busy).slabs.load(Relaxed)), (0, 0));
    });
}

/// A shrinker without entries, which uses a cache whenever it is called: it simulates a program at
/// work during a pass.
struct Busy(RawCache);

impl Shrinker for Busy {
    fn count(&self, _: &ShrinkControl) -> usize {
        let object = self.0.alloc().expect("memory");
        // SAFETY: just allocated from it.
        unsafe { self.0.free(object) };
        0
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        Scan::Stop
    }
}

#[test]
fn entries_beside_much_other_memory_meet_the_goal() {
    in_both_modes("entries_beside_much_other_memory_meet_the_goal", &NO_REAPER, || {
        // The thread stays on one CPU: a pass would drain the slots that it used on another.
        stay_on_this_cpu();
        // Never touched. Used bytes divided by entries would take each entry to be a hundred times
        // its size.
        let much = malloc(1 << 30);
        assert!(!much.is_null());
        let small = LruCache::<u64, [u8; 64]>::new("small").unwrap();
        (0..100_000).for_each(|key| _ = small.insert(key, [1; 64]));
        let busy = CacheBuilder::new("busy").sheaf_capacity(60).build_raw(64).unwrap();
        let busy = register_shrinker("busy", ShrinkerOptions::default(), Busy(busy)).unwrap();
        for round in 0..4 {
            let before = small.len();
            let drains = record_of(&busy.0).drains.load(Relaxed);
            let given = reclaim(MIB);
            let (gone, drains) = (before - small.len(), record_of(&busy.0).drains.load(Relaxed) - drains);
            println!("{round}: {given} bytes of {gone} entries, {drains} drains");
            assert!(given >= MIB && gone < 30_000 && drains <= 8);
        }
        // SAFETY: allocated by this test, freed once.
        unsafe { free(much) };
    });
}

/// A shrinker whose evictions free no memory of uslab: another thread took it at once, or it
/// belonged to another allocator.
struct Hollow(AtomicUsize);

impl Shrinker for Hollow {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.0.load(Relaxed)
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        let gone = control.nr_to_scan.min(self.0.load(Relaxed));
        self.0.fetch_sub(gone, Relaxed);
        Scan::Freed(gone)
    }
}

#[test]
fn entries_that_free_nothing_are_not_all_evicted() {
    in_both_modes("entries_that_free_nothing_are_not_all_evicted", &NO_REAPER, || {
        let much = malloc(1 << 30);
        assert!(!much.is_null());
        let hollow = Hollow(AtomicUsize::new(100_000));
        let hollow = register_shrinker("hollow", ShrinkerOptions::default(), hollow).unwrap();
        let given = reclaim(MIB);
        println!("{given} bytes of {} entries", 100_000 - hollow.0.load(Relaxed));
        assert!(hollow.0.load(Relaxed) > 80_000);
        // SAFETY: allocated by this test, freed once.
        unsafe { free(much) };
    });
}

#[test]
fn without_entries_a_pass_drains_sheaves() {
    in_both_modes("without_entries_a_pass_drains_sheaves", &NO_REAPER, || {
        let cache = CacheBuilder::new("sheaves").build_raw(4096).unwrap();
        let object = cache.alloc().expect("memory");
        // SAFETY: just allocated from it.
        unsafe { cache.free(object) };
        assert!(record_of(&cache).slabs.load(Relaxed) > 0);
        reclaim(64 * MIB);
        assert_eq!(record_of(&cache).slabs.load(Relaxed), 0);
    });
}

#[test]
fn empty_slabs_go_in_proportion_and_the_last_stays() {
    in_both_modes("empty_slabs_go_in_proportion_and_the_last_stays", &NO_REAPER, || {
        let [many, few] = [with_empty_slabs("many", 8000), with_empty_slabs("few", 2000)];
        // Entries, so that the pass has another source and does not take everything.
        let entries = entries(1000);
        let caches = [&many, &few];
        let before = caches.map(empty_slabs);
        println!("empty slabs: {before:?}");
        assert!(before[0] > before[1] && before[1] > 8, "{before:?}");
        // The goal: half of the empty slabs, and the pages that are free already.
        let bytes = caches.map(|cache| empty_slabs(cache) * slab_bytes(cache)).iter().sum::<usize>() / 2;
        let dirty = stats::usage().dirty_bytes;
        assert!(reclaim(bytes + dirty) >= bytes);
        let after = caches.map(empty_slabs);
        println!("after half was wanted: {after:?}");
        for (before, after) in before.into_iter().zip(after) {
            let left = after as f64 / before as f64;
            assert!((0.4..0.6).contains(&left), "{left} of it are left");
        }
        // Free pages in per-CPU lists do not count, and a few entries are evicted for them.
        assert!(entries.len() > 500, "{}", entries.len());
    });
}

#[test]
fn empty_slabs_of_many_caches_go_before_entries() {
    in_both_modes("empty_slabs_of_many_caches_go_before_entries", &NO_REAPER, || {
        let entries = entries(4000);
        let names: Vec<String> = (0..64).map(|n| format!("many{n}")).collect();
        let caches: Vec<RawCache> = names.iter().map(|name| with_empty_slabs(name, 400)).collect();
        // Not the empty ones alone: a flush of sheaves makes more slabs empty.
        let slabs = || caches.iter().map(|cache| record_of(cache).slabs.load(Relaxed)).sum::<i64>();
        let before = slabs();
        reclaim(stats::usage().dirty_bytes + MIB);
        println!("slabs: {before} and {} after, entries: {}", slabs(), entries.len());
        assert!(entries.len() == 4000 && slabs() < before);
    });
}

#[test]
fn barns_that_hold_much_go_before_entries() {
    in_both_modes("barns_that_hold_much_go_before_entries", &NO_REAPER, || {
        let entries = entries(4000);
        let names: Vec<String> = (0..32).map(|n| format!("barn{n}")).collect();
        let caches: Vec<RawCache> = names
            .iter()
            .map(|name| {
                let cache = CacheBuilder::new(name).sheaf_capacity(15).build_raw(1000).unwrap();
                let live: Vec<NonNull<u8>> = (0..400).map(|_| cache.alloc().unwrap()).collect();
                for object in live {
                    // SAFETY: allocated by this test, with that size, and freed once.
                    unsafe {
                        object.as_ptr().write_bytes(1, 1000);
                        cache.free(object);
                    }
                }
                cache
            })
            .collect();
        let sum = || {
            uslab::internal::account_all();
            caches.iter().map(|cache| record_of(cache).sheaf_free.load(Relaxed)).sum::<i64>()
        };
        let before = sum();
        reclaim(stats::usage().dirty_bytes + MIB);
        println!("objects in sheaves: {before} and {} after, entries: {}", sum(), entries.len());
        assert!(entries.len() == 4000 && sum() < before);
    });
}

#[test]
fn at_the_limit_scattered_pages_go_before_entries() {
    in_both_modes("at_the_limit_scattered_pages_go_before_entries", &NO_REAPER, || {
        let pages = pages_apart(240);
        let entries = entries(500);
        uslab::trim(0);
        // SAFETY: allocated by this test, freed once.
        pages.into_iter().step_by(2).for_each(|page| unsafe { free(page) });
        let usage = stats::usage();
        set_limit(0, usage.used_bytes as usize + usage.dirty_bytes as usize).unwrap();
        assert!(!malloc(256 * KIB).is_null());
        assert_eq!(entries.len(), 500);
    });
}

#[test]
fn a_pass_reports_only_bytes_that_it_freed() {
    in_both_modes("a_pass_reports_only_bytes_that_it_freed", &NO_REAPER, || {
        let entries = entries(4000);
        let pages = pages_apart(256);
        uslab::trim(0);
        let (_kept, gone): (Vec<*mut u8>, Vec<*mut u8>) =
            pages.into_iter().partition(|page| page.addr() / (64 * KIB) % 4 == 3);
        // SAFETY: allocated by this test, freed once.
        gone.into_iter().for_each(|page| unsafe { free(page) });
        let dirty = stats::usage().dirty_bytes as usize;
        let given = reclaim(MIB);
        println!("dirty: {dirty}, given {given}, entries {}", entries.len());
        assert!(given <= dirty + (4000 - entries.len()) * 4200);
    });
}

fn slab_bytes(cache: &RawCache) -> usize {
    record_of(cache).pages_per_slab.load(Relaxed) as usize * 4096
}

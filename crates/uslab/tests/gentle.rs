//! What a pass takes, and from whom: little of what programs are using, as long as there is anything else.
//!
//! Each test is a process of its own, in both modes, without the background thread, which would take things as well.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use uslab::reclaim::LruCache;
use uslab::stats::{self, layout::Record};
use uslab::{CacheBuilder, RawCache, reclaim};

const MIB: usize = 1 << 20;
const NO_REAPER: [(&str, &str); 1] = [("USLAB_REAPER", "0")];

fn record_of(cache: &RawCache) -> &'static Record {
    let records = stats::header().records_used.load(Relaxed) as u16;
    let named = |record: &&Record| {
        let name = record.name.iter().map(|byte| byte.load(Relaxed)).take_while(|&byte| byte != 0);
        name.eq(cache.name().bytes())
    };
    (0..records).map(stats::record).find(named).expect("the cache is listed")
}

fn empty_slabs(cache: &RawCache) -> usize {
    record_of(cache).empty_slabs.load(Relaxed) as usize
}

/// A cache of 4 KiB objects that has learnt to keep as many empty slabs as `objects` need.
fn with_empty_slabs(name: &str, objects: usize) -> RawCache {
    // Small sheaves, so that what is free is in slabs.
    let cache = CacheBuilder::new(name).sheaf_capacity(4).build_raw(4096).unwrap();
    for _ in 0..8 {
        let live: Vec<NonNull<u8>> = (0..objects).map(|_| cache.alloc().expect("memory")).collect();
        for object in live {
            // SAFETY: ours, of that size, freed once.
            unsafe {
                object.as_ptr().write_bytes(1, 4096);
                cache.free(object);
            }
        }
    }
    cache
}

#[test]
fn sheaves_in_use_stay_while_entries_bring_what_is_wanted() {
    in_both_modes("sheaves_in_use_stay_while_entries_bring_what_is_wanted", &NO_REAPER, || {
        let entries = LruCache::<u64, [u8; 4000]>::new("entries").unwrap();
        let busy = CacheBuilder::new("busy").build_raw(64).unwrap();
        let use_it = || {
            let object = busy.alloc().expect("memory");
            // SAFETY: just taken from it.
            unsafe { busy.free(object) };
        };
        for round in 0..10 {
            (0..8000).for_each(|key| _ = entries.insert(key, [1; 4000]));
            use_it();
            let drains = record_of(&busy).drains.load(Relaxed);
            let before = entries.len();
            let given = reclaim(MIB);
            assert!(given >= MIB, "round {round}: {given}");
            println!("{round}: {given} bytes of {} entries", before - entries.len());
            assert_eq!(record_of(&busy).drains.load(Relaxed), drains, "nobody drained it");
        }
        let drains = record_of(&busy).drains.load(Relaxed);
        reclaim(usize::MAX);
        assert!(record_of(&busy).drains.load(Relaxed) > drains, "unless all is wanted");
        assert_eq!((entries.len(), record_of(&busy).slabs.load(Relaxed)), (0, 0));
    });
}

#[test]
fn without_entries_sheaves_are_what_there_is() {
    in_both_modes("without_entries_sheaves_are_what_there_is", &NO_REAPER, || {
        let cache = CacheBuilder::new("sheaves").build_raw(4096).unwrap();
        let object = cache.alloc().expect("memory");
        // SAFETY: just taken from it.
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
        // Something to ask first, so that the pass does not take everything.
        let entries = LruCache::<u64, [u8; 4000]>::new("entries").unwrap();
        (0..1000).for_each(|key| _ = entries.insert(key, [1; 4000]));
        let caches = [&many, &few];
        let before = caches.map(empty_slabs);
        println!("empty slabs: {before:?}");
        assert!(before[0] > before[1] && before[1] > 8, "{before:?}");
        // Half of what is empty, and the pages that are free already.
        let bytes = caches.map(|cache| empty_slabs(cache) * slab_bytes(cache)).iter().sum::<usize>() / 2;
        let dirty = stats::usage().dirty_bytes;
        assert!(reclaim(bytes + dirty) >= bytes);
        let after = caches.map(empty_slabs);
        println!("after half was wanted: {after:?}");
        for (before, after) in before.into_iter().zip(after) {
            let left = after as f64 / before as f64;
            assert!((0.4..0.6).contains(&left), "{left} of it are left");
        }
        // Pages that lists keep count as missing, and a few entries go for them.
        assert!(entries.len() > 500, "{}", entries.len());
    });
}

fn slab_bytes(cache: &RawCache) -> usize {
    record_of(cache).pages_per_slab.load(Relaxed) as usize * 4096
}

//! Caches that shrink, in a program whose global allocator is this library, when memory runs out.
//! Their own allocations must never end the process, deadlock with their own thread, or lose an
//! entry.
//!
//! Limits belong to the process, so each test runs in a process of its own, in both modes.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uslab::internal::entry::malloc_noreclaim;
use uslab::malloc::free;
use uslab::reclaim::LruCache;
use uslab::reclaim::adaptors::{EvictColdest, Shared};
use uslab::{
    CacheBuilder, Scan, ShrinkControl, Shrinker, ShrinkerOptions, reclaim, register_shrinker, set_limit,
};

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

const MIB: usize = 1 << 20;

/// Runs `body` in both modes, without a background thread. Ends the process if it hangs.
fn by_itself(name: &str, body: impl FnOnce()) {
    in_both_modes(name, &[("USLAB_REAPER", "0")], || {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(120));
            eprintln!("the test deadlocked");
            std::process::exit(3);
        });
        body();
    });
}

/// A value that counts its live instances.
struct Value(u64, Arc<AtomicIsize>);

impl Value {
    fn new(value: u64, alive: &Arc<AtomicIsize>) -> Self {
        alive.fetch_add(1, SeqCst);
        Value(value, Arc::clone(alive))
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.1.fetch_sub(1, SeqCst);
    }
}

/// All available memory: blocks linked through their first words, because no memory is left for a
/// list.
struct Hoard(AtomicPtr<u8>);

impl Hoard {
    const fn new() -> Self {
        Hoard(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Allocates all memory that the caches do not hold.
    fn take_everything(&self) {
        let sizes = (4..20).rev().flat_map(|order| (4..8).rev().map(move |quarters| (quarters << order) / 4));
        for bytes in sizes {
            while let Some(block) = NonNull::new(malloc_noreclaim(bytes)) {
                // SAFETY: allocated by this test, with at least 16 bytes.
                unsafe { block.cast::<*mut u8>().write(self.0.load(SeqCst)) };
                self.0.store(block.as_ptr(), SeqCst);
            }
        }
    }

    fn give_back(&self) {
        let mut next = self.0.swap(std::ptr::null_mut(), SeqCst);
        while !next.is_null() {
            let block = next;
            // SAFETY: a block of the list, which only this thread uses; read before it is freed.
            unsafe {
                next = block.cast::<*mut u8>().read();
                free(block);
            }
        }
    }
}

/// Calls its function in `count`, which runs before any shrinker's scan, and in `scan`; frees
/// nothing.
struct Asked<F>(F);

impl<F: Fn() + Send + Sync + 'static> Shrinker for Asked<F> {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.0();
        1000
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        self.0();
        Scan::Freed(0)
    }
}

fn when_asked<F: Fn() + Send + Sync + 'static>(call: F) -> uslab::Registration<Asked<F>> {
    register_shrinker("asked", ShrinkerOptions::default(), Asked(call)).unwrap()
}

#[test]
fn caches_at_the_hard_limit_evict_and_insert() {
    by_itself("caches_at_the_hard_limit_evict_and_insert", || {
        set_limit(0, 32 * MIB).unwrap();
        let small = LruCache::<u64, [u8; 1000]>::new("small").unwrap();
        let large = LruCache::<u64, [u8; 3000]>::new("large").unwrap();
        for key in 0..100_000 {
            small.insert(key, [key as u8; 1000]);
            large.insert(key / 2, [key as u8; 3000]);
            assert!(small.get(&key).is_none_or(|value| value == [key as u8; 1000]));
        }
        assert!(small.len() * 1000 + large.len() * 3000 < 32 * MIB);
        assert!(small.stats().evicted > 10_000 && large.stats().evicted > 10_000);
    });
}

#[test]
fn many_threads_at_the_hard_limit_lose_nothing() {
    by_itself("many_threads_at_the_hard_limit_lose_nothing", || {
        set_limit(0, 24 * MIB).unwrap();
        let alive = Arc::new(AtomicIsize::new(0));
        let cache = LruCache::<u64, (Value, [u8; 200])>::new("cache").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (cache, alive) = (&cache, &alive);
                scope.spawn(move || {
                    for key in 0..20_000 {
                        let key = thread << 32 | key;
                        assert!(cache.insert(key, (Value::new(key, alive), [0; 200])).is_none());
                        assert!(cache.look(&key, |value| value.0.0 == key).unwrap_or(true));
                    }
                });
            }
        });
        assert_eq!(alive.load(SeqCst), cache.len() as isize);
        assert!(cache.stats().evicted > 0);
        drop(cache);
        assert_eq!(alive.load(SeqCst), 0);
    });
}

#[test]
fn entries_go_where_there_is_no_memory_at_all() {
    by_itself("entries_go_where_there_is_no_memory_at_all", || {
        static HOARD: Hoard = Hoard::new();
        static DONE: AtomicBool = AtomicBool::new(false);
        struct Queue(VecDeque<Box<u64>>);
        impl EvictColdest for Queue {
            type Evicted = Box<u64>;
            fn entries(&self) -> usize {
                self.0.len()
            }
            fn evict_coldest(&mut self) -> Option<Box<u64>> {
                self.0.pop_front()
            }
        }

        set_limit(0, 16 * MIB).unwrap();
        let alive = Arc::new(AtomicIsize::new(0));
        let cache = LruCache::new("cache").unwrap();
        (0..5000).for_each(|key| drop(cache.insert(key, Value::new(key, &alive))));
        let queue = Shared::new("queue", Queue((0..5000).map(Box::new).collect())).unwrap();
        // The newest shrinker is called first, and takes all the memory that the others free.
        let asked = when_asked(|| {
            if !DONE.swap(true, SeqCst) {
                HOARD.take_everything();
            }
        });
        reclaim(usize::MAX);
        assert!(DONE.load(SeqCst));
        drop(asked);
        HOARD.give_back();
        assert_eq!((cache.len(), alive.load(SeqCst), cache.stats().evicted), (0, 0, 5000));
        assert!(queue.lock().0.is_empty() && queue.evicted() == 5000);
    });
}

/// Hashes of numbers whose top byte selects the shard.
#[derive(Clone, Copy)]
struct ByShard;

struct Sharded(u64);

impl BuildHasher for ByShard {
    type Hasher = Sharded;
    fn build_hasher(&self) -> Sharded {
        Sharded(0)
    }
}

impl Hasher for Sharded {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers")
    }
    fn write_u64(&mut self, key: u64) {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (mixed ^ mixed >> 29) & !(0xf << 32) | (key >> 56) << 32;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[test]
fn an_index_that_cannot_grow_keeps_its_entries() {
    by_itself("an_index_that_cannot_grow_keeps_its_entries", || {
        static CACHE: OnceLock<LruCache<u64, Value, ByShard>> = OnceLock::new();
        static REFUSED: AtomicUsize = AtomicUsize::new(0);
        static KEPT: AtomicUsize = AtomicUsize::new(0);
        const FIRST: u64 = 10_000;
        const OTHERS: u64 = 20_000;
        const OTHER_SHARD: u64 = 1 << 56;

        let alive = Arc::new(AtomicIsize::new(0));
        let cache = CACHE.get_or_init(|| LruCache::with_hasher("cache", ByShard).unwrap());
        (0..OTHERS).for_each(|key| drop(cache.insert(OTHER_SHARD | key, Value::new(key, &alive))));
        (0..FIRST).for_each(|key| drop(cache.insert(key, Value::new(key, &alive))));
        set_limit(0, uslab::stats::usage().used_bytes + 4 * MIB).unwrap();
        let asked = {
            let alive = Arc::clone(&alive);
            when_asked(move || {
                if REFUSED.load(SeqCst) > 0 {
                    return;
                }
                let hoard = Hoard::new();
                hoard.take_everything();
                for key in 0..OTHERS {
                    // An entry for an entry: there is memory for what is kept, but not for a longer
                    // index.
                    assert!(cache.remove(&(OTHER_SHARD | key)).is_some());
                    let (new, before) = (FIRST + key, cache.len());
                    assert!(cache.insert(new, Value::new(new, &alive)).is_none());
                    if cache.len() == before {
                        assert!(cache.look(&new, |_| ()).is_none());
                        // An existing entry can get a new value.
                        assert_eq!(cache.insert(0, Value::new(7, &alive)).map(|value| value.0), Some(0));
                        assert_eq!(cache.look(&0, |value| value.0), Some(7));
                        cache.insert(0, Value::new(0, &alive));
                        REFUSED.store(1, SeqCst);
                        break;
                    }
                    KEPT.fetch_add(1, SeqCst);
                }
                assert_eq!(alive.load(SeqCst), cache.len() as isize);
                for key in 0..FIRST + KEPT.load(SeqCst) as u64 {
                    assert_eq!(cache.look(&key, |value| value.0), Some(key));
                }
                hoard.give_back();
            })
        };
        reclaim(usize::MAX);
        assert_eq!(REFUSED.load(SeqCst), 1, "{} kept", KEPT.load(SeqCst));
        drop(asked);
        // With free memory the index grows again.
        set_limit(0, 0).unwrap();
        let kept = FIRST + KEPT.load(SeqCst) as u64;
        for key in kept..2 * kept {
            cache.insert(key, Value::new(key, &alive));
            assert_eq!(cache.look(&key, |value| value.0), Some(key));
        }
        assert_eq!(alive.load(SeqCst), cache.len() as isize);
        cache.clear();
        assert_eq!(alive.load(SeqCst), 0);
    });
}

#[test]
fn an_index_that_cannot_grow_has_memory_reclaimed() {
    by_itself("an_index_that_cannot_grow_has_memory_reclaimed", || {
        static CACHE: OnceLock<LruCache<u64, u64, ByShard>> = OnceLock::new();
        static HOARD: Hoard = Hoard::new();
        static NEWEST: AtomicU64 = AtomicU64::new(0);
        static GIVEN: AtomicBool = AtomicBool::new(false);
        static SEEN: AtomicBool = AtomicBool::new(false);
        const FIRST: u64 = 10_000;
        const OTHERS: u64 = 20_000;
        const OTHER_SHARD: u64 = 1 << 56;

        let cache = CACHE.get_or_init(|| LruCache::with_hasher("cache", ByShard).unwrap());
        (0..OTHERS).for_each(|key| _ = cache.insert(OTHER_SHARD | key, key));
        (0..FIRST).for_each(|key| _ = cache.insert(key, key));
        let _asked = when_asked(|| {
            if !GIVEN.swap(true, SeqCst) {
                // A key of the shard whose index is to grow.
                SEEN.store(CACHE.get().unwrap().get(&NEWEST.load(SeqCst)).is_some(), SeqCst);
                HOARD.give_back();
            }
        });
        set_limit(0, uslab::stats::usage().used_bytes + 4 * MIB).unwrap();
        HOARD.take_everything();
        let mut key = FIRST;
        while !GIVEN.load(SeqCst) {
            assert!(key < FIRST + OTHERS, "it never grew");
            NEWEST.store(key - 1, SeqCst);
            // Frees one entry for each new one: there is memory for entries, but not for a longer
            // index.
            assert!(cache.remove(&(OTHER_SHARD | (key - FIRST))).is_some());
            cache.insert(key, key);
            assert_eq!(cache.get(&key), Some(key));
            key += 1;
        }
        assert!(SEEN.load(SeqCst), "a callback found the shard locked");
        assert!(key > FIRST + 1000, "memory was short for entries, not for the index");
    });
}

#[test]
fn callbacks_may_look_while_the_cache_grows() {
    by_itself("callbacks_may_look_while_the_cache_grows", || {
        static CACHE: OnceLock<LruCache<u64, [u8; 64]>> = OnceLock::new();
        static LOOKS: AtomicUsize = AtomicUsize::new(0);

        let cache = CACHE.get_or_init(|| LruCache::new("cache").unwrap());
        let _asked = when_asked(|| {
            (0..64).for_each(|key| _ = cache.get(&key));
            // This allocation cannot succeed, so it reclaims.
            cache.insert(u64::MAX, [1; 64]);
            cache.remove(&u64::MAX);
            LOOKS.fetch_add(1, SeqCst);
        });
        for (soft_bytes, hard_bytes) in [(0, 32 * MIB), (20 * MIB, 0)] {
            set_limit(soft_bytes, hard_bytes).unwrap();
            let live = CacheBuilder::new("live").build_raw(4096).unwrap();
            let kept: Vec<_> = (0..6000).map(|_| live.alloc().unwrap()).collect();
            let before = LOOKS.load(SeqCst);
            let mut key = 0;
            while key < 300_000 || LOOKS.load(SeqCst) == before {
                cache.insert(key, [2; 64]);
                key += 1;
            }
            // SAFETY: allocated by this test, freed once.
            kept.into_iter().for_each(|object| unsafe { live.free(object) });
        }
    });
}

#[test]
fn callbacks_do_not_wait_for_the_look_that_they_run_in() {
    by_itself("callbacks_do_not_wait_for_the_look_that_they_run_in", || {
        static CACHE: OnceLock<LruCache<u64, u64>> = OnceLock::new();
        static MISSES: AtomicUsize = AtomicUsize::new(0);

        let cache = CACHE.get_or_init(|| LruCache::new("cache").unwrap());
        cache.insert(1, 1);
        let _asked = when_asked(|| {
            if cache.get(&1).is_none() {
                MISSES.fetch_add(1, SeqCst);
            }
        });
        // An allocation at this point would reclaim like this, where memory is used up.
        cache.look(&1, |_| reclaim(usize::MAX));
        assert!(MISSES.load(SeqCst) > 0);
        assert_eq!(cache.get(&1), Some(1), "an entry in use was evicted");
    });
}

#[test]
fn one_value_that_panics_on_drop_loses_no_other() {
    by_itself("one_value_that_panics_on_drop_loses_no_other", || {
        static ALIVE: AtomicIsize = AtomicIsize::new(0);
        struct Touchy(bool);
        impl Drop for Touchy {
            fn drop(&mut self) {
                ALIVE.fetch_sub(1, SeqCst);
                assert!(!self.0, "touchy");
            }
        }
        let cache = LruCache::with_hasher("cache", ByShard).unwrap();
        for key in 0..1000u64 {
            ALIVE.fetch_add(1, SeqCst);
            cache.insert(key, Touchy(key == 10));
        }
        reclaim(usize::MAX);
        assert_eq!(ALIVE.load(SeqCst), cache.len() as isize);
        drop(cache);
        assert_eq!(ALIVE.load(SeqCst), 0);
    });
}

#[test]
fn a_comparison_that_panics_costs_no_memory() {
    by_itself("a_comparison_that_panics_costs_no_memory", || {
        static UNFIT: AtomicBool = AtomicBool::new(false);
        struct Key(u64);
        impl Hash for Key {
            fn hash<H: Hasher>(&self, hasher: &mut H) {
                hasher.write_u64(self.0);
            }
        }
        impl PartialEq for Key {
            fn eq(&self, other: &Key) -> bool {
                assert!(!UNFIT.load(SeqCst), "unfit");
                self.0 == other.0
            }
        }
        impl Eq for Key {}

        let alive = Arc::new(AtomicIsize::new(0));
        let cache = LruCache::with_hasher("cache", ByShard).unwrap();
        cache.insert(Key(1), Value::new(1, &alive));
        std::panic::set_hook(Box::new(|_| ()));
        UNFIT.store(true, SeqCst);
        let before = uslab::stats::usage().allocated_bytes;
        for _ in 0..10_000 {
            let insert = || drop(cache.insert(Key(1), Value::new(2, &alive)));
            assert!(catch_unwind(AssertUnwindSafe(insert)).is_err());
        }
        UNFIT.store(false, SeqCst);
        let more = uslab::stats::usage().allocated_bytes.saturating_sub(before);
        assert!(more < 10_000 * size_of::<u64>(), "{more} bytes more");
        assert_eq!(cache.look(&Key(1), |value| value.0), Some(1));
        assert_eq!(alive.load(SeqCst), 1);
    });
}

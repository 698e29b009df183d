//! Memory is short: an allocation fails only if no memory can be reclaimed, a failure changes
//! nothing, and an unreachable soft limit costs little.
//!
//! Limits belong to the process, so each test runs in a process of its own, in both modes.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use uslab::internal::entry::malloc_noreclaim;
use uslab::malloc::{aligned_alloc, free, malloc};
use uslab::reclaim::LruCache;
use uslab::{
    CacheBuilder, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker, set_limit,
};

const MIB: usize = 1 << 20;

fn held() -> usize {
    let usage = uslab::stats::usage();
    usage.used_bytes + usage.dirty_bytes
}

/// A cache of `entries` entries of a kilobyte, whose order of use differs from the order of their
/// addresses.
fn scattered(entries: u64) -> LruCache<u64, [u8; 1000]> {
    let cache = LruCache::new("scattered").unwrap();
    (0..entries).for_each(|key| _ = cache.insert(key, [1; 1000]));
    let mut x = 12345_u64;
    for _ in 0..entries * 4 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        cache.look(&(x % entries), |_| ());
    }
    cache
}

#[test]
fn an_allocation_of_another_size_gets_all_that_caches_hold() {
    in_both_modes("an_allocation_of_another_size_gets_all_that_caches_hold", &[], || {
        set_limit(0, 64 * MIB).unwrap();
        for bytes in [5000, 100_000, MIB] {
            let cache = scattered(50_000);
            let blocks: Vec<*mut u8> =
                std::iter::repeat_with(|| malloc(bytes)).take_while(|block| !block.is_null()).collect();
            assert!(
                cache.len() < 1000,
                "malloc({bytes}) failed after {} beside {}",
                blocks.len(),
                cache.len()
            );
            assert!(blocks.len() * bytes > 40 * MIB, "{} of {bytes}", blocks.len());
            // SAFETY: allocated by this test, freed once.
            blocks.into_iter().for_each(|block| unsafe { free(block) });
        }
    });
}

#[test]
fn threads_that_are_short_together_wait_for_each_other() {
    in_both_modes("threads_that_are_short_together_wait_for_each_other", &[], || {
        set_limit(0, 128 * MIB).unwrap();
        let cache = LruCache::<u64, [u8; 1000]>::new("shared").unwrap();
        (0..110_000).for_each(|key| _ = cache.insert(key, [1; 1000]));
        let failed = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let blocks: Vec<usize> = (0..50).map(|_| malloc(100_000).addr()).collect();
                    failed.fetch_add(blocks.iter().filter(|&&block| block == 0).count(), SeqCst);
                });
            }
        });
        assert_eq!(failed.load(SeqCst), 0, "800 blocks are 80 of 128 MB; {} entries are left", cache.len());
        assert!(cache.len() > 1000);
    });
}

#[test]
fn a_failed_allocation_does_not_grow_the_memory_held() {
    in_both_modes("a_failed_allocation_does_not_grow_the_memory_held", &[], || {
        let cache = CacheBuilder::new("small").build_raw(8192).unwrap();
        set_limit(0, 64 * MIB).unwrap();
        // A little dirty free memory, so that the large run is dirty in part.
        let (live, gone) = (malloc(MIB), aligned_alloc(2 * MIB, MIB / 4));
        // SAFETY: allocated by this test, with that size, and freed once.
        unsafe {
            live.write_bytes(1, MIB);
            gone.write_bytes(1, MIB / 4);
            free(gone);
        }
        let before = held();
        assert!(malloc_noreclaim(64 * MIB - MIB / 16).is_null());
        assert!(held() <= before, "{before} bytes before, {} after", held());
        let objects: Vec<_> = (0..100).map_while(|_| cache.alloc_noreclaim()).collect();
        assert_eq!(objects.len(), 100);
        // SAFETY: from this cache or by this test, and freed once.
        unsafe {
            objects.iter().for_each(|&object| cache.free(object));
            free(live);
        }
    });
}

#[test]
fn an_impossible_request_costs_no_entries() {
    in_both_modes("an_impossible_request_costs_no_entries", &[], || {
        let cache = LruCache::<u64, [u8; 1000]>::new("kept").unwrap();
        (0..10_000).for_each(|key| _ = cache.insert(key, [1; 1000]));
        for (align, size) in [(16, usize::MAX / 2 - 100), (16, 2 << 40), (1 << 31, 1), (1 << 45, 1 << 20)] {
            assert!(aligned_alloc(align, size).is_null(), "{align} {size}");
        }
        set_limit(0, 64 * MIB).unwrap();
        assert!(malloc(65 * MIB).is_null());
        let raw = CacheBuilder::new("raw").build_raw(4096).unwrap();
        assert!(!raw.alloc_bulk(&mut vec![std::ptr::null_mut(); 20_000]));
        assert_eq!(cache.len(), 10_000);
    });
}

/// Frees all its blocks in one call, which waits for a flag first.
struct Slow {
    blocks: Mutex<Vec<usize>>,
    inside: AtomicBool,
    may: AtomicBool,
}

impl Shrinker for &'static Slow {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        self.inside.store(true, SeqCst);
        while !self.may.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let blocks = std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: allocated by this test, freed once.
        blocks.iter().for_each(|&block| unsafe { free(std::ptr::with_exposed_provenance_mut(block)) });
        Scan::Freed(blocks.len())
    }
}

#[test]
fn a_thread_that_waited_for_a_pass_gets_the_freed_memory() {
    in_both_modes("a_thread_that_waited_for_a_pass_gets_the_freed_memory", &[("USLAB_REAPER", "0")], || {
        static SLOW: Slow = Slow {
            blocks: Mutex::new(Vec::new()),
            inside: AtomicBool::new(false),
            may: AtomicBool::new(false),
        };
        let wait_inside = || {
            while !SLOW.inside.load(SeqCst) {
                thread::yield_now();
            }
        };
        // Blocks of a page each, with allocated pages around: freed pages do not merge.
        let blocks: Vec<*mut u8> = (0..240).map(|_| aligned_alloc(32 << 10, 4096)).collect();
        // SAFETY: allocated by this test, with that size.
        blocks.iter().for_each(|&block| unsafe { block.write_bytes(1, 4096) });
        let half = blocks.iter().step_by(2).map(|block| block.expose_provenance()).collect();
        *SLOW.blocks.lock().unwrap() = half;
        let _registered = register_shrinker("slow", ShrinkerOptions::default(), &SLOW).unwrap();
        // The threads start before the limit is set.
        let (started, start) = (std::sync::Barrier::new(3), AtomicBool::new(false));
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                started.wait();
                while !start.load(SeqCst) {
                    thread::yield_now();
                }
                aligned_alloc(32 << 10, 4096).addr()
            });
            let second = scope.spawn(|| {
                started.wait();
                wait_inside();
                malloc(256 << 10).addr()
            });
            started.wait();
            uslab::trim(0);
            set_limit(0, held()).unwrap();
            start.store(true, SeqCst);
            wait_inside();
            thread::sleep(Duration::from_millis(50));
            SLOW.may.store(true, SeqCst);
            let (first, second) = (first.join().unwrap(), second.join().unwrap());
            set_limit(0, 0).unwrap();
            assert!(first != 0 && second != 0, "{first:x} {second:x}");
        });
    });
}

/// Unregisters itself in `count` or in `scan`, and counts the calls after that.
struct Leaver {
    in_count: bool,
    gone: AtomicBool,
    after: AtomicUsize,
}

static LEAVERS: Mutex<Option<Registration<&'static Leaver>>> = Mutex::new(None);

impl Leaver {
    fn called(&self, leaves: bool) {
        if self.gone.load(SeqCst) {
            self.after.fetch_add(1, SeqCst);
        }
        let own = leaves.then(|| LEAVERS.lock().unwrap_or_else(PoisonError::into_inner).take()).flatten();
        if let Some(own) = own {
            assert!(!own.unregister(), "`unregister` must return before the callback does");
            self.gone.store(true, SeqCst);
        }
    }
}

impl Shrinker for &'static Leaver {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.called(self.in_count);
        10_000_000
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        self.called(true);
        Scan::Freed(1)
    }
}

/// Allocates all memory, in blocks from `MIB` down to a page.
fn fill() {
    for bytes in (12..=20).rev().map(|shift| 1_usize << shift) {
        while !malloc(bytes).is_null() {}
    }
}

#[test]
fn memory_in_flight_is_waited_for() {
    in_both_modes("memory_in_flight_is_waited_for", &[("USLAB_REAPER", "0")], || {
        // A thread that frees one object of each first size can allocate one of each second size,
        // whose slabs have as many pages.
        const FIRST: [usize; 2] = [20_480, 28_672];
        const SECOND: [usize; 2] = [24_576, 32_768];
        // SAFETY: allocated by this test, freed once.
        let free_all = |blocks: [*mut u8; 2]| blocks.into_iter().for_each(|block| unsafe { free(block) });
        set_limit(0, 16 * MIB).unwrap();
        free_all(SECOND.map(malloc));
        let (mut blocks, room) = (FIRST.map(malloc), [malloc(65_536), malloc(32_768)]);
        fill();
        free_all(room);
        let (failed, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    uslab::trim(0);
                    thread::sleep(Duration::from_micros(20));
                }
            });
            for round in 0..4000 {
                free_all(blocks);
                blocks = if round % 2 == 0 { SECOND } else { FIRST }.map(malloc);
                failed.fetch_add(blocks.iter().filter(|block| block.is_null()).count(), SeqCst);
            }
            over.store(true, SeqCst);
        });
        assert_eq!(failed.load(SeqCst), 0, "allocations of 8000 failed although there was room");
    });
}

#[test]
fn a_shrinker_that_unregisters_itself_is_not_called_again() {
    in_both_modes("a_shrinker_that_unregisters_itself_is_not_called_again", &[], || {
        for in_count in [false, true] {
            let leaver: &'static Leaver = Box::leak(Box::new(Leaver {
                in_count,
                gone: AtomicBool::new(false),
                after: AtomicUsize::new(0),
            }));
            let own = register_shrinker("leaver", ShrinkerOptions::default(), leaver).unwrap();
            *LEAVERS.lock().unwrap() = Some(own);
            uslab::reclaim(usize::MAX);
            assert!(leaver.gone.load(SeqCst));
            assert_eq!(leaver.after.load(SeqCst), 0);
        }
    });
}

/// Counts many entries and frees nothing.
struct Useless(AtomicUsize);

impl Shrinker for &'static Useless {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.0.fetch_add(1, SeqCst);
        1_000_000
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        thread::sleep(Duration::from_micros(100));
        Scan::Freed(0)
    }
}

fn keeps_no_soft_limit() {
    static USELESS: Useless = Useless(AtomicUsize::new(0));
    let live = CacheBuilder::new("live").build_raw(4096).unwrap();
    let mut objects = vec![std::ptr::null_mut(); 10_000];
    assert!(live.alloc_bulk(&mut objects));
    set_limit(32 * MIB, 0).unwrap();
    let _own = register_shrinker("useless", ShrinkerOptions::default(), &USELESS).unwrap();
    let passing = CacheBuilder::new("passing").build_raw(256).unwrap();
    let (start, mut some) = (Instant::now(), vec![std::ptr::null_mut(); 5000]);
    while start.elapsed() < Duration::from_secs(2) {
        assert!(passing.alloc_bulk(&mut some));
        // SAFETY: from this cache, freed once.
        unsafe { passing.free_bulk(&some) };
    }
    // A pass over a slow shrinker that frees nothing ends after a few rounds, with two calls in
    // each.
    let (asked, passes) = (USELESS.0.load(SeqCst), 2 * start.elapsed().as_secs() as usize + 2);
    assert!((1..=passes * 10).contains(&asked), "asked {asked} times");
}

#[test]
fn a_soft_limit_that_cannot_be_kept_is_tried_twice_a_second() {
    in_both_modes("a_soft_limit_that_cannot_be_kept_is_tried_twice_a_second", &[], keeps_no_soft_limit);
}

#[test]
fn a_soft_limit_that_cannot_be_kept_without_a_background_thread() {
    in_both_modes(
        "a_soft_limit_that_cannot_be_kept_without_a_background_thread",
        &[("USLAB_REAPER", "0")],
        keeps_no_soft_limit,
    );
}

#[test]
fn registering_runs_no_callback_on_this_thread() {
    static HELD: Mutex<()> = Mutex::new(());
    struct Locks(thread::ThreadId);
    impl Shrinker for Locks {
        fn count(&self, _: &ShrinkControl) -> usize {
            assert_ne!(thread::current().id(), self.0, "the callback would deadlock with its own thread");
            drop(HELD.lock());
            1
        }

        fn scan(&self, _: &ShrinkControl) -> Scan {
            Scan::Stop
        }
    }
    in_both_modes("registering_runs_no_callback_on_this_thread", &[("USLAB_REAPER", "0")], || {
        let live = CacheBuilder::new("live").build_raw(4096).unwrap();
        let mut objects = vec![std::ptr::null_mut(); 10_000];
        assert!(live.alloc_bulk(&mut objects));
        let held = HELD.lock().unwrap();
        set_limit(32 * MIB, 0).unwrap();
        let own = register_shrinker("locks", ShrinkerOptions::default(), Locks(thread::current().id()));
        set_limit(30 * MIB, 0).unwrap();
        drop(held);
        set_limit(0, 0).unwrap();
        drop(own);
    });
}

/// Blocks of 4 KiB that go when they are asked for, a batch in `batch_us`.
struct Blocks {
    blocks: Mutex<Vec<usize>>,
    batch_us: u64,
}

impl Shrinker for Blocks {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.blocks.lock().unwrap().len()
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        thread::sleep(Duration::from_micros(self.batch_us));
        let mut blocks = self.blocks.lock().unwrap();
        let left = blocks.len().saturating_sub(control.nr_to_scan);
        let gone = blocks.split_off(left);
        drop(blocks);
        // SAFETY: the block was in the list once, and has been removed.
        gone.iter().for_each(|&block| unsafe { free(std::ptr::with_exposed_provenance_mut(block)) });
        Scan::Freed(gone.len())
    }
}

/// Several shrinkers, so that a pass can be in one while another pass is in the next.
fn goes_down_to_the_soft_limit(batch_us: u64) {
    let own = ["1", "2", "3", "4", "5", "6", "7", "8"].map(|name| {
        let blocks = Blocks { blocks: Mutex::default(), batch_us };
        register_shrinker(name, ShrinkerOptions::default(), blocks).unwrap()
    });
    let add = || own.iter().for_each(|own| own.blocks.lock().unwrap().push(malloc(4096).expose_provenance()));
    (0..104 * MIB / 4096 / own.len()).for_each(|_| add());
    set_limit(64 * MIB, 0).unwrap();
    for _ in 0..3 {
        let (start, mut least) = (Instant::now(), usize::MAX);
        while start.elapsed() < Duration::from_secs(1) || held() > 64 * MIB {
            assert!(start.elapsed() < Duration::from_secs(60), "{} MiB held", held() / MIB);
            least = least.min(held());
            thread::sleep(Duration::from_millis(5));
        }
        // A sixteenth below the limit is the goal, and the share of the last round may be more than
        // was missing.
        assert!(least > 52 * MIB, "{} MiB were left", least / MIB);
        while held() < 64 * MIB + MIB / 4 {
            add();
        }
    }
}

/// More is wanted before the pass is done.
#[test]
fn beyond_the_soft_limit_no_more_goes_than_is_wanted() {
    in_both_modes("beyond_the_soft_limit_no_more_goes_than_is_wanted", &[], || {
        goes_down_to_the_soft_limit(200)
    });
}

/// A pass that takes long does not hang: another one beside it would take as much once more.
#[test]
fn nor_where_a_pass_takes_long() {
    in_both_modes("nor_where_a_pass_takes_long", &[], || goes_down_to_the_soft_limit(8000));
}

/// Where a limit counts what is mapped, free chunks go back with their addresses; clean pages of
/// chunks in use are nothing that a failing allocation could sweep for.
#[test]
fn under_a_mapping_limit_nothing_is_swept_for_in_vain() {
    let environment = [("USLAB_REAPER", "0")];
    in_both_modes("under_a_mapping_limit_nothing_is_swept_for_in_vain", &environment, || {
        let limit = libc::rlimit { rlim_cur: 1 << 46, rlim_max: 1 << 46 };
        // SAFETY: a valid structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let kept = malloc(100);
        for bytes in [500, MIB] {
            let blocks: Vec<*mut u8> = (0..32 * MIB / bytes).map(|_| malloc(bytes)).collect();
            // SAFETY: ours, of that size, once.
            blocks.into_iter().for_each(|block| unsafe {
                block.write_bytes(1, bytes);
                free(block);
            });
        }
        assert!(uslab::internal::has_free_memory(), "what was just freed");
        uslab::trim(0);
        let mapped = uslab::stats::usage().committed_bytes;
        // Chunks that had a sheaf stay mapped.
        assert!(mapped <= 16 * MIB, "{} MiB are mapped", mapped / MIB);
        assert!(!uslab::internal::has_free_memory());
        // SAFETY: ours, once.
        unsafe { free(kept) };
    });
}

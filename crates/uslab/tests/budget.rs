//! `set_limit`: the memory held stays below the limit, allocations beyond it fail cleanly, and
//! frees always work.
//!
//! Limits belong to the process, so each test runs in a process of its own, in both modes.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};
use uslab::internal::errno;
use uslab::malloc::{free, malloc};
use uslab::reclaim::LruCache;
use uslab::{Cache, CacheBuilder, LimitError, Scan, ShrinkControl, Shrinker, ShrinkerOptions, set_limit};

const MIB: usize = 1 << 20;

fn held() -> usize {
    let usage = uslab::stats::usage();
    usage.used_bytes + usage.dirty_bytes
}

#[test]
fn a_soft_limit_above_the_hard_one_is_an_error() {
    assert_eq!(set_limit(2 * MIB, MIB), Err(LimitError::SoftAboveHard));
    assert_eq!(set_limit(usize::MAX, 0), Ok(()));
    assert_eq!(set_limit(0, usize::MAX), Ok(()));
    assert_eq!(set_limit(0, 0), Ok(()));
}

#[test]
fn at_the_hard_limit_allocations_fail_and_frees_work() {
    in_both_modes("at_the_hard_limit_allocations_fail_and_frees_work", &[], || {
        for bytes in [64, 4096, 100_000] {
            set_limit(0, 64 * MIB).unwrap();
            let mut blocks = Vec::new();
            loop {
                errno::set(0);
                let block = malloc(bytes);
                if block.is_null() {
                    break;
                }
                blocks.push(block);
                assert!(held() <= 64 * MIB, "{} held", held());
            }
            assert_eq!(errno::get(), libc::ENOMEM);
            assert!(blocks.len() * bytes > 48 * MIB, "{} of {bytes}", blocks.len());
            let mut bulk = [std::ptr::null_mut(); 1000];
            let cache = CacheBuilder::new("bulk").build_raw(100_000).unwrap();
            assert!(!cache.alloc_bulk(&mut bulk));
            // After half of it is freed, as much can be allocated again, in another size.
            let half = blocks.split_off(blocks.len() / 2);
            // SAFETY: allocated by this test, freed once.
            half.into_iter().for_each(|block| unsafe { free(block) });
            let other: Vec<*mut u8> = (0..20 * MIB / 8192).map(|_| malloc(8192)).collect();
            assert!(other.iter().all(|block| !block.is_null()));
            // SAFETY: allocated by this test, freed once.
            blocks.into_iter().chain(other).for_each(|block| unsafe { free(block) });
        }
    });
}

#[test]
fn a_limit_below_the_live_objects_fails_allocations_only() {
    in_both_modes("a_limit_below_the_live_objects_fails_allocations_only", &[], || {
        let cache: Cache<[u8; 4000]> = CacheBuilder::new("live").build().unwrap();
        let mut objects: Vec<NonNull<_>> = (0..10_000).map(|_| cache.alloc().unwrap()).collect();
        set_limit(0, 8 * MIB).unwrap();
        let more: Vec<_> = (0..1000).map_while(|_| cache.alloc()).collect();
        assert!(more.len() < 1000, "objects beyond those in sheaves came from the page layer");
        objects.extend(more);
        // SAFETY: from this cache, freed once.
        objects.drain(..).for_each(|object| unsafe { cache.free(object) });
        let again = cache.alloc().expect("the limit has room now");
        let start = Instant::now();
        while held() > 8 * MIB {
            assert!(start.elapsed() < Duration::from_secs(120), "{} held", held());
            std::thread::sleep(Duration::from_millis(20));
        }
        // SAFETY: as above.
        unsafe { cache.free(again) };
    });
}

#[test]
fn a_cache_that_shrinks_lives_below_the_hard_limit() {
    in_both_modes("a_cache_that_shrinks_lives_below_the_hard_limit", &[], || {
        set_limit(0, 32 * MIB).unwrap();
        let cache = LruCache::<u64, [u8; 1000]>::new("below").unwrap();
        for key in 0..200_000 {
            cache.insert(key, [key as u8; 1000]);
            assert!(held() <= 32 * MIB);
        }
        let stats = cache.stats();
        assert!(stats.evicted > 100_000, "{stats:?}");
        assert!(stats.entries > 5_000, "{stats:?}");
        assert_eq!(cache.get(&199_999), Some([199_999u64 as u8; 1000]));
    });
}

#[test]
fn without_a_background_thread_allocations_keep_the_soft_limit() {
    let test = "without_a_background_thread_allocations_keep_the_soft_limit";
    in_both_modes(test, &[("USLAB_REAPER", "0")], || {
        set_limit(32 * MIB, 0).unwrap();
        let cache = LruCache::<u64, [u8; 1000]>::new("soft").unwrap();
        for key in 0..100_000 {
            cache.insert(key, [key as u8; 1000]);
            assert!(held() < 40 * MIB, "{} MiB held", held() / MIB);
        }
        let stats = cache.stats();
        assert!(stats.evicted > 50_000 && stats.entries > 10_000, "{stats:?}");
    });
}

#[test]
fn above_the_soft_limit_the_background_reclaims() {
    in_both_modes("above_the_soft_limit_the_background_reclaims", &[], || {
        set_limit(32 * MIB, 0).unwrap();
        let cache = LruCache::<u64, [u8; 1000]>::new("soft").unwrap();
        let mut most = 0;
        for key in 0..100_000 {
            cache.insert(key, [key as u8; 1000]);
            most = most.max(held());
        }
        let start = Instant::now();
        while held() > 32 * MIB {
            assert!(start.elapsed() < Duration::from_secs(120), "{} MiB held", held() / MIB);
            std::thread::sleep(Duration::from_millis(20));
        }
        println!(
            "soft limit 32 MiB: {} MiB at most, below it {:.1?} after the last insert",
            most / MIB,
            start.elapsed()
        );
        assert!(cache.stats().entries > 1000, "{:?}", cache.stats());
    });
}

/// Holds memory that it can free, and records whether it was called.
struct Asked(AtomicBool, AtomicUsize);

impl Shrinker for Asked {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.1.load(Relaxed)
    }
    fn scan(&self, _: &ShrinkControl) -> Scan {
        self.0.store(true, Relaxed);
        Scan::Freed(0)
    }
}

#[test]
fn an_allocation_that_must_not_reclaim_does_not() {
    in_both_modes("an_allocation_that_must_not_reclaim_does_not", &[], || {
        let asked = Asked(AtomicBool::new(false), AtomicUsize::new(1000));
        let asked = uslab::register_shrinker("asked", ShrinkerOptions::default(), asked).unwrap();
        let cache = CacheBuilder::new("patient").build_raw(4096).unwrap();
        set_limit(0, 16 * MIB).unwrap();
        let mut objects: Vec<_> = std::iter::from_fn(|| cache.alloc_noreclaim()).collect();
        assert!(objects.len() > 2000, "{}", objects.len());
        assert!(!asked.0.load(Relaxed), "a callback ran for an allocation without reclaim");
        objects.extend(cache.alloc());
        assert!(asked.0.load(Relaxed), "no callback ran for an allocation with reclaim");
        // SAFETY: from this cache, freed once.
        objects.drain(..).for_each(|object| unsafe { cache.free(object) });
    });
}

/// Counts the passes that ask it; frees nothing.
struct Passes(AtomicUsize);

impl Shrinker for Passes {
    fn count(&self, control: &ShrinkControl) -> usize {
        // Twice in each pass: a look, and a share.
        self.0.fetch_add(usize::from(control.priority == 12), Relaxed);
        1000
    }
    fn scan(&self, _: &ShrinkControl) -> Scan {
        Scan::Freed(0)
    }
}

#[test]
fn a_soft_limit_below_the_live_objects_is_no_pass_for_each_page() {
    let test = "a_soft_limit_below_the_live_objects_is_no_pass_for_each_page";
    in_both_modes(test, &[("USLAB_REAPER", "0")], || {
        let live = CacheBuilder::new("live").build_raw(4096).unwrap();
        let objects: Vec<_> = (0..6000).map(|_| live.alloc().unwrap()).collect();
        let passes =
            uslab::register_shrinker("passes", ShrinkerOptions::default(), Passes(AtomicUsize::new(0)));
        let passes = passes.unwrap();
        let cache = LruCache::<u64, [u8; 1000]>::new("soft").unwrap();
        cache.insert(0, [0; 1000]);
        set_limit(20 * MIB, 0).unwrap();
        let (start, mut most) = (Instant::now(), 0);
        // 30 MiB of entries, on 7500 pages.
        for key in 1..30_000 {
            cache.insert(key, [1; 1000]);
            most = most.max(held());
        }
        // A rest lasts half a second, if it is not ended by growth.
        let rests = start.elapsed().as_millis() as usize / 500;
        let count = passes.0.load(Relaxed) / 2;
        println!("unmet limit: {count} passes, {rests} long rests, {} MiB at most", most / MIB);
        assert!(count > 5, "entries that can go are taken: {count} passes");
        assert!(count < 500 + rests, "{count} passes for 7500 pages");
        assert!(most < 40 * MIB, "{} MiB held", most / MIB);
        // SAFETY: from this cache, freed once.
        objects.into_iter().for_each(|object| unsafe { live.free(object) });
    });
}

/// A small cache that is full again at once after each pass.
struct Refilled(Passes);

impl Shrinker for Refilled {
    fn count(&self, control: &ShrinkControl) -> usize {
        self.0.count(control);
        10
    }
    fn scan(&self, control: &ShrinkControl) -> Scan {
        Scan::Freed(control.nr_to_scan)
    }
}

fn fill_beside_a_small_cache() {
    let live = CacheBuilder::new("live").build_raw(4096).unwrap();
    let mut objects: Vec<_> = (0..6000).map(|_| live.alloc().unwrap()).collect();
    let passes = Refilled(Passes(AtomicUsize::new(0)));
    let passes = uslab::register_shrinker("passes", ShrinkerOptions::default(), passes).unwrap();
    let start = Instant::now();
    set_limit(20 * MIB, 0).unwrap();
    // 8 MiB in 2000 pages.
    objects.extend((0..2000).map(|_| live.alloc().unwrap()));
    // With a background thread, each pass ends its sleep.
    std::thread::sleep(Duration::from_millis(600));
    while passes.0.0.load(Relaxed) == 0 {
        assert!(start.elapsed() < Duration::from_secs(120), "no pass in 120 s");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A rest lasts half a second, if growth by a sixteenth, 1.5 MiB, does not end it.
    let (count, rests) = (passes.0.0.load(Relaxed) / 2, start.elapsed().as_millis() as usize / 490);
    println!("small cache: {count} passes, {rests} long rests");
    assert!((1..12 + rests).contains(&count), "{count} passes, {rests} long rests");
    // SAFETY: from this cache, freed once.
    objects.into_iter().for_each(|object| unsafe { live.free(object) });
}

#[test]
fn a_small_cache_that_refills_is_no_pass_for_each_page() {
    let test = "a_small_cache_that_refills_is_no_pass_for_each_page";
    in_both_modes(test, &[("USLAB_REAPER", "0")], fill_beside_a_small_cache);
}

#[test]
fn in_the_background_a_small_cache_that_refills_is_no_pass_for_each_page() {
    let test = "in_the_background_a_small_cache_that_refills_is_no_pass_for_each_page";
    // Reports of the machine's own pressure would add passes.
    in_both_modes(test, &[("USLAB_PRESSURE", "off")], fill_beside_a_small_cache);
}

#[test]
fn callbacks_at_the_limit_may_allocate() {
    struct Hungry(AtomicUsize, AtomicUsize);
    impl Shrinker for Hungry {
        fn count(&self, _: &ShrinkControl) -> usize {
            1000
        }
        fn scan(&self, _: &ShrinkControl) -> Scan {
            self.0.fetch_add(1, Relaxed);
            let block = malloc(1 << 20);
            if block.is_null() {
                self.1.fetch_add(1, Relaxed);
            } else {
                // SAFETY: allocated by this test, freed once.
                unsafe { free(block) };
            }
            Scan::Freed(0)
        }
    }
    in_both_modes("callbacks_at_the_limit_may_allocate", &[], || {
        let hungry = Hungry(AtomicUsize::new(0), AtomicUsize::new(0));
        let hungry = uslab::register_shrinker("hungry", ShrinkerOptions::default(), hungry).unwrap();
        set_limit(0, 16 * MIB).unwrap();
        let blocks: Vec<*mut u8> =
            std::iter::repeat_with(|| malloc(100_000)).take_while(|block| !block.is_null()).collect();
        assert!(
            hungry.0.load(Relaxed) > 0 && hungry.1.load(Relaxed) > 0,
            "the callback must run, and its own allocation must fail without recursion"
        );
        // SAFETY: allocated by this test, freed once.
        blocks.into_iter().for_each(|block| unsafe { free(block) });
    });
}

/// A page that a handler of SIGSEGV makes writable.
static GUARDED: AtomicUsize = AtomicUsize::new(0);
const PAGE: usize = 4096;

/// Writes to the guarded page, like code under the write barrier of a garbage collector or on a
/// lazily mapped file.
struct Barrier(AtomicUsize);

impl Shrinker for Barrier {
    fn count(&self, _: &ShrinkControl) -> usize {
        1000
    }
    fn scan(&self, _: &ShrinkControl) -> Scan {
        let guarded = std::ptr::with_exposed_provenance_mut::<u8>(GUARDED.load(Relaxed));
        // SAFETY: mapped by the test; where the page is not writable, the handler makes it
        // writable.
        unsafe { guarded.write_volatile(1) };
        self.0.fetch_add(1, Relaxed);
        Scan::Stop
    }
}

extern "C" fn unguard(_: libc::c_int) {
    // SAFETY: the test's own page, and a system call that a handler may make.
    unsafe {
        libc::mprotect(
            std::ptr::with_exposed_provenance_mut(GUARDED.load(Relaxed)),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
        )
    };
}

#[test]
fn callbacks_on_the_librarys_threads_may_rely_on_handlers_of_faults() {
    in_both_modes("callbacks_on_the_librarys_threads_may_rely_on_handlers_of_faults", &[], || {
        // SAFETY: a fresh page, and a handler that makes it writable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            GUARDED.store(page.expose_provenance(), Relaxed);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = unguard as extern "C" fn(libc::c_int) as usize;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
        }
        let barrier = Barrier(AtomicUsize::new(0));
        let barrier = uslab::register_shrinker("barrier", ShrinkerOptions::default(), barrier).unwrap();
        let blocks: Vec<*mut u8> = (0..8 * MIB / 4000).map(|_| malloc(4000)).collect();
        set_limit(4 * MIB, 0).unwrap();
        let start = Instant::now();
        while barrier.0.load(Relaxed) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "the background asks");
            std::thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: allocated by this test, freed once.
        blocks.into_iter().for_each(|block| unsafe { free(block) });
    });
}

#[test]
fn a_prefilled_sheaf_reclaims_at_the_limit_if_it_may() {
    in_both_modes("a_prefilled_sheaf_reclaims_at_the_limit_if_it_may", &[], || {
        set_limit(0, 32 * MIB).unwrap();
        let entries = LruCache::<u64, [u8; 1000]>::new("entries").unwrap();
        // The sheaf's array alone takes 800 KiB, its objects 6 MiB.
        const N: usize = 100_000;
        let cache = CacheBuilder::new("prefilled").build_raw(64).unwrap();
        for _ in 0..3 {
            (0..60_000u64).for_each(|key| _ = entries.insert(key, [1; 1000]));
            let before = entries.len();
            assert!(cache.prefill_noreclaim(N).is_none());
            assert_eq!(entries.len(), before, "a callback ran for an allocation without reclaim");
            let sheaf = cache.prefill(N).expect("the call evicts entries and succeeds");
            assert!(sheaf.len() == N && entries.len() < before);
        }
        // A request that no eviction can satisfy evicts no entry.
        let before = entries.len();
        assert!(cache.prefill(usize::MAX).is_none() && cache.prefill(usize::MAX / 8).is_none());
        assert_eq!(entries.len(), before);
    });
}

//! Capacity of sheaves: every cache has its default capacity, and the capacity beyond that follows
//! the memory of slabs.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use uslab::internal::bound_bytes;
use uslab::internal::layout::Record;
use uslab::malloc::{free, malloc};
use uslab::stats::{self, CacheStats};
use uslab::{CacheBuilder, RawCache, trim};

const FLOOR_BYTES: usize = 3 << 19;

fn cache(bytes: usize) -> RawCache {
    CacheBuilder::new("capacity").build_raw(bytes).expect("a cache can be made")
}

fn record(cache: &RawCache) -> &'static Record {
    uslab::internal::record(cache.core().id())
}

fn capacity(cache: &RawCache) -> usize {
    record(cache).sheaf_capacity.load(Relaxed) as usize
}

/// Bytes of a CPU's two sheaves, or 0 if their capacity is at most `free` objects.
fn charge(cache: &RawCache, free: usize) -> usize {
    match capacity(cache) {
        capacity if capacity > free => 2 * capacity * cache.usable_bytes(),
        _ => 0,
    }
}

/// Allocates `n` objects and frees them.
fn wave(cache: &RawCache, n: usize) {
    let objects: Vec<NonNull<u8>> = (0..n).map(|_| cache.alloc().expect("memory")).collect();
    // SAFETY: allocated by this test, and unused from here on.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

#[test]
fn many_busy_caches_have_sheaves_like_few() {
    in_both_modes("many_busy_caches_have_sheaves_like_few", &[], || {
        let caches: Vec<RawCache> = (0..2000).map(|_| cache(256)).collect();
        caches.iter().for_each(|cache| wave(cache, 1));
        let busy = &caches[1600..];
        let around = |rounds: usize| {
            (0..rounds).for_each(|_| busy.iter().for_each(|cache| (0..20).for_each(|_| wave(cache, 16))));
        };
        around(5);
        assert!(busy.iter().all(|cache| capacity(cache) >= 26));
        let slow = || -> u64 {
            let of = |record: &Record| record.alloc_slow.load(Relaxed) + record.free_slow.load(Relaxed);
            busy.iter().map(record).map(of).sum()
        };
        let before = slow();
        around(10);
        let (slow, pairs) = (slow() - before, 10 * 400 * 20 * 16);
        println!("slow paths: {slow} of {pairs} pairs");
        // Drains of idle slots and moves between CPUs cost some.
        assert!(slow < pairs / 50);
    });
}

#[test]
fn the_bound_follows_the_memory_of_slabs_and_capacities_follow_it() {
    in_both_modes("the_bound_follows_the_memory_of_slabs_and_capacities_follow_it", &[], || {
        let caches: Vec<RawCache> = (0..60).map(|_| cache(512)).collect();
        let grow = || caches.iter().for_each(|cache| wave(cache, 3000));
        let charged = || -> usize { caches.iter().map(|cache| charge(cache, 30)).sum() };
        (0..40).for_each(|_| grow());
        assert!(charged() <= bound_bytes().max(FLOOR_BYTES));
        // A gigabyte of slabs that no code touches.
        let large = cache(256 << 10);
        let objects: Vec<_> = (0..4096).map(|_| large.alloc().expect("address space")).collect();
        let cpus = uslab::internal::header().cpus.load(Relaxed) as usize;
        assert!(bound_bytes() >= FLOOR_BYTES.max((1 << 30) / 64 / cpus));
        (0..40).for_each(|_| grow());
        let most = charged();
        println!("charged: {most} bytes a CPU beside a gigabyte");
        // Capacities grew to a bound that counted the slabs of the waves, too: twice the objects of
        // all waves at most, with those in sheaves. When the background thread releases slabs, the
        // bound falls, and its next look lowers the capacities.
        let waves = caches.len() * 2 * 3000 * 512;
        assert!((FLOOR_BYTES..=((1 << 30) + waves) / 64 / cpus).contains(&most), "{most}");
        let start = Instant::now();
        while charged() > bound_bytes() {
            std::thread::sleep(Duration::from_millis(20));
            assert!(start.elapsed() < Duration::from_secs(120), "{} of {}", charged(), bound_bytes());
        }
        // SAFETY: allocated by this test, and unused from here on.
        objects.into_iter().for_each(|object| unsafe { large.free(object) });
        let start = Instant::now();
        while charged() > FLOOR_BYTES {
            // The background thread lowers capacities, of busy caches too.
            grow();
            large.shrink();
            assert!(start.elapsed() < Duration::from_secs(120), "{} of {most} are left", charged());
        }
        // Idle caches lose all of their extra capacity.
        while charged() > 0 {
            trim(0);
            std::thread::sleep(Duration::from_millis(50));
            assert!(start.elapsed() < Duration::from_secs(120), "{} are left", charged());
        }
        assert_eq!(bound_bytes(), FLOOR_BYTES);
    });
}

#[test]
fn a_bound_that_is_chosen_is_kept_from_the_first_object_on() {
    const CHOSEN: (&str, &str) = ("USLAB_CPU_BYTES", "1000000");
    in_both_modes("a_bound_that_is_chosen_is_kept_from_the_first_object_on", &[CHOSEN], || {
        let caches: Vec<RawCache> = (0..200).map(|_| cache(256)).collect();
        assert_eq!(bound_bytes(), 1_000_000);
        let first = capacity(&caches[0]);
        assert!(first >= 26, "the first cache must get a larger capacity: {first}");
        for round in 0..20 {
            caches.iter().for_each(|cache| wave(cache, 100 + 50 * round));
            // Every cache keeps a capacity of two objects.
            let charged: usize = caches.iter().map(|cache| charge(cache, 2)).sum();
            assert!(charged <= 1_000_000, "{charged}");
        }
    });
}

/// The caches of malloc's sizes above 32 KiB.
fn medium() -> impl Iterator<Item = CacheStats> {
    stats::caches()
        .filter(|cache| cache.name.as_str().starts_with("malloc-") && cache.object_bytes > 32 << 10)
}

/// Allocates eight blocks of `bytes` and frees them, `times` times.
fn eight_live(bytes: usize, times: usize) {
    for _ in 0..times {
        let blocks = [(); 8].map(|()| malloc(bytes));
        // SAFETY: allocated by this test, and unused from here on.
        blocks.into_iter().for_each(|block| unsafe { free(block) });
    }
}

#[test]
fn runs_that_are_needed_again_stay_within_a_bound_for_all_sizes() {
    in_both_modes("runs_that_are_needed_again_stay_within_a_bound_for_all_sizes", &[], || {
        const MIB: usize = 1 << 20;
        let slow = || medium().map(|cache| cache.alloc_slow).sum::<u64>();
        eight_live(MIB, 20);
        let before = slow();
        eight_live(MIB, 20);
        // The thread may change its CPU.
        assert!(slow() - before <= 40, "{}", slow() - before);
        // A process that is larger, and has no background thread: no call of the program's is
        // known as such.
        let large = malloc(32 * MIB);
        for bytes in uslab::internal::entry::class_bytes().filter(|&bytes| bytes > 32 << 10) {
            eight_live(bytes, 20);
        }
        let held: u64 = medium().map(|cache| cache.sheaf_capacity * cache.object_bytes).sum();
        println!("{} KiB of runs in the sheaves of a CPU", held >> 10);
        assert!(held > 0 && held <= 4 * MIB as u64, "{held} bytes");
        // SAFETY: as above.
        unsafe { free(large) };
    });
}

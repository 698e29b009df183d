//! The core alone, and the moment at which a layer above it installs its hooks.
//!
//! Each test is a process of its own, in both modes: hooks are installed once.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use uslab::malloc::{free, malloc};
use uslab::reclaim::{LruCache, has_reaper};
use uslab::{CacheBuilder, Heap, RawCache};

const MIB: usize = 1 << 20;

fn held() -> usize {
    let usage = uslab::stats::usage();
    usage.used_bytes + usage.dirty_bytes
}

/// Objects of a cache, written, so that they have memory.
fn fill(cache: &RawCache, objects: usize) -> Vec<NonNull<u8>> {
    let object = |_| {
        let object = cache.alloc().expect("memory");
        // SAFETY: just taken from the cache, of at least that size.
        unsafe { object.as_ptr().write_bytes(1, 4096) };
        object
    };
    (0..objects).map(object).collect()
}

/// Waits until `holds`.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "in 120 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes of address space that the process has mapped.
fn mapped_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages: usize = statm.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096
}

#[test]
fn without_hooks_an_allocation_finds_what_is_free() {
    let name = "without_hooks_an_allocation_finds_what_is_free";
    in_both_modes(name, &[("USLAB_REAPER", "0")], || {
        // Sheaves hold all of it.
        let cache = CacheBuilder::new("other").sheaf_capacity(60).build_raw(256 << 10).unwrap();
        let objects = fill(&cache, 100);
        let limit = |bytes: usize| {
            let limit = libc::rlimit { rlim_cur: bytes as libc::rlim_t, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: a valid limit; lowering one's own soft limit is always allowed.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        };
        // No room for a larger block than what is free by then, in sheaves, slabs and pages.
        limit(mapped_bytes() + 4 * MIB);
        let full = malloc(16 * MIB);
        // SAFETY: from this cache, once.
        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
        let found = malloc(16 * MIB);
        limit(libc::RLIM_INFINITY as usize);
        assert!(full.is_null(), "there was room");
        assert!(!found.is_null(), "{} held", held());
        // SAFETY: ours, once.
        unsafe { free(found) };
    });
}

#[test]
fn a_thread_that_ran_without_hooks_is_taken_over() {
    in_both_modes("a_thread_that_ran_without_hooks_is_taken_over", &[], || {
        let cache = CacheBuilder::new("large").build_raw(4096).unwrap();
        let objects = fill(&cache, 32 * MIB / 4096);
        until("there is a background thread", || {
            // Slow paths ask for it.
            let object = malloc(1);
            let more = fill(&cache, 100);
            // SAFETY: ours, once.
            unsafe {
                free(object);
                more.into_iter().for_each(|object| cache.free(object));
            }
            has_reaper()
        });
        // It sleeps by now, without a limit to keep.
        std::thread::sleep(Duration::from_millis(50));
        let entries = LruCache::<u64, [u8; 1000]>::new("entries").unwrap();
        (0..50_000).for_each(|key| _ = entries.insert(key, [1; 1000]));
        uslab::set_limit(64 * MIB, 0).unwrap();
        until("the soft limit is kept", || held() <= 64 * MIB);
        assert!(entries.len() < 50_000 && !entries.is_empty());
        // SAFETY: from this cache, once.
        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    });
}

/// Makes a heap with a large object and a small one, and drops it.
fn use_heap() -> bool {
    let Some(heap) = Heap::new() else { return false };
    heap.alloc(MIB, 16).is_some() && heap.alloc(100, 16).is_some()
}

#[test]
fn heaps_work_in_a_child_that_was_forked_while_the_first_was_made() {
    for _ in 0..3 {
        in_both_modes("heaps_work_in_a_child_that_was_forked_while_the_first_was_made", &[], || {
            // Start-up, and with it the fork handlers, is over.
            // SAFETY: ours, once.
            unsafe { free(malloc(1)) };
            let start = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    (0..20).for_each(|_| assert!(use_heap()));
                });
                start.wait();
                for _ in 0..5 {
                    // SAFETY: the child calls this library and functions that are safe after a
                    // fork.
                    unsafe {
                        let child = libc::fork();
                        if child == 0 {
                            libc::alarm(30);
                            libc::_exit(i32::from(!use_heap()));
                        }
                        let mut status = 0;
                        libc::waitpid(child, &mut status, 0);
                        assert_eq!(status, 0, "a child hangs, or has no heap");
                    }
                }
            });
        });
    }
}

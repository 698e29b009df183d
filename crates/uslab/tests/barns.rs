//! Barns of a machine with several last-level caches, which this machine need not have: one thread
//! acts on each of 64 CPUs in turn.
//!
//! One test in a program of its own: the library learns the number of CPUs once, and no other
//! thread may use it meanwhile.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;

use again::again;
use std::ptr::NonNull;
use uslab::internal::{cpu, fake::FakeCpu};
use uslab::{CacheBuilder, RawCache};

const CPUS: usize = 64;
const NODES: usize = 2;
const CPUS_OF_CACHE: usize = 8;
/// Fixed, so that a sheaf holds as many throughout.
const CAPACITY: usize = 30;

/// Refills and flushes that touched slabs.
fn visits_of_slabs(cache: &RawCache) -> u64 {
    uslab::internal::account_all();
    let stats = cache.stats().expect("a cache has figures");
    stats.refills + stats.flushes
}

fn alloc(cache: &RawCache, fake: &FakeCpu, on: usize, count: usize) -> Vec<NonNull<u8>> {
    fake.set(on);
    (0..count).map(|_| cache.alloc().expect("memory")).collect()
}

fn free(cache: &RawCache, fake: &FakeCpu, on: usize, objects: Vec<NonNull<u8>>) {
    fake.set(on);
    // SAFETY: the test allocated each of them, and frees it once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

#[test]
fn sheaves_wander_within_a_cache_then_within_a_node_and_never_beyond() {
    let name = "sheaves_wander_within_a_cache_then_within_a_node_and_never_beyond";
    if let Some(output) = again(name, &[("USLAB_REAPER", "0")]) {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    cpu::pretend(CPUS, NODES, CPUS_OF_CACHE);
    let cache = CacheBuilder::new("wander").sheaf_capacity(CAPACITY).build_raw(64).expect("memory");
    // SAFETY: the library is set up, and this process has one thread.
    let fake = unsafe { FakeCpu::start(0) };

    // CPU 3 has the last-level cache of CPU 0: it takes whole sheaves that CPU 0 freed.
    let objects = alloc(&cache, &fake, 0, 12 * CAPACITY);
    let freed = objects.clone();
    free(&cache, &fake, 0, objects);
    let before = visits_of_slabs(&cache);
    let taken = alloc(&cache, &fake, 3, 8 * CAPACITY);
    assert!(taken.iter().all(|object| freed.contains(object)), "CPU 3 takes what CPU 0 freed");
    assert_eq!(visits_of_slabs(&cache), before, "CPU 3 touches no slab");
    free(&cache, &fake, 3, taken);

    // CPU 9 has another one, on the same node: it takes them too.
    let before = visits_of_slabs(&cache);
    let taken = alloc(&cache, &fake, 9, 4 * CAPACITY);
    assert!(taken.iter().all(|object| freed.contains(object)), "CPU 9 takes from the barn of CPU 0");
    assert_eq!(visits_of_slabs(&cache), before, "CPU 9 touches no slab");

    // CPU 40 is on the other node: it leaves them alone.
    let far = alloc(&cache, &fake, 40, 4 * CAPACITY);
    assert!(!far.iter().any(|object| freed.contains(object)), "CPU 40 has its node's own objects");
    free(&cache, &fake, 40, far);
    free(&cache, &fake, 9, taken);

    drop(fake);
    uslab::debug::validate().expect("the structures are whole");
    // A fork takes the locks of all barns, and gives them back on both sides.
    // SAFETY: the child uses the cache and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let object = cache.alloc();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(object.is_none())) };
    }
    let mut status = -1;
    // SAFETY: waits for the child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child allocates");
    cache.shrink();
    uslab::internal::account_all();
    let stats = cache.stats().expect("a cache has figures");
    assert_eq!((stats.sheaf_free, stats.slabs), (0, 0), "a shrink empties all barns");
}

//! Tests of the layer of CPU caches: each makes its own. Unless a test pins its thread, the kernel
//! may move it to another CPU at any time.

use super::adapt::{Miss, Streak};
use super::barn::Barn;
use super::sheaf::Size;
use super::*;
use crate::counters::{self, Tally, layout::FIRST_RECORDS, layout::Record};
use crate::os;
use crate::pages::{Temperature, boot};
use crate::rseq;
use crate::slab::{Geometry, GeometryOptions, GroupMemory, Layout, Slabs};
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};

mod broken;
mod capacity;
mod counted;
mod hidden_row;
mod lending;
mod refused;
mod used;

extern crate std;
use std::boxed::Box;
use std::collections::HashSet;
use std::vec::Vec;

/// Ids from the middle of the records. Caches of other tests take theirs from the start, and the
/// tests of slabs from the end.
static NEXT_ID: AtomicU16 = AtomicU16::new(FIRST_RECORDS as u16 / 2);

/// CPU caches for objects of `bytes`, entered into the balance of capacities.
fn cache(bytes: usize, sheaf_capacity: usize) -> (&'static CpuCache, &'static Record) {
    cache_of(1, bytes, sheaf_capacity)
}

/// The same on a machine of so many nodes.
fn cache_of(nodes: usize, bytes: usize, sheaf_capacity: usize) -> (&'static CpuCache, &'static Record) {
    let cpus = os::cpu::possible_cpus().unwrap().min(rseq::MAX_CPUS);
    cache_on(cpus, nodes, bytes, sheaf_capacity)
}

/// The same on a machine of so many CPUs, which has at least those of this one.
fn cache_on(
    cpus: usize,
    nodes: usize,
    bytes: usize,
    sheaf_capacity: usize,
) -> (&'static CpuCache, &'static Record) {
    cache_by(cpus, nodes, bytes, sheaf_capacity, |slabs| slabs)
}

/// As [`cache_on`], with slabs that `change` has changed.
fn cache_by(
    cpus: usize,
    nodes: usize,
    bytes: usize,
    sheaf_capacity: usize,
    change: impl FnOnce(Slabs) -> Slabs,
) -> (&'static CpuCache, &'static Record) {
    set_up!();
    let id = NEXT_ID.fetch_add(1, Relaxed);
    let geometry =
        Geometry::new(Layout { size: bytes, align: 8 }, GeometryOptions::default(), cpus).expect("valid");
    let slots = boot::alloc(CpuCache::slot_bytes(cpus, nodes), 64);
    let lists = boot::alloc(Slabs::group_bytes(nodes, nodes), 64);
    let barns = boot::alloc(CpuCache::barn_bytes(nodes, nodes), 64);
    let tallies = boot::alloc(Tally::bytes(cpus), 64);
    assert!(!slots.is_null() && !lists.is_null() && !barns.is_null());
    // SAFETY: fresh boot memory of the sizes asked for; the cache is leaked.
    unsafe {
        let owner = CpuCache::owner(slots, owners::take(cpus), id);
        let tallies = Tally::lines(tallies, cpus, geometry.object_bytes);
        let memory = GroupMemory { start: lists, groups: nodes, nodes, shared: None, tallies };
        let slabs = change(Slabs::new(owner, "test", geometry, Temperature::Hot, None, memory));
        let parts =
            Parts { slots, barns, cpus, groups: nodes, nodes, sheaf_capacity, caching: true, hides: false };
        let cache: &CpuCache = Box::leak(Box::new(CpuCache::new(slabs, parts)));
        cache.enter();
        (cache, counters::record(id))
    }
}

fn alloc(cache: &CpuCache, n: usize) -> Vec<*mut u8> {
    let one = |_| {
        // SAFETY: the slots are the cache's.
        let object = unsafe { rseq::pop(cache.fast_slots()) };
        if !object.is_null() {
            return object;
        }
        let mut out = [core::ptr::null_mut()];
        assert!(cache.alloc_slow(&mut out));
        out[0]
    };
    (0..n).map(one).collect()
}

fn free(cache: &CpuCache, objects: &[*mut u8]) {
    for &object in objects {
        // SAFETY: the tests free what they allocated, once.
        unsafe {
            if !rseq::push(cache.fast_slots(), object) {
                cache.free_slow(&[object]);
            }
        }
    }
}

/// Drains everything, then counts the live objects.
fn live(cache: &CpuCache) -> usize {
    cache.drain_all();
    let mut live = 0;
    cache.slabs().for_each_taken(|_| {
        live += 1;
        true
    });
    live
}

/// Retires a cache after its test, so that it holds no capacity that other tests need.
fn finish(cache: &CpuCache) {
    assert_eq!(live(cache), 0);
    cache.retire();
    cache.slabs().shrink();
}

#[test]
fn an_empty_slab_of_any_node_is_free_memory() {
    let (cache, _) = cache_of(2, 64, 8);
    assert!(!cache.has_free());
    for node in [0, 1] {
        let mut object = [core::ptr::null_mut()];
        assert_eq!(cache.slabs().take(node, &mut object, 1), 1);
        assert!(!cache.has_free());
        // SAFETY: just taken, and unused.
        unsafe { cache.slabs().free(&object) };
        assert!(cache.has_free(), "node {node}");
        assert!(cache.slabs().shrink() > 0);
        assert!(!cache.has_free());
    }
}

#[test]
fn objects_come_back_whichever_way_they_go() {
    let (cache, _) = cache(64, 0);
    for n in [1, 59, 61, 200, 1000, 5000] {
        let objects = alloc(cache, n);
        assert_eq!(objects.iter().collect::<HashSet<_>>().len(), n);
        free(cache, &objects);
    }
    let mut bulk = std::vec![core::ptr::null_mut(); 3000];
    assert!(cache.alloc_slow(&mut bulk));
    assert_eq!(bulk.iter().collect::<HashSet<_>>().len(), 3000);
    // SAFETY: just allocated.
    unsafe { cache.free_slow(&bulk) };
    finish(cache);
}

#[test]
fn a_drain_empties_sheaves_and_barns() {
    let (cache, record) = cache(64, 0);
    let objects = alloc(cache, 2000);
    free(cache, &objects[..1500]);
    cache.account_all();
    assert!(record.sheaf_free.load(Relaxed) > 0, "sheaves hold objects");
    assert_eq!(live(cache), 500);
    cache.account_all();
    assert_eq!(record.sheaf_free.load(Relaxed), 0);
    free(cache, &objects[1500..]);
    finish(cache);
}

#[test]
fn asking_for_figures_does_not_change_them() {
    let (cache, record) = cache(64, 0);
    let mut held = Vec::new();
    for _ in 0..500 {
        held.extend(alloc(cache, 1));
        cache.slabs().fold();
        let counted = record.sheaf_free.load(Relaxed);
        cache.account_all();
        let exact = record.sheaf_free.load(Relaxed);
        // Only the one object of the fast path may be uncounted.
        assert!(counted.abs_diff(exact) <= 1, "{counted} for {exact} after {} objects", held.len());
    }
    free(cache, &held);
    finish(cache);
}

#[test]
fn drains_lose_nothing_under_users_on_all_cpus() {
    let (cache, _) = cache(96, 0);
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..6)
            .map(|user| {
                scope.spawn(move || {
                    for round in 0..300 {
                        let objects = alloc(cache, 1 + (user * 31 + round * 7) % 150);
                        for &object in &objects {
                            // SAFETY: ours, aligned to 8.
                            unsafe { object.cast::<usize>().write(user) };
                        }
                        for &object in &objects {
                            // SAFETY: as above.
                            assert_eq!(unsafe { object.cast::<usize>().read() }, user);
                        }
                        free(cache, &objects);
                    }
                })
            })
            .collect();
        while users.iter().any(|user| !user.is_finished()) {
            cache.drain_all();
            cache.drain_slots(&mut Drain::of_idle(Keep::Target));
            std::thread::yield_now();
        }
    });
    finish(cache);
}

#[test]
fn capacity_grows_where_waves_exceed_it_and_stays_bounded() {
    let (cache, _) = cache(64, 0);
    let start = cache.capacity();
    for _ in 0..50 {
        let objects = alloc(cache, 3000);
        free(cache, &objects);
    }
    assert!(cache.capacity() > start, "{start} grew to {}", cache.capacity());
    // A sheaf holds at most half a mebibyte of objects, and at most the largest sheaf's capacity.
    assert!(
        cache.capacity() * 64 <= 512 << 10 && cache.capacity() <= Size(sheaf::SIZES as u8 - 1).capacity()
    );
    finish(cache);
}

#[test]
fn runs_beyond_the_largest_sheaves_are_no_reason_to_grow() {
    let streaks = |kind: Miss, misses: u32| (0..misses).fold(Streak(0), |streak, _| streak.with(kind));
    let (cache, _) = cache(64, 0);
    let start = cache.capacity();
    let other = |streak: Streak| adapt::note_miss(cache, cache.tally(), streak, Miss::Overflow, false);
    other(streaks(Miss::Underflow, 1000));
    other(streaks(Miss::Overflow, 3));
    other(Streak(0));
    assert_eq!(cache.capacity(), start);
    // Caches of other tests may use up the bound for a while.
    let grows = (0..2000).any(|_| {
        std::thread::sleep(core::time::Duration::from_millis(1));
        other(streaks(Miss::Underflow, 3));
        cache.capacity() > start
    });
    assert!(grows);
    finish(cache);
}

#[test]
fn after_a_long_run_of_frees_the_oldest_but_for_a_sheaf_come_first() {
    const CAPACITY: usize = 14;
    let (cache, _) = cache(64, CAPACITY);
    // A thread that moves to another CPU meanwhile finds other sheaves.
    let is_in_order = (0..50).any(|_| {
        let objects = alloc(cache, 4000);
        let freed: Vec<_> = objects.iter().step_by(2).copied().collect();
        free(cache, &freed);
        let again = alloc(cache, freed.len());
        let newest: HashSet<_> = freed[freed.len() - 100..].iter().collect();
        let early = again[..1000].iter().filter(|&object| newest.contains(object)).count();
        free(cache, &again);
        objects.iter().skip(1).step_by(2).for_each(|&object| free(cache, &[object]));
        cache.drain_all();
        early <= CAPACITY
    });
    assert!(is_in_order);
    finish(cache);
}

#[test]
fn a_capacity_asked_for_does_not_grow() {
    let (cache, _) = cache(64, 10);
    for _ in 0..50 {
        let objects = alloc(cache, 1000);
        free(cache, &objects);
    }
    // The capacity may be smaller: the other tests may have left less of the bound.
    assert!(cache.capacity() <= Size::holding(10).capacity());
    finish(cache);
}

#[test]
fn sheaves_of_all_caches_together_stay_below_the_bound() {
    let caches: Vec<_> = (0..24).map(|n| cache(512 << (n % 4), 0)).collect();
    for round in 0..20 {
        for (n, (cache, _)) in caches.iter().enumerate() {
            let objects = alloc(cache, 100 + (n * 13 + round * 29) % 300);
            free(cache, &objects);
        }
        let charge = |cache: &CpuCache| cache.adapt().charged();
        let held: usize = caches.iter().map(|(cache, _)| charge(cache)).sum();
        assert!(held <= adapt::bound_bytes(), "{held} bytes in round {round}");
    }
    caches.iter().for_each(|(cache, _)| finish(cache));
}

#[test]
fn every_cache_has_its_default_however_many_there_are() {
    let caches: Vec<_> = (0..300).map(|_| cache(256, 0)).collect();
    for (cache, _) in &caches {
        let objects = alloc(cache, 16);
        free(cache, &objects);
        assert!(cache.capacity() >= 26, "{}", cache.capacity());
    }
    caches.iter().for_each(|(cache, _)| finish(cache));
}

#[test]
fn what_a_cache_that_rests_was_charged_is_free_again() {
    let (cache, record) = cache(64, 0);
    let start = cache.capacity();
    // Caches of other tests may use up the bound for a while.
    let grows = (0..2000).any(|_| {
        let objects = alloc(cache, 3000);
        free(cache, &objects);
        cache.capacity() > start && cache.adapt().charged() > 0
    });
    assert!(grows);
    cache.drain_all();
    // The first tick may find a sheaf that another thread put into a barn meanwhile.
    let rests = (0..3).any(|_| cache.flush_idle(&mut Drain::of_idle(Keep::Pages)));
    assert!(rests && cache.capacity() == start);
    assert_eq!(record.sheaf_capacity.load(Relaxed) as usize, start);
    finish(cache);
}

#[test]
fn the_smallest_sheaves_share_no_line() {
    set_up!();
    let sheaves: Vec<_> = (0..50).map(|_| sheaf::alloc(Size(0), 0)).collect();
    assert!(sheaves.iter().all(|&sheaf| !sheaf.is_null() && (sheaf as usize).is_multiple_of(64)));
    // SAFETY: empty and owned.
    sheaves.into_iter().for_each(|sheaf| unsafe { sheaf::free(sheaf) });
}

#[test]
fn sheaf_sizes_double_and_hold_what_they_say() {
    for size in (0..sheaf::SIZES as u8).map(Size) {
        assert_eq!(Size::holding(size.capacity()), size);
        assert!(size.0 == 0 || Size::holding(size.capacity() - 1).capacity() >= size.capacity() - 1);
    }
    assert_eq!(Size::holding(usize::MAX).0 as usize, sheaf::SIZES - 1);
    set_up!();
    for objects in [1, 2, 100, 2046, 2047, 10_000] {
        let sheaf = sheaf::alloc_holding(objects, 0);
        assert!(!sheaf.is_null());
        assert!(sheaf::Owned(sheaf).capacity() >= objects);
        // SAFETY: empty and owned.
        unsafe { sheaf::free(sheaf) };
    }
}

#[test]
fn a_barn_keeps_a_bounded_number_of_sheaves() {
    set_up!();
    let barn = Barn::new(Barn::full_bytes_for(0));
    let full = || {
        let sheaf = sheaf::alloc(Size(1), 0);
        sheaf::Owned(sheaf).push_from(&[core::ptr::dangling_mut()]);
        sheaf
    };
    assert!(barn.take_full(&mut core::ptr::null_mut()).is_none());
    let mut left = 0;
    let refused = loop {
        let sheaf = full();
        if !barn.put_full(sheaf, 64) {
            break sheaf;
        }
        left += 1;
    };
    assert_eq!(left, 10);
    // With large objects a barn keeps two.
    assert!(!barn.put_full(refused, 1 << 20));
    let mut empty = core::ptr::null_mut();
    let taken = barn.take_full(&mut empty).expect("it has full ones");
    assert!(barn.take_empty().is_null());
    empty = full();
    sheaf::Owned(empty).set_count(0);
    let second = barn.take_full(&mut empty).expect("it has full ones");
    assert!(empty.is_null(), "the empty one is in the barn");
    let mut sheaves = std::vec![taken, second, refused];
    sheaves.extend(core::iter::from_fn(|| barn.take_any()));
    assert_eq!(sheaves.len(), left + 2);
    for sheaf in sheaves {
        sheaf::Owned(sheaf).set_count(0);
        // SAFETY: empty and owned.
        unsafe { sheaf::free(sheaf) };
    }
}

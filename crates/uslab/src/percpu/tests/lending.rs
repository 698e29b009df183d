//! The lending row of a cache with a row for each of two nodes, of which this machine need have one
//! alone.

use super::super::counts::held;
use super::super::drain::Drain;
use super::*;
use crate::rseq::{Slot, dummy_of, is_dummy};

/// A cache that lends; `None` in locked mode.
fn lending() -> Option<&'static CpuCache> {
    let (cache, _) = cache_with_rows(2);
    let is_rseq = rseq::mode() == rseq::Mode::Rseq;
    assert_eq!(cache.lends(), is_rseq);
    is_rseq.then_some(cache)
}

/// As [`cache_of`], where the page map names a row of each node.
fn cache_with_rows(nodes: usize) -> (&'static CpuCache, &'static Record) {
    let cpus = os::cpu::possible_cpus().unwrap().min(rseq::MAX_CPUS);
    let distance = CpuCache::owner_distance(cpus, nodes, false);
    cache_by(cpus, nodes, 64, 0, |slabs| {
        // SAFETY: the slots have a row for each node, one behind the other.
        unsafe { slabs.with_owners_apart(distance) }
    })
}

fn in_lending_row(cache: &CpuCache) -> usize {
    cache.counted_slots().iter().map(held).sum()
}

fn lent_sheaves(cache: &CpuCache) -> impl Iterator<Item = &Slot> {
    cache.counted_slots().iter().filter(|slot| !is_dummy(slot.main.load(Relaxed)))
}

#[test]
fn a_cache_lends_nothing_while_a_profile_counts() {
    let Some(cache) = lending() else { return };
    cache.set_counted(true);
    let objects = alloc(cache, 200);
    assert_eq!(in_lending_row(cache), 0);
    free(cache, &objects);
    cache.set_counted(false);
    let objects = alloc(cache, 200);
    free(cache, &objects);
    assert!(in_lending_row(cache) > 0);
    assert_eq!(live(cache), 0);
    finish(cache);
}

#[test]
fn a_drained_lending_slot_has_the_dummy_of_its_cpu() {
    let Some(cache) = lending() else { return };
    let objects = alloc(cache, 200);
    free(cache, &objects);
    assert!(lent_sheaves(cache).count() > 0);
    cache.drain_slots(&mut Drain::of_all());
    for (cpu, slot) in cache.counted_slots().iter().enumerate() {
        assert_eq!(slot.main.load(Relaxed), dummy_of(cpu), "CPU {cpu}");
    }
    finish(cache);
}

#[test]
fn a_lending_sheaf_that_is_broken_is_found_before_it_is_used() {
    let Some(cache) = lending() else { return };
    // The kernel may move the thread to another CPU: break them all.
    let objects = alloc(cache, 200);
    free(cache, &objects);
    let counts: Vec<u32> = lent_sheaves(cache)
        .map(|slot| {
            // SAFETY: the sheaf is the cache's, which this thread alone uses.
            unsafe { (*slot.main.load(Relaxed)).count.swap(1 << 20, Relaxed) }
        })
        .collect();
    let slots: Vec<(&Slot, u32)> = lent_sheaves(cache).zip(counts).collect();
    assert!(!slots.is_empty());
    let found = (0..100).find_map(|_| {
        let take = std::panic::AssertUnwindSafe(|| cache.take_and_lend());
        let error = std::panic::catch_unwind(take).err()?;
        Some(error.downcast_ref::<std::string::String>().expect("a text").clone())
    });
    let found = found.expect("a report");
    assert!(found.starts_with("corrupted sheaf at "), "{found}");
    // Other tests drain idle caches.
    for (slot, count) in slots {
        let sheaf = slot.main.load(Relaxed);
        if !is_dummy(sheaf) {
            // SAFETY: as above.
            unsafe { (*sheaf).count.store(count, Relaxed) };
        }
    }
}

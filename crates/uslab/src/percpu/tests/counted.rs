//! Counted rows: their objects are found, checked and given back like those of other sheaves.

use super::super::counts::held;
use super::super::drain::{Drain, Keep};
use super::super::valid::Walked;
use super::*;
use crate::os::region::Region;

/// A cache whose counted row holds objects that one thread charged; `None` in locked mode.
fn counting() -> Option<&'static CpuCache> {
    let (cache, _) = cache(64, 0);
    if cache.make_counted_row().is_none() {
        assert!(!needs_counted_row());
        return None;
    }
    // The kernel may move the thread to a CPU whose counted slot still has nothing.
    for _ in 0..100 {
        let charged = cache.charge(most_counted(64), || 1 << 20);
        let object = cache.take_counted(charged.max(1));
        free(cache, &[object]);
        if in_counted_row(cache) > 0 {
            return Some(cache);
        }
    }
    panic!("no counted sheaf was filled");
}

fn in_counted_row(cache: &CpuCache) -> usize {
    cache.counted_slots().iter().map(held).sum()
}

#[test]
fn an_idle_counted_sheaf_goes_to_the_slabs_at_the_second_look() {
    let Some(cache) = counting() else { return };
    let tick = || {
        let mut drain = Drain::of_idle(Keep::Pages);
        cache.flush_idle(&mut drain)
    };
    assert!(!tick(), "the first tick finds it in use");
    assert!(in_counted_row(cache) > 0);
    assert!(!tick());
    assert_eq!(in_counted_row(cache), 0);
    assert!((0..3).any(|_| tick()), "then it rests");
    finish(cache);
}

#[test]
fn the_counted_row_is_emptied_when_a_profile_stops() {
    let Some(cache) = counting() else { return };
    cache.drain_counted(&mut Drain::of_idle(Keep::Target));
    assert_eq!(in_counted_row(cache), 0);
    finish(cache);
}

#[test]
fn counted_sheaves_are_checked_and_listed() {
    let Some(cache) = counting() else { return };
    assert!(matches!(cache.check(), Ok(Walked { .. })) && cache.check_heads().is_ok());
    let filled = cache.counted_slots().iter().find(|slot| held(slot) > 0).expect("a sheaf");
    let sheaf = filled.main.load(Relaxed);
    let mut found: Vec<Region> = Vec::new();
    cache.for_each_region(&mut |region| found.push(region));
    let region = found.iter().find(|region| region.start == sheaf.addr()).expect("listed");
    assert!(region.bytes > held(filled) * size_of::<*mut u8>(), "{}", region.bytes);

    filled.spare.store(sheaf, Relaxed);
    let invariant = "a counted slot has no spare";
    assert_eq!(cache.check().expect_err("broken").invariant, invariant);
    assert_eq!(cache.check_heads().expect_err("broken").invariant, invariant);
    filled.spare.store(rseq::dummy(), Relaxed);
    cache.drain_counted(&mut Drain::of_idle(Keep::Target));
    finish(cache);
}

#[test]
fn a_refill_serves_many_small_objects_and_few_large_ones() {
    let served = [16, 64, 80, 128, 160, 1024, 2048, 16 << 10, 32 << 10].map(most_counted);
    assert_eq!(served, [63, 63, 31, 31, 15, 15, 8, 1, 1]);
}

//! Hidden rows: the fast path finds none of their objects, and all else does.

use super::super::access::Sequences;
use super::super::counts::held;
use super::super::drain::{Drain, Keep};
use super::super::sheaf;
use super::*;

/// A cache that hides its sheaves, and serves from them; `None` in locked mode.
fn hiding() -> Option<&'static CpuCache> {
    let (cache, _) = cache(64, 8);
    let objects = alloc(cache, 100);
    free(cache, &objects);
    if rseq::mode() == rseq::Mode::Locked {
        cache.begin_hiding();
        assert!(!cache.lacks_hidden_row());
        return None;
    }
    cache.begin_hiding();
    assert!(os::membarrier::restart_all());
    cache.drain_slots(&mut Drain::of_all());
    assert!(cache.is_bypassed(), "calls go to the slabs until there is a row");
    // SAFETY: no memory of an earlier row.
    assert!(!unsafe { cache.make_hidden_row(core::ptr::null_mut(), 1) }.is_null());
    assert!(!cache.is_bypassed());
    let objects = alloc(cache, 100);
    free(cache, &objects);
    assert!(in_hidden_row(cache) > 0);
    Some(cache)
}

fn end_hiding(cache: &CpuCache) {
    cache.end_hiding(&mut Drain::of_idle(Keep::Target));
}

fn in_hidden_row(cache: &CpuCache) -> usize {
    cache.hidden_slots().iter().map(held).sum()
}

fn in_own_slots(cache: &CpuCache) -> usize {
    cache.slots().iter().map(held).sum()
}

#[test]
fn the_fast_path_finds_no_object_while_a_cache_hides_its_sheaves() {
    let Some(cache) = hiding() else { return };
    for _ in 0..1000 {
        // SAFETY: the slots are the cache's.
        assert!(unsafe { rseq::pop(cache.fast_slots()) }.is_null());
        let object = alloc(cache, 1)[0];
        // SAFETY: just allocated.
        assert!(!unsafe { rseq::push(cache.fast_slots(), object) });
        free(cache, &[object]);
    }
    assert_eq!(in_own_slots(cache), 0);
    end_hiding(cache);
    assert_eq!(in_hidden_row(cache), 0);
    let objects = alloc(cache, 10);
    free(cache, &objects);
    assert!(in_own_slots(cache) > 0);
    finish(cache);
}

#[test]
fn the_sheaves_of_a_hidden_row_are_checked_counted_and_flushed_when_idle() {
    let Some(cache) = hiding() else { return };
    assert!(cache.check().is_ok() && cache.check_heads().is_ok());
    assert!(cache.has_free());
    let tick = || cache.flush_idle(&mut Drain::of_idle(Keep::Pages));
    assert!((0..5).any(|_| tick()));
    assert_eq!(in_hidden_row(cache), 0);
    let kept = alloc(cache, 30);
    assert_eq!(live(cache), 30);
    free(cache, &kept);
    finish(cache);
}

/// A thread that chose the row before the change, and installs its sheaf after it.
#[test]
fn a_sheaf_that_reaches_the_other_row_is_drained() {
    let Some(cache) = hiding() else { return };
    for is_hiding in [true, false] {
        if !is_hiding {
            end_hiding(cache);
        }
        let row = if is_hiding { cache.slots() } else { cache.hidden_slots() };
        // SAFETY: a row of the cache, for every CPU, and the mode is rseq.
        let access = unsafe { Sequences::new(row, Some(0)) }.expect("this CPU has a slot");
        let objects = alloc(cache, 3);
        let mut late = sheaf::Owned(sheaf::alloc(Size(2), 0));
        super::super::ownership::claim(late.0);
        late.push_from(&objects);
        cache.install(&access, late.0, super::super::access::home_of(&access));
        assert_eq!(row.iter().map(held).sum::<usize>(), 0, "is_hiding: {is_hiding}");
    }
    finish(cache);
}

#[test]
fn caches_that_stop_hiding_share_a_barrier() {
    let caches = [hiding(), hiding(), hiding()];
    let calls = os::membarrier::counted::calls();
    let mut drain = Drain::of_idle(Keep::Target);
    caches.iter().flatten().for_each(|cache| cache.end_hiding(&mut drain));
    drop(drain);
    assert!(os::membarrier::counted::calls() - calls <= 1);
    for cache in caches.into_iter().flatten() {
        assert_eq!(in_hidden_row(cache), 0);
        finish(cache);
    }
}

//! A sheaf of one's own: objects come and go by any way, the figures add up, a shrink is heard, and
//! nothing is lost, in both modes.
#![cfg(not(loom))]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "storm/child.rs"]
mod child;

use proptest::prelude::*;
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uslab::{Cache, CacheBox, CacheBuilder, LocalBox, RawCache};

fn cache(bytes: usize) -> RawCache {
    CacheBuilder::new("local").build_raw(bytes).unwrap()
}

fn alloc_many(n: usize, mut alloc: impl FnMut() -> Option<NonNull<u8>>) -> Vec<NonNull<u8>> {
    (0..n).map(|_| alloc().unwrap()).collect()
}

#[test]
fn objects_of_a_local_sheaf_and_of_cpus_may_be_freed_either_way() {
    let cache = cache(72);
    let local = cache.local().unwrap();
    let (ours, theirs) = (alloc_many(3000, || local.alloc()), alloc_many(3000, || cache.alloc()));
    let all: HashSet<_> = ours.iter().chain(&theirs).collect();
    assert_eq!(all.len(), 6000, "each object is handed out once");
    // SAFETY: from this cache, unused.
    ours.into_iter().for_each(|object| unsafe { cache.free(object) });
    // SAFETY: as above.
    theirs.into_iter().for_each(|object| unsafe { local.free(object) });
    drop(local);
    cache.destroy().unwrap();
}

#[test]
fn figures_add_up_though_they_are_asked_for_while_local_sheaves_go() {
    let cache = cache(88);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                cache.stats();
            }
        });
        for _ in 0..20_000 {
            let local = cache.local().unwrap();
            let object = local.alloc().unwrap();
            // SAFETY: from this cache, unused.
            unsafe { local.free(object) };
        }
        is_over.store(true, Relaxed);
    });
    cache.shrink();
    let stats = cache.stats().unwrap();
    assert_eq!((stats.sheaf_free, stats.active_objects), (0, 0));
    cache.destroy().unwrap();
}

#[test]
fn other_threads_free_what_a_local_sheaf_gave_out() {
    let cache = cache(200);
    let local = cache.local().unwrap();
    for _ in 0..20 {
        let objects =
            alloc_many(500, || local.alloc()).iter().map(|p| p.as_ptr() as usize).collect::<Vec<_>>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = cache.local().unwrap();
                for &object in &objects {
                    // SAFETY: from this cache, unused.
                    unsafe { other.free(NonNull::new(object as *mut u8).unwrap()) };
                }
            });
        });
    }
    drop(local);
    assert_eq!(cache.stats().unwrap().active_objects, 0);
    cache.destroy().unwrap();
}

#[test]
fn free_objects_of_a_local_sheaf_are_counted_as_free() {
    let cache = cache(96);
    let local = cache.local().unwrap();
    let mut objects = alloc_many(10, || local.alloc());
    for step in 0..200 {
        if step % 3 == 0 {
            // SAFETY: from this cache, unused.
            unsafe { local.free(objects.pop().unwrap()) };
        } else {
            objects.push(local.alloc().unwrap());
        }
        let stats = cache.stats().unwrap();
        assert_eq!(stats.active_objects, objects.len() as u64);
        assert_eq!(stats.total_objects, stats.active_objects + stats.slab_free + stats.sheaf_free);
        assert!(stats.sheaf_free >= local.held() as u64);
    }
    // SAFETY: as above.
    objects.into_iter().for_each(|object| unsafe { local.free(object) });
}

#[test]
fn a_shrink_is_heard_at_the_next_refill() {
    let cache = cache(1000);
    let local = cache.local().unwrap();
    let keep = alloc_many(400, || local.alloc());
    // SAFETY: from this cache, unused.
    keep.into_iter().for_each(|object| unsafe { local.free(object) });
    cache.shrink();
    let held = local.held();
    assert!(held > 0, "no other thread takes from the sheaf");
    // The spare's objects go to the slabs when the main sheaf is empty, instead of serving on.
    let mut live = vec![local.alloc().unwrap()];
    let mut left = held - 1;
    while local.held() == left && left > 0 {
        live.push(local.alloc().unwrap());
        left -= 1;
    }
    assert!(left > 0, "the sheaf was asked for its objects");
    // SAFETY: as above.
    unsafe { cache.free_bulk(&live.iter().map(|object| object.as_ptr()).collect::<Vec<_>>()) };
    assert!(local.flush() < 400);
    assert_eq!(local.held(), 0);
    assert!(cache.shrink() > 0);
    assert_eq!(cache.stats().unwrap().slabs, 0);
}

#[test]
fn a_dropped_local_sheaf_gives_everything_back() {
    let cache = cache(64);
    for _ in 0..50 {
        let local = cache.local().unwrap();
        let mut objects = [std::ptr::null_mut(); 100];
        assert!(local.alloc_bulk(&mut objects));
        // SAFETY: from this cache, unused.
        unsafe { local.free_bulk(&objects) };
    }
    let stats = cache.stats().unwrap();
    assert_eq!(stats.active_objects, 0);
    cache.shrink();
    assert_eq!(cache.stats().unwrap().slabs, 0);
    cache.destroy().unwrap();
}

#[test]
fn a_forgotten_local_sheaf_keeps_its_cache() {
    let cache = cache(64);
    let local = cache.local().unwrap();
    let object = local.alloc().unwrap();
    // SAFETY: from this cache, unused.
    unsafe { local.free(object) };
    std::mem::forget(local);
    let (cache, busy) = cache.destroy().unwrap_err();
    assert!(busy.objects > 0);
    assert!(uslab::debug::validate().is_ok());
    // Without objects in its sheaf it does not.
    let empty = CacheBuilder::new("local").build_raw(64).unwrap();
    std::mem::forget(empty.local().unwrap());
    empty.destroy().unwrap();
    drop(cache.local());
    assert!(uslab::debug::validate().is_ok());
}

#[test]
fn caches_without_sheaves_serve_a_local_one_call_by_call() {
    for flags in [uslab::Flags::NO_CACHING, uslab::Flags::POISON] {
        let cache = CacheBuilder::new("local").flags(flags).build_raw(64).unwrap();
        let local = cache.local().unwrap();
        let mut objects = alloc_many(200, || local.alloc());
        let mut more = [std::ptr::null_mut(); 70];
        assert!(local.alloc_bulk(&mut more));
        objects.extend(more.iter().map(|&object| NonNull::new(object).unwrap()));
        assert_eq!(local.held(), 0);
        assert_eq!(objects.iter().collect::<HashSet<_>>().len(), 270);
        // SAFETY: from this cache, unused.
        objects.into_iter().for_each(|object| unsafe { local.free(object) });
        assert_eq!(local.held(), 0);
        drop(local);
        cache.destroy().unwrap();
    }
}

#[test]
fn a_cache_that_becomes_debugged_takes_the_sheaf_at_the_next_flush() {
    let cache = CacheBuilder::new("local-switched").build_raw(64).unwrap();
    let local = cache.local().unwrap();
    let object = local.alloc().unwrap();
    // SAFETY: from this cache, unused.
    unsafe { local.free(object) };
    assert!(local.held() > 0);
    uslab::debug::switch("F,local-switched").unwrap();
    let objects = alloc_many(300, || local.alloc());
    assert_eq!(local.held(), 0);
    // SAFETY: as above.
    objects.into_iter().for_each(|object| unsafe { local.free(object) });
    assert_eq!(local.held(), 0);
    assert_eq!(cache.stats().unwrap().active_objects, 0);
    uslab::debug::switch("-,local-switched").unwrap();
    let object = local.alloc().unwrap();
    assert!(local.held() > 0);
    // SAFETY: as above.
    unsafe { local.free(object) };
}

#[test]
fn a_fork_child_keeps_the_forking_threads_sheaf_and_leaks_the_others_by_count() {
    let cache = cache(80);
    let (local, (ready, is_ready)) = (cache.local().unwrap(), std::sync::mpsc::channel());
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let cache = &cache;
        scope.spawn(move || {
            let other = cache.local().unwrap();
            let object = other.alloc().unwrap();
            // SAFETY: from this cache, unused.
            unsafe { other.free(object) };
            ready.send(other.held()).unwrap();
            let _ = is_done.recv();
        });
        let theirs = is_ready.recv().unwrap();
        let object = local.alloc().unwrap();
        let child = child::fork(|| {
            // SAFETY: from this cache, unused.
            unsafe { local.free(object) };
            let mut objects = [std::ptr::null_mut(); 500];
            if !local.alloc_bulk(&mut objects) {
                return Err("no objects");
            }
            // SAFETY: as above.
            unsafe { cache.free_bulk(&objects) };
            let stats = cache.stats().ok_or("no figures")?;
            let lost = stats.sheaf_free >= theirs as u64;
            if stats.active_objects == 0 && lost { Ok(()) } else { Err("the figures do not add up") }
        });
        child::wait(child).unwrap();
        // SAFETY: as above.
        unsafe { local.free(object) };
        drop(done);
    });
    drop(local);
    cache.destroy().unwrap();
}

#[test]
fn boxes_drop_their_values_and_change_hands() {
    static CACHE: Cache<String> = Cache::new("local-strings");
    let local = CACHE.local().unwrap();
    let mut one = local.insert("one".to_string()).unwrap();
    one.push('!');
    assert_eq!((&**one, local.insert("two".into()).unwrap().into_inner()), ("one!", "two".to_string()));
    // SAFETY: boxes of one cache.
    let one = unsafe { CacheBox::from_raw(&CACHE, one.into_raw()) };
    // SAFETY: as above.
    let one = unsafe { LocalBox::from_raw(&local, one.into_raw()) };
    assert_eq!(format!("{one:?} {local:?}").split(' ').next(), Some("\"one!\""));
    drop(one);
    drop(local);
    assert_eq!(CACHE.stats().unwrap().active_objects, 0);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc(bool),
    Free(bool, usize),
    AllocBulk(bool, usize),
    FreeBulk(bool, usize),
    Flush,
    Shrink,
    Renew,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let way = any::<bool>();
    prop::collection::vec(
        prop_oneof![
            4 => way.prop_map(Step::Alloc),
            4 => (way, any::<usize>()).prop_map(|(way, at)| Step::Free(way, at)),
            2 => (way, 0..200_usize).prop_map(|(way, n)| Step::AllocBulk(way, n)),
            2 => (way, 0..200_usize).prop_map(|(way, n)| Step::FreeBulk(way, n)),
            1 => Just(Step::Flush),
            1 => Just(Step::Shrink),
            1 => Just(Step::Renew),
        ],
        1..120,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The model is the set of objects in use: no object is in it twice, and its size is what the
    /// statistics say.
    #[test]
    fn a_local_sheaf_behaves_as_its_cache(steps in steps(), bytes in prop_oneof![Just(24_usize), Just(256), Just(5000)]) {
        let cache = cache(bytes);
        let mut local = cache.local().unwrap();
        let mut live: Vec<NonNull<u8>> = Vec::new();
        for step in steps {
            match step {
                Step::Alloc(own) => live.push(if own { local.alloc() } else { cache.alloc() }.unwrap()),
                Step::Free(own, at) if !live.is_empty() => {
                    let object = live.swap_remove(at % live.len());
                    // SAFETY: from this cache; it left the model.
                    unsafe { if own { local.free(object) } else { cache.free(object) } };
                }
                Step::AllocBulk(own, n) => {
                    let mut out = vec![std::ptr::null_mut(); n];
                    let is_filled = if own { local.alloc_bulk(&mut out) } else { cache.alloc_bulk(&mut out) };
                    prop_assert!(is_filled);
                    live.extend(out.into_iter().map(|object| NonNull::new(object).unwrap()));
                }
                Step::FreeBulk(own, n) => {
                    let gone = live.split_off(live.len() - n.min(live.len()));
                    let gone: Vec<_> = gone.into_iter().map(|object| object.as_ptr()).collect();
                    // SAFETY: as above.
                    unsafe { if own { local.free_bulk(&gone) } else { cache.free_bulk(&gone) } };
                }
                Step::Flush => {
                    let held = local.held();
                    prop_assert_eq!(local.flush(), held);
                }
                Step::Shrink => {
                    cache.shrink();
                }
                Step::Renew => local = cache.local().unwrap(),
                Step::Free(..) => {}
            }
            prop_assert_eq!(live.iter().collect::<HashSet<_>>().len(), live.len());
            prop_assert_eq!(cache.stats().unwrap().active_objects, live.len() as u64);
        }
        prop_assert!(uslab::debug::validate().is_ok());
        // SAFETY: as above.
        live.into_iter().for_each(|object| unsafe { local.free(object) });
        drop(local);
        prop_assert!(cache.destroy().is_ok());
    }
}

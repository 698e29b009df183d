//! Takes from several slabs: the slabs beyond the first are visited without the lists' lock.

use super::*;
use crate::slab::lists::List;
use crate::slab::one::Slab;
use crate::slab::words;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Acquire;

/// Frees each third of `objects`, so that all of their slabs are partial; returns the others.
fn fragment(slabs: &Slabs, objects: &[*mut u8]) -> Vec<*mut u8> {
    let third: Vec<_> = objects.iter().copied().step_by(3).collect();
    free(slabs, &third);
    objects.iter().copied().enumerate().filter(|(i, _)| i % 3 != 0).map(|(_, object)| object).collect()
}

#[test]
fn a_take_over_many_slabs_leaves_each_in_its_list() {
    let (slabs, record) = slabs(256, None);
    let objects = take(slabs, 64 * slabs.geometry().objects);
    let rest = fragment(slabs, &objects);
    let before = record.slabs.load(Relaxed);
    for wanted in [1, 7, 40, 100, 60] {
        let served = take(slabs, wanted);
        assert_eq!(served.iter().collect::<HashSet<_>>().len(), wanted);
        assert!(served.iter().all(|object| !rest.contains(object)));
        assert!(slabs.check().is_ok());
        assert_eq!(slabs.groups()[0].lock().slabs_in(List::Taking), 0);
        free(slabs, &served);
    }
    assert_eq!(record.slabs.load(Relaxed), before, "free objects serve before new slabs");
    free(slabs, &rest);
    assert_eq!(slabs.taken(), 0);
}

#[test]
fn a_take_stops_after_a_number_of_slabs_once_it_has_the_least() {
    let (slabs, _) = slabs(256, None);
    let per_slab = slabs.geometry().objects;
    let objects = take(slabs, 100 * per_slab);
    let firsts: Vec<_> = by_slab(slabs, &objects).iter().map(|slab| slab[0]).collect();
    free(slabs, &firsts);
    let mut out = std::vec![core::ptr::null_mut(); 100];
    assert_eq!(slabs.take(0, &mut out, 1), crate::slab::take::VISITS);
    // With as many as it needs it goes on.
    let mut more = std::vec![core::ptr::null_mut(); 68];
    assert_eq!(slabs.take(0, &mut more, 68), 68);
    assert_eq!(slabs.taken(), 100 * per_slab);
}

#[test]
fn a_relist_leaves_a_slab_that_a_take_has() {
    let (slabs, _) = slabs(1000, None);
    let objects = take(slabs, slabs.geometry().objects);
    free(slabs, &objects[..2]);
    let lists = || slabs.groups()[0].lock();
    let slab = lists().serving().expect("a partial slab");
    lists().begin_taking(List::Partial, |_| true);
    // Each free crosses a boundary of the lists, the last one to empty.
    free(slabs, &objects[2..]);
    assert_eq!((slab.list(), lists().slabs_in(List::Empty)), (List::Taking as u8, 0));
    assert!(slabs.shrink() == 0, "a slab that a take has is not released");
    assert!(slabs.check().is_ok());
    let mut locked = lists();
    locked.end_taking(slab, slab, 1);
    locked.place_taken(slab, List::Partial, List::Empty);
    slabs.publish(&mut locked, 0);
    drop(locked);
    assert_eq!(slabs.check().map(|walked| walked.slabs), Ok(1));
    assert!(slabs.shrink() > 0);
}

#[test]
fn a_slab_put_aside_serves_again_after_any_free() {
    let (slabs, record) = slabs(64, None);
    let objects = take(slabs, slabs.geometry().objects);
    free(slabs, &objects[..20]);
    let slab = slabs.groups()[0].lock().serving().expect("a partial slab");
    // A thread that frees an object has set its bit, and not counted it.
    let index = slabs.geometry().index_of(objects[20] as usize - slab.address() as usize).expect("one");
    words::free(&slab.words(slabs.geometry())[index / 64], 1 << (index % 64));
    let other = take(slabs, 1);
    assert_eq!((slab.list(), record.slabs.load(Relaxed)), (List::Full as u8, 2));
    // The thread counts the object; no boundary of the lists is near. The next free reads the list,
    // as the end of that one would.
    words::add(slab.count(), 1);
    free(slabs, &objects[21..22]);
    assert_eq!(slab.list(), List::Partial as u8);
    let again = take(slabs, 22 + slabs.geometry().objects - 1);
    assert_eq!(record.slabs.load(Relaxed), 2, "all free objects of both slabs serve");
    free(slabs, &[&objects[22..], &other, &again].concat());
    assert_eq!(slabs.taken(), 1, "no thread counted the object that the test freed by hand");
}

#[test]
fn a_child_places_the_slabs_of_takes_that_it_lost() {
    let (slabs, _) = slabs_of_order(4, 1024, None);
    let objects = take(slabs, 8);
    free(slabs, &objects[..3]);
    slabs.purge_all_inside();
    let slab: Slab = {
        let mut lists = slabs.groups()[0].lock();
        let slab = lists.serving().expect("a slab to grow into");
        lists.begin_taking(List::Filling, |other| other == slab);
        slab
    };
    // The thread had cleared the bits of two objects, one on a page without memory yet, and had
    // not lowered the count.
    let bits = slab.words(slabs.geometry());
    let free_before = slab.count().load(Relaxed);
    let last = slabs.geometry().objects - 1;
    let charged = slabs.geometry().index_of(objects[0] as usize - slab.address() as usize).expect("one");
    for index in [charged, last] {
        bits[index / 64].fetch_and(!(1 << (index % 64)), Relaxed);
    }
    let mut lists = slabs.groups()[0].lock();
    slabs.end_lost_takes(&mut lists, 0);
    assert_eq!(lists.slabs_in(List::Taking), 0);
    drop(lists);
    assert_eq!(slab.count().load(Relaxed), free_before - 1, "the object with memory is lost");
    assert_ne!(bits[last / 64].load(Acquire) >> (last % 64) & 1, 0, "the other is free again");
    assert!(slabs.check().is_ok());
    words::free(&bits[charged / 64], 1 << (charged % 64));
    words::add(slab.count(), 1);
    free(slabs, &objects[3..]);
}

#[test]
fn takes_over_many_slabs_meet_frees_purges_and_each_other() {
    let (slabs, record) = slabs_of_order(4, 1024, None);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let purger = scope.spawn(|| {
            while !done.load(Relaxed) {
                slabs.purge_all_inside();
                slabs.shrink();
                assert!(slabs.check().is_ok());
            }
        });
        let takers: Vec<_> = (0..3usize)
            .map(|thread| {
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..if cfg!(miri) { 2 } else { 150 } {
                        let objects = take(slabs, 300 + 40 * thread);
                        // SAFETY: ours, aligned to 8.
                        objects.iter().for_each(|&object| unsafe { object.cast::<usize>().write(thread) });
                        kept.extend(fragment(slabs, &objects));
                        if round % 4 == 3 {
                            // SAFETY: as above.
                            assert!(kept.iter().all(|&o| unsafe { o.cast::<usize>().read() } == thread));
                            free(slabs, &kept);
                            kept.clear();
                        }
                    }
                    free(slabs, &kept);
                })
            })
            .collect();
        takers.into_iter().for_each(|taker| taker.join().expect("no assertion fails"));
        done.store(true, Relaxed);
        purger.join().expect("no assertion fails");
    });
    assert_eq!(slabs.taken(), 0);
    slabs.shrink();
    assert_eq!((record.slabs.load(Relaxed), record.slab_free.load(Relaxed)), (0, 0));
}

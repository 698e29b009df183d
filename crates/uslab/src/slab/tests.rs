//! Tests of the slab layer: each makes its own slabs, without CPU caches in front.

use super::free::neighbours;
use super::*;
use crate::counters::layout::{FIRST_RECORDS, Record};
use crate::pages::{PAGE_BYTES, Temperature};
use crate::rseq::{Owner, Slot, dummy};
use crate::{counters, os};
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};

mod broken;
mod resident;
mod takes;

extern crate std;
use std::boxed::Box;
use std::collections::HashSet;
use std::vec;
use std::vec::Vec;

/// Makes slabs for objects of `bytes`. Their id comes from the end of the records, which the caches
/// of other tests do not reach.
fn slabs(bytes: usize, constructor: Option<Constructor>) -> (&'static Slabs, &'static Record) {
    slabs_of(1, bytes, constructor, None)
}

/// As [`slabs`], on a machine of `group_count` groups, or with the lock `shared`.
fn slabs_of(
    group_count: usize,
    bytes: usize,
    constructor: Option<Constructor>,
    shared: Option<&'static ListsLock>,
) -> (&'static Slabs, &'static Record) {
    let options = GeometryOptions::default();
    made(group_count, bytes, options, constructor, shared)
}

/// As [`slabs`], with slabs of `2^order` pages.
fn slabs_of_order(
    order: u32,
    bytes: usize,
    constructor: Option<Constructor>,
) -> (&'static Slabs, &'static Record) {
    let options = GeometryOptions { min_order: order, max_order: order, ..GeometryOptions::default() };
    made(1, bytes, options, constructor, None)
}

fn made(
    group_count: usize,
    bytes: usize,
    options: GeometryOptions,
    constructor: Option<Constructor>,
    shared: Option<&'static ListsLock>,
) -> (&'static Slabs, &'static Record) {
    static NEXT: AtomicU16 = AtomicU16::new(FIRST_RECORDS as u16 - 1);
    set_up!();
    let slots: &[Slot] = Box::leak(Box::new([Slot::holding(dummy())]));
    let id = NEXT.fetch_sub(1, Relaxed);
    slots[0].id.store(u32::from(id), Relaxed);
    let geometry = Geometry::new(Layout { size: bytes, align: 8 }, options, 2).expect("valid");
    let groups = crate::pages::boot::alloc(Slabs::group_bytes(group_count, group_count), 64);
    assert!(!groups.is_null());
    let memory = GroupMemory { start: groups, groups: group_count, nodes: group_count, shared, tallies: &[] };
    // SAFETY: the slots are leaked; no test gives these objects to the fast path; the groups are
    // fresh boot memory.
    let slabs = unsafe {
        let owner = Owner::of_slots(slots.as_ptr().cast_mut());
        Slabs::new(owner, "test", geometry, Temperature::Hot, constructor, memory)
    };
    (Box::leak(Box::new(slabs)), counters::record(id))
}

fn take(slabs: &Slabs, n: usize) -> Vec<*mut u8> {
    take_on(0, slabs, n)
}

fn take_on(group: usize, slabs: &Slabs, n: usize) -> Vec<*mut u8> {
    let mut out = std::vec![core::ptr::null_mut(); n];
    assert_eq!(slabs.take(group, &mut out, n), n);
    out
}

fn free(slabs: &Slabs, objects: &[*mut u8]) {
    // SAFETY: the tests free what they took, once, except where misuse is the subject.
    unsafe { slabs.free(objects) };
}

#[test]
fn taking_and_giving_keeps_count() {
    let (slabs, record) = slabs(64, None);
    let objects = take(slabs, 1000);
    assert_eq!(objects.iter().collect::<HashSet<_>>().len(), 1000);
    assert_eq!((record.slabs.load(Relaxed), record.slab_free.load(Relaxed)), (16, 24));
    let mut live = HashSet::new();
    slabs.for_each_taken(|object| live.insert(object));
    assert_eq!(live, objects.iter().copied().collect());

    // A third of each slab: all are partial.
    let third: Vec<_> = objects.iter().copied().step_by(3).collect();
    free(slabs, &third);
    assert_eq!(record.slab_free.load(Relaxed), 24 + 334);
    let again = take(slabs, 300);
    assert_eq!(record.slabs.load(Relaxed), 16, "free objects are used before new slabs");
    free(slabs, &again);
    let rest: Vec<_> =
        objects.iter().copied().enumerate().filter(|(i, _)| i % 3 != 0).map(|(_, o)| o).collect();
    free(slabs, &rest);
    slabs.shrink();
    assert_eq!((record.slabs.load(Relaxed), record.slab_free.load(Relaxed)), (0, 0));
    assert_eq!((record.partial_slabs.load(Relaxed), record.empty_slabs.load(Relaxed)), (0, 0));
}

/// The objects, slab by slab, in the order in which the slabs were made.
fn by_slab(slabs: &Slabs, objects: &[*mut u8]) -> Vec<Vec<*mut u8>> {
    let slab_of = |object: *mut u8| object as usize / (slabs.geometry().pages() * PAGE_BYTES);
    let mut all: Vec<Vec<*mut u8>> = Vec::new();
    for &object in objects.iter().rev() {
        match all.iter_mut().find(|slab| slab_of(slab[0]) == slab_of(object)) {
            Some(slab) => slab.push(object),
            None => all.push(std::vec![object]),
        }
    }
    all
}

#[test]
fn holes_serve_before_the_slab_that_the_cache_grows_into() {
    let (slabs, _) = slabs(1000, None);
    let full = take(slabs, slabs.geometry().objects);
    let grown = take(slabs, 1);
    free(slabs, &full[..2]);
    assert_eq!(take(slabs, 2).iter().collect::<HashSet<_>>(), full[..2].iter().collect());
    // A slab that was empty is one to grow into as well.
    free(slabs, &grown);
    let grown = take(slabs, 1);
    free(slabs, &full[..1]);
    assert_eq!(take(slabs, 1), full[..1]);
    free(slabs, &full);
    free(slabs, &grown);
}

#[test]
fn sparse_slabs_serve_last() {
    let (slabs, _) = slabs(256, None);
    let objects = take(slabs, 96);
    let slab = by_slab(slabs, &objects);
    assert_eq!(slab.len(), 3);
    // Free most of the first two slabs, and little of the third.
    free(slabs, &slab[0][..30]);
    free(slabs, &slab[1][..28]);
    free(slabs, &slab[2][..2]);
    let served = take(slabs, 2);
    assert!(served.iter().all(|object| slab[2].contains(object)));
}

#[test]
fn slabs_serve_in_the_order_in_which_they_became_partial() {
    let (slabs, _) = slabs(256, None);
    let objects = take(slabs, 128);
    let slab = by_slab(slabs, &objects);
    let freed: Vec<_> = [2, 0, 3].into_iter().flat_map(|i| slab[i][4..8].to_vec()).collect();
    for objects in freed.chunks(4) {
        free(slabs, objects);
    }
    // The last object of `out` is the first that a sheaf hands out.
    let served: Vec<_> = take(slabs, 12).into_iter().rev().collect();
    assert_eq!(served, freed);
}

#[test]
fn a_new_slab_has_a_bit_for_each_object_that_was_not_taken() {
    for bytes in [8, 64, 72, 200] {
        let (slabs, _) = slabs(bytes, None);
        let objects = slabs.geometry().objects;
        for taken in (1..=objects).filter(|taken| *taken < 130 || objects - taken < 70) {
            let mut out = vec![core::ptr::null_mut(); taken];
            assert_eq!(slabs.grow(0, &mut out), taken);
            let slab = slabs.slab_of(out[0]).unwrap();
            assert!(out.iter().rev().enumerate().all(|(i, &o)| o == slab.address().wrapping_add(i * bytes)));
            let words = slab.words(slabs.geometry());
            let is_free = |index: usize| words[index / 64].load(Relaxed) >> (index % 64) & 1 != 0;
            assert!((0..words.len() * 64).all(|i| is_free(i) == (taken..objects).contains(&i)), "{taken}");
            free(slabs, &out);
        }
    }
}

#[test]
fn neighbours_are_counted_up_to_the_first_other_pointer() {
    for (length, step) in (0..30).flat_map(|n| [(n, 48), (n, 48_usize.wrapping_neg())]) {
        let object = 0x10_0000 as *mut u8;
        let mut rest: Vec<_> =
            (0..length).rev().map(|i| object.wrapping_add(step.wrapping_mul(i + 1))).collect();
        assert_eq!(neighbours(&rest, length + 1, object, step), length);
        (0..=length).for_each(|most| assert_eq!(neighbours(&rest, most, object, step), most));
        for count in 0..length {
            let place = &mut rest[length - 1 - count];
            let was = core::mem::replace(place, object.wrapping_add(1));
            assert_eq!(neighbours(&rest, length, object, step), count);
            rest[length - 1 - count] = was;
        }
    }
}

#[test]
fn fresh_objects_ascend() {
    let (slabs, _) = slabs_of_order(4, 1000, None);
    let served: Vec<_> = take(slabs, slabs.geometry().objects).into_iter().rev().collect();
    assert!(served.is_sorted(), "{served:?}");
}

#[test]
fn a_live_set_that_comes_and_goes_does_not_go_to_the_pages() {
    // A slab has few objects of 4 KiB, so each round empties one: between 0 and 4 objects are live.
    let (slabs, record) = slabs(4096, None);
    let round = || free(slabs, &take(slabs, 4));
    (0..10).for_each(|_| round());
    let before = (record.grows.load(Relaxed), record.shrinks.load(Relaxed));
    (0..1000).for_each(|_| round());
    assert_eq!((record.grows.load(Relaxed), record.shrinks.load(Relaxed)), before);
}

#[test]
fn a_live_set_of_many_slabs_stays_after_it_was_learnt() {
    let (slabs, record) = slabs(4096, None);
    let round = || free(slabs, &take(slabs, 400));
    (0..4).for_each(|_| round());
    let before = record.grows.load(Relaxed);
    (0..4).for_each(|_| round());
    // A second may have passed, which halves the target.
    assert!(record.grows.load(Relaxed) - before <= 2 * record.slabs.load(Relaxed) as u64);
    assert!(slabs.shrink() > 0, "and goes when asked");
    assert_eq!(record.slabs.load(Relaxed), 0);
}

#[test]
fn slabs_of_many_objects_go_back_to_the_pages() {
    const ROUND_BYTES: usize = 4 << 20;
    /// # Safety
    /// None.
    unsafe fn leave_as_it_is(_: *mut u8, _: usize) {}
    let constructor = Constructor { call: leave_as_it_is, data: 0, release: None };
    let empty_bytes = |bytes: usize, constructor: Option<Constructor>| {
        let (slabs, record) = slabs_of_order(5, bytes, constructor);
        (0..8).for_each(|_| free(slabs, &take(slabs, ROUND_BYTES / bytes)));
        (record.empty_slabs.load(Relaxed) as usize * slabs.slab_bytes(), slabs.geometry().objects)
    };
    let (few, constructed) = (empty_bytes(2048, None), empty_bytes(64, Some(constructor)));
    assert!(few.0 > ROUND_BYTES / 2 && few.1 < 128, "{few:?}: slabs of few objects are learnt");
    assert!(constructed.0 > ROUND_BYTES / 2, "{constructed:?}: constructors ran once");
    for bytes in [16, 64, 256, 1024] {
        let (empty, objects) = empty_bytes(bytes, None);
        assert!((1..=256 << 10).contains(&empty) && objects >= 128, "{bytes}: {empty}, {objects}");
    }
}

#[test]
fn some_empty_slabs_go_and_the_last_does_not() {
    let (slabs, record) = slabs_of_order(3, 4096, None);
    let round = || free(slabs, &take(slabs, 400));
    (0..4).for_each(|_| round());
    let (spare, slab_bytes) = (slabs.spare_bytes(), slabs.geometry().pages() * crate::pages::PAGE_BYTES);
    assert!(spare > 8 * slab_bytes);
    assert_eq!(slabs.shrink_by(slab_bytes - 1), (0, 0));
    assert_eq!(slabs.shrink_by(3 * slab_bytes + 1), (3 * slab_bytes, 3 * slab_bytes));
    assert_eq!(slabs.spare_bytes(), spare - 3 * slab_bytes);
    assert_eq!(slabs.shrink_by(usize::MAX), (spare - 3 * slab_bytes, spare - 3 * slab_bytes));
    assert_eq!((slabs.spare_bytes(), record.empty_slabs.load(Relaxed)), (0, 1));
    assert!(slabs.shrink() > 0);
}

#[test]
fn figures_are_sums_over_the_nodes() {
    let (slabs, record) = slabs_of(2, 4096, None, None);
    let figures = || {
        let figures = (&record.partial_slabs, &record.empty_slabs, &record.empty_target);
        (figures.0.load(Relaxed), figures.1.load(Relaxed), figures.2.load(Relaxed))
    };
    let in_slab = slabs.geometry().objects;
    assert!(in_slab > 1);
    let objects = [0, 1, 1].map(|group| take_on(group, slabs, in_slab));
    assert_eq!(figures(), (0, 0, 2));
    free(slabs, &objects[1][1..]);
    assert_eq!(figures(), (1, 0, 2));
    // The one empty slab is on the second group.
    free(slabs, &objects[1][..1]);
    assert_eq!(figures(), (0, 1, 2));
    // SAFETY: they are not used any more.
    unsafe { slabs.free_and_keep(&objects[2]) };
    assert_eq!((figures(), slabs.spare_bytes()), ((0, 2, 3), slabs.slab_bytes()));
    free(slabs, &objects[0]);
    assert_eq!((figures(), slabs.spare_bytes()), ((0, 3, 3), slabs.slab_bytes()));
    assert_eq!(slabs.shrink(), 3 * slabs.slab_bytes());
    assert_eq!((record.empty_slabs.load(Relaxed), slabs.spare_bytes()), (0, 0));
    let _live = take_on(1, slabs, 1);
    // SAFETY: no thread uses the object.
    unsafe { slabs.free_all() };
    assert_eq!(figures(), (0, 0, 0));
}

#[test]
fn only_groups_that_had_slabs_are_visited() {
    let (slabs, _) = slabs_of(3, 64, None, None);
    let used = || slabs.used_groups().map(|(index, _)| index).collect::<Vec<_>>();
    assert_eq!(used(), []);
    let objects = take_on(1, slabs, 10);
    assert_eq!(used(), [1]);
    assert_eq!(slabs.used_group_count(), 1);
    free(slabs, &objects);
    slabs.shrink();
    assert_eq!(used(), [1], "another slab may come at any time");
    let (one, _) = slabs_of(1, 64, None, None);
    assert_eq!(one.used_groups().count(), 1);
}

#[test]
fn slabs_that_share_a_lock_keep_none_empty_and_add_to_their_record() {
    static LOCK: ListsLock = ListsLock::new();
    let (slabs, record) = slabs_of(1, 64, None, Some(&LOCK));
    let objects = take(slabs, 1000);
    assert_eq!((record.slabs.load(Relaxed), record.grows.load(Relaxed)), (16, 16));
    // The shared record may lag by a quarter of a slab.
    assert!(record.slab_free.load(Relaxed).abs_diff(24) <= 16);
    free(slabs, &objects[..500]);
    free(slabs, &objects[500..]);
    assert_eq!((record.slabs.load(Relaxed), slabs.taken()), (0, 0));
    let _live = take(slabs, 100);
    // SAFETY: no thread uses the objects.
    unsafe { slabs.free_all() };
    assert_eq!((record.slabs.load(Relaxed), record.slab_free.load(Relaxed), slabs.taken()), (0, 0, 0));
}

#[test]
fn constructors_run_once_an_object_and_free_objects_are_not_written() {
    /// # Safety
    /// `object` must be memory of 96 bytes that no other code uses.
    unsafe fn construct(object: *mut u8, data: usize) {
        // SAFETY: the caller's promise.
        unsafe { object.write_bytes(data as u8, 96) };
    }
    let (slabs, _) = slabs(96, Some(Constructor { call: construct, data: 0x77, release: None }));
    for _ in 0..10 {
        let objects = take(slabs, 500);
        for &object in &objects {
            // SAFETY: ours, of 96 bytes.
            let bytes = unsafe { core::slice::from_raw_parts(object, 96) };
            assert!(bytes.iter().all(|&byte| byte == 0x77));
        }
        free(slabs, &objects);
    }
    slabs.shrink();
}

#[test]
fn objects_lie_where_the_geometry_says() {
    for bytes in [8, 24, 100, 1000, 3000, 40_000] {
        let (slabs, _) = slabs(bytes, None);
        let geometry = slabs.geometry();
        let objects = take(slabs, 3 * geometry.objects);
        let slab_bytes = geometry.pages() * PAGE_BYTES;
        for &object in &objects {
            let offset = object as usize % slab_bytes;
            assert!(geometry.index_of(offset).is_some(), "{bytes}: offset {offset}");
        }
        free(slabs, &objects);
        slabs.shrink();
    }
}

#[test]
fn many_threads_give_at_once_and_nothing_is_lost() {
    let (slabs, record) = slabs(48, None);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            scope.spawn(move || {
                for round in 0..300 {
                    let mut objects = take(slabs, 1 + (thread * 37 + round * 11) % 200);
                    for &object in &objects {
                        // SAFETY: ours, aligned to 8.
                        unsafe { object.cast::<usize>().write(thread) };
                    }
                    for &object in &objects {
                        // SAFETY: as above.
                        assert_eq!(unsafe { object.cast::<usize>().read() }, thread);
                    }
                    // Sort by the offset in the page, so that neighbours lie in different slabs.
                    objects.sort_unstable_by_key(|&object| object as usize % 4096);
                    free(slabs, &objects);
                }
            });
        }
    });
    slabs.shrink();
    assert_eq!((record.slabs.load(Relaxed), record.slab_free.load(Relaxed)), (0, 0));
    let mut left = 0;
    slabs.for_each_taken(|_| {
        left += 1;
        true
    });
    assert_eq!(left, 0);
    assert_eq!(os::memory::page_bytes() % PAGE_BYTES, 0);
}

#[test]
fn batches_in_any_order_free_each_object_once() {
    for bytes in [16, 208, 1000, 4096] {
        let (slabs, _) = slabs_of_order(5, bytes, None);
        for step in [1, 2, 3, 7, 64, 65] {
            let mut objects = take(slabs, 3000);
            objects.sort_unstable();
            let mut order: Vec<_> =
                (0..step).flat_map(|from| objects[from..].iter().step_by(step)).copied().collect();
            assert_eq!(order.len(), objects.len());
            if step % 2 == 0 {
                order.reverse();
            }
            // Pieces that begin and end anywhere in a slab and in a word of its bitmap.
            for (n, piece) in order.chunks(97).enumerate() {
                // SAFETY: taken above, and unused from here on.
                unsafe { slabs.free(piece) };
                assert_eq!(slabs.taken(), order.len().saturating_sub((n + 1) * 97));
            }
            assert!(slabs.check().is_ok());
        }
        slabs.shrink();
    }
}

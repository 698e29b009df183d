//! Tests that break a slab on purpose: each kind of check must find its fault.

use super::*;
use crate::os::invariant::Invalid;
use crate::pages::{self, PageIndex};
use crate::slab::lists::{End, List, Lists};
use crate::slab::one::Slab;
use crate::sync::atomic::Ordering::Relaxed as Plain;

/// Makes a cache with a single slab, which is half free; returns both.
fn half_free() -> (&'static Slabs, Slab) {
    let (slabs, _) = slabs(1000, None);
    let objects = take(slabs, slabs.geometry().objects);
    free(slabs, &objects[..objects.len() / 2]);
    let page = pages::page_of(objects[0]).expect("in the arena");
    let slab = Slab(PageIndex(page.0 & !(slabs.geometry().pages() as u32 - 1)));
    assert_eq!(slabs.check().map(|walked| walked.slabs), Ok(1));
    (slabs, slab)
}

/// Returns the violation that a check reports after `break_it`, which runs under the lists' lock.
fn found(break_it: impl FnOnce(&Slabs, &mut Lists, Slab)) -> Invalid {
    let (slabs, slab) = half_free();
    break_it(slabs, &mut slabs.groups()[0].lock(), slab);
    slabs.check().expect_err("the check finds it")
}

/// The violation that a check of the links of one slab reports after `break_it`.
fn found_links(break_it: impl FnOnce(Slab)) -> Invalid {
    let (slabs, slab) = half_free();
    break_it(slab);
    slabs.groups()[0].lock().check_links(slab, List::Partial).expect_err("the check finds it")
}

fn head(slab: Slab) -> &'static mut crate::slab::one::Head {
    // SAFETY: the test's own slab, which no other thread knows.
    unsafe { &mut *slab.head() }
}

#[test]
fn a_bit_that_was_lost_is_missed_by_the_count() {
    let invalid = found(|slabs, _, slab| {
        let words = slab.words(slabs.geometry());
        let word = words.iter().find(|word| word.load(Plain) != 0).expect("half is free");
        word.store(word.load(Plain) & (word.load(Plain) - 1), Plain);
    });
    assert_eq!(invalid.invariant, "a bit is set before it is counted");
    assert_eq!((invalid.structure, invalid.found - invalid.expected), ("slab", 1));
}

#[test]
fn a_count_beyond_the_bits_is_found() {
    let invalid = found(|_, _, slab| {
        slab.count().fetch_add(1, Plain);
    });
    assert_eq!(invalid.invariant, "a bit is set before it is counted");
    let invalid = found(|slabs, lists, slab| {
        lists.place(slab, List::Full, End::Last);
        slab.count().store(-(slabs.geometry().objects as i32) - 1, Plain);
    });
    assert_eq!(invalid.invariant, "a count lacks no more objects than a slab has");
}

#[test]
fn a_bit_that_no_object_has_is_found() {
    let invalid = found(|slabs, _, slab| {
        slab.words(slabs.geometry())[slabs.geometry().words() - 1].fetch_or(1 << 63, Plain);
    });
    assert_eq!(invalid.invariant, "no bit is set beyond the last object");
}

#[test]
fn a_slab_in_the_wrong_list_is_found() {
    let invalid = found(|_, lists, slab| {
        lists.place(slab, List::Empty, End::Last);
    });
    assert_eq!(invalid.invariant, "a slab has as many free objects as its list says, or more");
    let invalid = found(|_, _, slab| head(slab).list.store(List::Full as u8, Plain));
    assert_eq!(invalid.invariant, "a slab knows the list that it stands in");
    let invalid = found(|_, _, slab| head(slab).group.store(1, Relaxed));
    assert_eq!(invalid.invariant, "a slab stands in the lists of its group");
}

#[test]
fn links_and_counts_that_disagree_are_found() {
    let invalid = found(|_, _, slab| head(slab).next = slab.0.0);
    assert_eq!(invalid.invariant, "the tail of a list has none behind it");
    let invalid = found_links(|slab| head(slab).next = slab.0.0);
    assert_eq!(invalid.invariant, "the next slab links back");
    let invalid = found_links(|slab| head(slab).next = u32::MAX - 1);
    assert_eq!(invalid.invariant, "a link leads to a page of the arena");
    let invalid = found(|_, lists, _| lists.counts_mut()[List::Empty as usize - 1] = 1);
    assert_eq!(invalid.invariant, "a list has a head while it has slabs");
    let invalid = found(|_, lists, _| lists.counts_mut().iter_mut().for_each(|n| *n *= 2));
    assert_eq!(invalid.invariant, "a list has as many slabs as are counted");
    let invalid = found(|_, _, slab| head(slab).prev = slab.0.0);
    assert_eq!(invalid.invariant, "the head of a list has none before it");
}

#[test]
fn an_object_on_a_page_that_is_not_charged_is_found() {
    let (slabs, _) = slabs_of_order(4, 1024, None);
    let objects = take(slabs, slabs.geometry().objects);
    let page = pages::page_of(objects[0]).expect("in the arena");
    let slab = Slab(PageIndex(page.0 & !(slabs.geometry().pages() as u32 - 1)));
    let resident = slab.resident(slabs.geometry()).expect("a slab of 16 pages has the word");
    let before = resident.swap(0b111, Plain);
    assert_eq!(slabs.check().expect_err("it is found").invariant, "an object in use lies on charged pages");
    resident.store(before | 1 << 16, Plain);
    assert_eq!(slabs.check().expect_err("it is found").invariant, "only pages of the slab are charged");
    resident.store(before, Plain);
    free(slabs, &objects);
}

#[test]
fn a_page_that_the_map_gives_to_another_is_found() {
    let invalid = found(|_, _, slab| pages::set_owner(slab.0.plus(1), 1, Owner::NONE));
    assert_eq!(invalid.invariant, "the page map names the cache for each page of a slab");
}

#[test]
fn a_target_below_its_floor_is_found() {
    assert_eq!(found(|_, lists, _| lists.target = 0).invariant, "the target of empty slabs has its floor");
}

#[test]
fn a_slab_is_released_complete_and_in_no_list() {
    let (slabs, slab) = half_free();
    assert_eq!(slabs.check_released(slab).unwrap_err().invariant, "a released slab stands in no list");
    slabs.groups()[0].lock().place(slab, List::None, End::Last);
    assert_eq!(slabs.check_released(slab).unwrap_err().invariant, "a released slab's count is complete");
    slab.count().store(slabs.geometry().objects as i32, Plain);
    assert_eq!(slabs.check_released(slab).unwrap_err().invariant, "a released slab's bits are all set");
    slab.words(slabs.geometry())[0].store((1 << slabs.geometry().objects) - 1, Plain);
    let still_named = "the page map names no cache for a released slab";
    assert_eq!(slabs.check_released(slab).unwrap_err().invariant, still_named);
    pages::set_owner(slab.0, slabs.geometry().pages(), Owner::NONE);
    assert_eq!(slabs.check_released(slab), Ok(()));
}

#[test]
fn a_free_object_is_no_object_of_a_sheaf() {
    let (slabs, slab) = half_free();
    let word = slab.words(slabs.geometry())[0].load(Plain);
    let at = |index: u32| slab.address().wrapping_add(index as usize * slabs.geometry().object_bytes);
    assert_eq!(slabs.check_taken(at(word.trailing_ones())), Ok(()));
    let free = slabs.check_taken(at(word.trailing_zeros())).unwrap_err();
    assert_eq!(free.invariant, "an object in a sheaf counts as taken");
    let inside = slabs.check_taken(slab.address().wrapping_add(1)).unwrap_err();
    assert_eq!(inside.invariant, "an object starts where the geometry says");
    let elsewhere = slabs.check_taken((&raw const word).cast_mut().cast()).unwrap_err();
    assert_eq!(elsewhere.invariant, "an object lies in a slab of its cache");
}

#[test]
#[should_panic(expected = "a bitmap has the bits that its slab counts")]
fn a_full_slab_that_serves_ends_the_process() {
    let (slabs, slab) = half_free();
    slab.words(slabs.geometry()).iter().for_each(|word| word.store(0, Plain));
    take(slabs, 1);
}

#[test]
fn a_slab_with_a_bit_too_many_serves_no_object_until_its_count_agrees() {
    let (slabs, slab) = half_free();
    let words = slab.words(slabs.geometry());
    let word = words.iter().find(|word| word.load(Plain) != u64::MAX).expect("half is in use");
    let before = word.load(Plain);
    word.store(before | (before + 1), Plain);
    let others = take(slabs, slabs.geometry().objects / 2);
    let lies_in_it = |object: &*mut u8| slabs.slab_of(*object).is_some_and(|other| other == slab);
    assert!(!others.iter().any(lies_in_it));
    word.store(before, Plain);
    free(slabs, &others);
    slabs.check().expect("whole again");
}

#[test]
#[should_panic(expected = "the slab before links here")]
fn a_broken_list_ends_the_process_at_the_next_change() {
    let (slabs, slab) = half_free();
    head(slab).prev = slab.0.0;
    // The slab is full now: it changes lists.
    take(slabs, slabs.geometry().objects / 2);
}

#[test]
#[should_panic(expected = "no more objects come back than were taken")]
fn an_object_too_many_ends_the_process() {
    let (slabs, slab) = half_free();
    slabs.set_taken(0);
    let taken = slab.words(slabs.geometry())[0].load(Plain).trailing_ones() as usize;
    free(slabs, &[slab.address().wrapping_add(taken * slabs.geometry().object_bytes)]);
}

#[test]
#[should_panic(expected = "a slab counts no more free objects than it has")]
fn a_count_too_high_ends_the_process() {
    let (slabs, slab) = half_free();
    slab.count().store(slabs.geometry().objects as i32, Plain);
    let taken = slab.words(slabs.geometry())[0].load(Plain).trailing_zeros() as usize;
    let object = (0..slabs.geometry().objects)
        .find(|i| slab.words(slabs.geometry())[0].load(Plain) >> i & 1 == 0)
        .unwrap_or(taken);
    free(slabs, &[slab.address().wrapping_add(object * slabs.geometry().object_bytes)]);
}

#[test]
#[should_panic(expected = "a giver has an object to give")]
fn a_giver_without_an_object_ends_the_process() {
    crate::slab::words::free(&crate::sync::atomic::AtomicU64::new(0), 0);
}

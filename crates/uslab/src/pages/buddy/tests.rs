//! Tests that break the buddy or a chunk on purpose: each kind of check must find its fault.
//!
//! They share the process's buddy. So a test repairs what it broke before it releases the lock.

use super::lengths::{Class, Length};
use super::*;
use crate::os::invariant::Invalid;
use crate::pages::{CHUNK_BYTES, Temperature};
use crate::rseq::Owner;

extern crate std;
use std::vec::Vec;

/// Returns the violation that a check reports between `break_it` and `mend`, all under the lock.
/// `break_it` gets the buddy and a chunk with free pages, with its index.
fn found(
    break_it: impl FnOnce(&mut Buddy, usize, &mut Chunk),
    mend: impl FnOnce(&mut Buddy, &mut Chunk),
) -> Invalid {
    set_up!();
    let run = crate::pages::alloc(3, 0, Temperature::Cold, Fill::Sparse).expect("there is room");
    let mut buddy = lock();
    // The chunk that serves next. It has a free page as long as the lock is held.
    let index = buddy.fullest_with(0, Home::here()).unwrap_or_else(|| {
        buddy.grow(1, 1).expect("there is room");
        buddy.fullest_with(0, Home::here()).expect("it just grew")
    });
    // SAFETY: the chunk is committed, and changes only under the lock.
    let chunk = || unsafe { &mut *arena::chunk(index) };
    assert!(buddy.check().is_ok());
    break_it(&mut buddy, index, chunk());
    let invalid = buddy.check();
    mend(&mut buddy, chunk());
    assert!(buddy.check().is_ok());
    drop(buddy);
    crate::pages::free(run.first, 3, Temperature::Cold);
    invalid.expect_err("the check finds it")
}

#[test]
fn a_chunk_whose_counts_are_wrong_is_found() {
    let invalid = found(|_, _, chunk| chunk.free_pages += 1, |_, chunk| chunk.free_pages -= 1);
    assert_eq!((invalid.invariant, invalid.structure), ("free pages are counted", "chunk"));
    let invalid = found(|_, _, chunk| chunk.dirty_pages += 1, |_, chunk| chunk.dirty_pages -= 1);
    assert_eq!(invalid.invariant, "free pages with memory are counted");
    let invalid = found(|_, _, chunk| chunk.free[0] ^= 1, |_, chunk| chunk.free[0] ^= 1);
    assert_eq!(invalid.invariant, "free pages are counted");
}

#[test]
fn an_unmapped_chunk_in_part_is_found() {
    // SAFETY: all-zero is a valid chunk.
    let mut chunk: Chunk = unsafe { core::mem::zeroed() };
    chunk.reset_free();
    chunk.is_unmapped = true;
    assert_eq!(chunk.check(), Ok(()));
    chunk.claim(0, 1);
    assert_eq!(chunk.check().unwrap_err().invariant, "an unmapped chunk is all free");
    assert!(chunk.free(0, 1, false));
    assert_eq!(chunk.check().unwrap_err().invariant, "an unmapped chunk has no memory to purge");
}

#[test]
fn a_chunk_in_the_wrong_list_is_found() {
    let invalid = found(|_, _, chunk| chunk.order ^= 1, |_, chunk| chunk.order ^= 1);
    assert_eq!(invalid.invariant, "a chunk is listed by its largest free order");
    let invalid = found(|_, _, chunk| chunk.level ^= 1, |_, chunk| chunk.level ^= 1);
    assert_eq!(invalid.invariant, "a chunk is listed by how full it is");
}

#[test]
fn links_and_heads_that_disagree_are_found() {
    use core::cell::Cell;
    let kept = Cell::new(0);
    let mend = |_: &mut Buddy, chunk: &mut Chunk| chunk.next = kept.get();
    let invalid = found(|_, at, chunk| kept.set(core::mem::replace(&mut chunk.next, at as u32)), mend);
    // A chunk that follows itself has another before it, or none. The chunk that it followed may
    // come first in the walk.
    const FOUND: [&str; 3] = [
        "the next chunk links back",
        "each chunk with free pages stands in a list",
        "the chunk before links here",
    ];
    assert!(FOUND.contains(&invalid.invariant), "{invalid}");
    let mend = |_: &mut Buddy, chunk: &mut Chunk| chunk.next = kept.get();
    let invalid = found(|_, _, chunk| kept.set(core::mem::replace(&mut chunk.next, NONE - 1)), mend);
    // The chunk that it led to may come first here too.
    const BEYOND: [&str; 2] = ["a link leads to a chunk within the bound", "the chunk before links here"];
    assert!(BEYOND.contains(&invalid.invariant), "{invalid}");
    let invalid = found(
        |buddy, _, _| buddy.lists[0].not_empty[3] ^= 1 << 9,
        |buddy, _| buddy.lists[0].not_empty[3] ^= 1 << 9,
    );
    assert_eq!(invalid.invariant, "the word of a level says which lists have chunks");
}

#[test]
fn sums_that_disagree_are_found() {
    let invalid = found(|buddy, _, _| buddy.dirty_pages += 1, |buddy, _| buddy.dirty_pages -= 1);
    assert_eq!(invalid.invariant, "dirty pages are summed up");
    let invalid = found(|buddy, _, _| buddy.locked_pages += 1, |buddy, _| buddy.locked_pages -= 1);
    assert_eq!(invalid.invariant, "locked pages are summed up");
    let invalid = found(|buddy, _, _| buddy.used_pages += 1, |buddy, _| buddy.used_pages -= 1);
    assert!(["the figures show the pages in use", "no page is in use and free"].contains(&invalid.invariant));
}

#[test]
fn a_free_page_with_an_owner_is_found() {
    set_up!();
    let run = crate::pages::alloc(1, 0, Temperature::Cold, Fill::Sparse).expect("there is room");
    let mut buddy = lock();
    assert!(buddy.free(run.first, 1, false));
    arena::set_owner(run.first, 1, Owner::plain(15));
    let invalid = buddy.check_map(run.first.0 as usize / CHUNK_PAGES);
    arena::set_owner(run.first, 1, Owner::NONE);
    assert_eq!(invalid.unwrap_err().invariant, "a free page has no owner");
    assert_eq!(buddy.check_map(run.first.0 as usize / CHUNK_PAGES), Ok(()));
    let invalid = buddy.check_used(run.first, 1).unwrap_err();
    assert_eq!(invalid.invariant, "a page in a CPU's list is not free in the buddy");
}

#[test]
fn the_layer_as_it_is_is_valid() {
    set_up!();
    let _in_use = crate::pages::alloc(3, 0, Temperature::Cold, Fill::Sparse);
    let walked = crate::pages::check().expect("valid");
    assert!(walked.chunks > 0 && walked.free_pages > 0);
}

#[test]
#[should_panic(expected = "a page has one owner at a time")]
fn a_second_owner_ends_the_process() {
    set_up!();
    let run = crate::pages::alloc(1, 0, Temperature::Cold, Fill::Sparse).expect("there is room");
    arena::set_owner(run.first, 1, Owner::plain(15));
    arena::set_owner(run.first, 1, Owner::plain(14));
}

#[test]
#[should_panic(expected = "a freed page has no owner")]
fn pages_that_are_freed_with_their_owner_end_the_process() {
    set_up!();
    let run = crate::pages::alloc(1, 0, Temperature::Cold, Fill::Sparse).expect("there is room");
    arena::set_owner(run.first, 1, Owner::plain(15));
    crate::pages::free(run.first, 1, Temperature::Cold);
}

#[test]
#[should_panic(expected = "claimed pages are free")]
fn pages_claimed_twice_end_the_process() {
    // SAFETY: all-zero is a valid chunk.
    let mut chunk: Chunk = unsafe { core::mem::zeroed() };
    chunk.reset_free();
    chunk.claim(3, 10);
    chunk.claim(12, 2);
}

#[test]
fn a_batch_lies_in_one_chunk_in_order_and_comes_back() {
    set_up!();
    // No batch comes from a chunk without memory.
    let in_use = crate::pages::alloc(1, 0, Temperature::Cold, Fill::Sparse).expect("there is room");
    for order in 0..6 {
        let mut buddy = lock();
        // Room for the largest order. The lock is held until all of it is free again.
        if buddy.fullest_with(5, Home::here()).is_none() {
            buddy.grow(1, 1).expect("there is room");
        }
        let used = buddy.used_pages;
        let mut runs = [0; 8];
        let (count, zero) = buddy.alloc_batch(order, &mut runs);
        let runs = &runs[..count];
        assert!(count > 0 && buddy.used_pages == used + (count << order));
        assert!(runs.windows(2).all(|pair| pair[0] > pair[1]), "the lowest one is handed out first");
        assert!(runs.iter().all(|run| run % (1 << order) == 0));
        assert!(runs.iter().all(|&run| run as usize / CHUNK_PAGES == runs[0] as usize / CHUNK_PAGES));
        assert!(buddy.check().is_ok());
        assert!(buddy.free_batch(order, runs, zero));
        assert_eq!(buddy.used_pages, used);
        assert!(!buddy.free_batch(order, &runs[..1], 0), "what is free cannot come back");
        assert!(buddy.check().is_ok());
    }
    crate::pages::free(in_use.first, 1, Temperature::Cold);
}

#[test]
fn a_batch_that_came_zero_is_zero_again() {
    set_up!();
    let mut buddy = lock();
    let grown = arena::grow(1, 1).expect("there is room");
    // SAFETY: just committed, under the lock, and in no list.
    unsafe { (*arena::chunk(grown.first)).reset_free() };
    let first = (grown.first * CHUNK_PAGES) as u32;
    let runs = [first + 2, first];
    // SAFETY: as above.
    unsafe { (*arena::chunk(grown.first)).claim(0, 4) };
    buddy.link(grown.first);
    buddy.used_pages += 4;
    assert!(buddy.free_batch(1, &runs, 0b10));
    // SAFETY: as above.
    let chunk = unsafe { &*arena::chunk(grown.first) };
    assert_eq!((chunk.dirty_pages, chunk.zero[0] & 0xf), (2, 0b0011));
    assert!(buddy.check().is_ok());
}

#[test]
fn a_batch_that_comes_back_untouched_counts_the_memory_of_a_huge_page() {
    set_up!();
    let mut buddy = lock();
    let grown = arena::grow(1, 1).expect("there is room");
    // SAFETY: committed, and this test changes it under the lock.
    let chunk = || unsafe { &mut *arena::chunk(grown.first) };
    chunk().reset_free();
    chunk().back_with_huge();
    chunk().claim(0, 8);
    buddy.link(grown.first);
    buddy.used_pages += 8;
    let first = (grown.first * CHUNK_PAGES) as u32;
    assert!(buddy.free_batch(1, &[first], 1));
    assert!(chunk().is_huge && chunk().dirty_pages == 506, "the huge page backs the run");
    assert!(!buddy.free_batch(1, &[first], 1), "what is free cannot come back");
    assert!(buddy.check().is_ok());
    // The huge page is split while the batch is away: its memory stays.
    buddy.with_chunk(grown.first, Chunk::break_huge);
    assert!(buddy.free_batch(1, &[first + 2], 1));
    assert_eq!(chunk().dirty_pages, 508);
    assert!(buddy.free(PageIndex(first + 4), 4, false));
    assert!(buddy.check().is_ok());
}

#[test]
fn near_a_limit_there_is_no_batch() {
    set_up!();
    let mut buddy = lock();
    let before = (buddy.soft_pages, buddy.hard_pages);
    buddy.hard_pages = buddy.used_pages + buddy.dirty_pages + 7;
    assert_eq!(buddy.alloc_batch(1, &mut [0; 4]).0, 0);
    (buddy.soft_pages, buddy.hard_pages) = before;
}

#[test]
fn a_chunk_stays_mapped_during_its_collapse_and_is_not_the_librarys_once_its_place_is_taken() {
    const CHUNKS: usize = 8;
    set_up!();
    let run = crate::pages::alloc(CHUNKS * CHUNK_PAGES, 0, Temperature::Cold, Fill::Sparse);
    let run = run.expect("there is room");
    let first = run.first.0 as usize / CHUNK_PAGES;
    let index = (first..first + CHUNKS).find(|&index| arena::may_be_unmapped(index));
    let index = index.expect("not all have been slabs");
    let chunk = || {
        let _buddy = lock();
        // SAFETY: committed, under the lock, which only keeps away threads that the child lacks.
        unsafe { &*arena::chunk(index) }
    };
    // In a child, which has one thread and a limit of its own.
    assert!(os::fork::holds_in_child(|| {
        os::memory::limit_addresses();
        lock().collapsing = Some(index);
        crate::pages::free(run.first, run.pages, Temperature::Cold);
        crate::pages::purge_all();
        let others_went =
            (first..first + CHUNKS).any(|index| !os::memory::is_mapped(arena::address_of_chunk(index)));
        let stayed = !chunk().is_unmapped && os::memory::is_mapped(arena::address_of_chunk(index));
        lock().collapsing = None;
        crate::pages::purge_all();
        let went = chunk().is_unmapped && chunk().sparse_pages.is_some();
        let taken = os::memory::map_closed_at(arena::address_of_chunk(index), CHUNK_BYTES) == Placed::Mapped
            && lock().map_again(index, 1) == Placed::Taken;
        others_went && stayed && went && taken && chunk().sparse_pages.is_none()
    }));
    crate::pages::free(run.first, run.pages, Temperature::Cold);
}

#[test]
fn a_fork_child_has_no_collapse_under_way() {
    set_up!();
    lock().collapsing = Some(usize::MAX);
    assert!(os::fork::holds_in_child(|| lock().collapsing.is_none()));
    lock().collapsing = None;
}

#[test]
fn advice_does_not_cut_the_arena_into_too_many_mappings() {
    set_up!();
    let run =
        crate::pages::alloc(6 * CHUNK_PAGES, 9, Temperature::Cold, Fill::Sparse).expect("there is room");
    let first = run.first.0 as usize / CHUNK_PAGES + 1;
    let mut buddy = lock();
    let rows = buddy.advised_rows;
    buddy.set_advice(first, Advice::Huge);
    assert_eq!(buddy.advised_rows, rows + 1);
    buddy.advised_rows += huge::MAX_ADVISED_ROWS;
    assert!(buddy.may_advise(first + 1, true), "the row grows");
    assert!(!buddy.may_advise(first + 2, true), "another row");
    buddy.set_advice(first + 1, Advice::Huge);
    buddy.set_advice(first + 2, Advice::Huge);
    assert!(!buddy.may_advise(first + 1, false), "a hole cuts the row in two");
    assert!(buddy.may_advise(first + 2, false), "the row shrinks");
    buddy.advised_rows -= huge::MAX_ADVISED_ROWS;
    (first..first + 3).for_each(|index| buddy.set_advice(index, Advice::Small));
    assert_eq!(buddy.advised_rows, rows);
    drop(buddy);
    crate::pages::free(run.first, run.pages, Temperature::Cold);
}

#[test]
fn a_purge_splits_the_emptiest_of_the_next_huge_pages_and_goes_on_behind_it() {
    const CHUNKS: usize = 130;
    set_up!();
    let mut buddy = lock();
    let first = arena::grow(CHUNKS, CHUNKS).expect("there is room").first;
    for index in first..first + CHUNKS {
        // SAFETY: just committed, under the lock, and in no list.
        let chunk = unsafe { &mut *arena::chunk(index) };
        chunk.reset_free();
        chunk.back_with_huge();
        // The farther behind, the emptier.
        chunk.claim(0, 2 * CHUNKS - (index - first));
        buddy.link(index);
    }
    assert!(buddy.check_lists(1).is_ok());
    let next = |buddy: &Buddy, cursor, block| buddy.next_huge(cursor, Locked::Go, block);
    let furthest = first + 63;
    assert_eq!(next(&buddy, first, 1), Some(furthest), "the emptiest of 64");
    assert_eq!(next(&buddy, first + 10, 256), Some(first + 73), "and they have the block");
    assert_eq!(next(&buddy, first, CHUNK_PAGES), None, "no chunk in use has so large a block");
    buddy.with_chunk(furthest, Chunk::break_huge);
    assert!(Index::Dirty.has(furthest) && !Index::Huge.has(furthest));
    assert_eq!(next(&buddy, first, 1), Some(first + 64), "a chunk that was split is passed over");
    buddy.with_chunk(furthest, |chunk| (chunk.zero, chunk.dirty_pages) = ([u64::MAX; 8], 0));
    for index in first..first + CHUNKS {
        buddy.with_chunk(index, |chunk| chunk.unclaim(0, 2 * CHUNKS - (index - first)));
        assert!(!Index::Huge.has(index) && !Index::Dirty.has(index));
    }
    assert!(buddy.check_lists(1).is_ok());
}

#[test]
fn a_run_that_the_hard_limit_forbids_leaves_its_first_chunk_as_it_was() {
    const USED: usize = CHUNK_PAGES - 8;
    set_up!();
    let mut buddy = lock();
    let first = arena::grow(2, 2).expect("there is room").first;
    for index in [first, first + 1] {
        // SAFETY: just committed, under the lock, and in no list.
        unsafe { (*arena::chunk(index)).reset_free() };
        arena::set_home_of_chunk(index, Home::here());
        buddy.link(index);
    }
    let start = PageIndex((first * CHUNK_PAGES) as u32);
    buddy.claim_run(first, 0, USED, Fill::Dense, Home::here());
    assert!(buddy.charge(USED));
    let (behind, more, hard_pages) = (start.plus(USED), CHUNK_PAGES, buddy.hard_pages);
    buddy.hard_pages = buddy.held_pages() + more - 1;
    assert!(!buddy.claim_at(behind, more));
    // SAFETY: as above.
    let sparse_pages = || unsafe { (*arena::chunk(first)).sparse_pages };
    assert!(sparse_pages() < Some(u16::MAX), "no long run lies in it");
    buddy.hard_pages = hard_pages;
    assert!(buddy.claim_at(behind, more));
    assert_eq!(sparse_pages(), Some(u16::MAX));
    assert!(buddy.free(start, USED + more, false));
    assert!(buddy.check().is_ok());
}

#[test]
fn a_search_lowers_some_bounds_and_the_next_one_goes_on_behind_them() {
    const LONGEST: Class = Class(u8::MAX);
    set_up!();
    let mut buddy = lock();
    let grown = arena::grow(32, 32).expect("there is room");
    for index in grown.first..grown.first + grown.count {
        // SAFETY: just committed, under the lock, and in no list.
        unsafe { (*arena::chunk(index)).reset_free() };
        buddy.link(index);
    }
    // The chunks of other tests, whose bounds are as low as can be after that.
    let mut bounds: Vec<usize> =
        Length::Extent.with(LONGEST, usize::MAX).map(|index| index / lengths::FANOUT[0]).collect();
    bounds.dedup();
    let first = grown.first.next_multiple_of(lengths::FANOUT[0]);
    let target = first + 2 * lengths::FANOUT[0];
    for index in first..=target {
        Length::Extent.set(index, LONGEST);
        Length::Extent.set(index, Class(if index == target { LONGEST.0 } else { 0 }));
    }
    let is_found = || Length::Extent.with(LONGEST, bounds.len() + 1).any(|index| index == target);
    assert_eq!([is_found(), is_found(), is_found()], [false, false, true]);
    Length::Extent.set(target, Class(0));
    assert!(buddy.check().is_ok());
}

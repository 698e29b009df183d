//! Tests of the page layer.
//!
//! Other tests of the process use the same arena at the same time, and may take a free page away. A
//! test that this can disturb makes several attempts, of which one must succeed.

use super::*;
use crate::os::fork::holds_in_child;
use crate::rseq::Owner;
use core::slice;

extern crate std;
use std::vec::Vec;

/// Whether one of a hundred attempts succeeds.
fn once(mut attempt: impl FnMut() -> bool) -> bool {
    (0..100).any(|_| {
        std::thread::yield_now();
        attempt()
    })
}

fn cold(pages: usize, align_order: u32) -> Run {
    set_up!();
    let run = alloc(pages, align_order, Temperature::Cold, Fill::Sparse).expect("there is room");
    assert_eq!(run.pages, pages);
    run
}

/// The bytes of a run.
fn bytes(run: &Run) -> &'static mut [u8] {
    // SAFETY: the run is the caller's until it is freed; the tests look at it no longer.
    unsafe { slice::from_raw_parts_mut(address_of(run.first), run.pages * PAGE_BYTES) }
}

fn release(run: Run) {
    free(run.first, run.pages, Temperature::Cold);
}

#[test]
fn runs_that_are_called_zero_are_zero_and_written_ones_are_not_called_so() {
    let mut zeroed = 0;
    for round in 0..200usize {
        let run = cold(1 + round * 7 % 40, 0);
        if run.zeroed {
            assert!(bytes(&run).iter().all(|&byte| byte == 0));
            zeroed += 1;
        }
        bytes(&run).fill(0xff);
        release(run);
        if round % 10 == 0 {
            purge_all();
        }
    }
    assert!(zeroed > 0, "purged pages are handed out as zero");
}

#[test]
fn a_run_given_back_untouched_is_still_known_to_be_zero() {
    assert!(once(|| {
        let run = cold(3 * CHUNK_PAGES, 0);
        if !run.zeroed {
            release(run);
            purge_all();
            return false;
        }
        let first = run.first;
        free_zeroed(first, run.pages);
        let again = cold(3 * CHUNK_PAGES, 0);
        let same = again.first == first && again.zeroed;
        release(again);
        same
    }));
}

#[test]
fn a_run_grows_into_free_pages_and_into_no_others() {
    let run = cold(64, 0);
    assert!(!extend(run.first.plus(10), 1), "a page in use is not given out again");
    assert!(!extend(run.first.plus(63), 2));
    release(run);
    assert!(once(|| {
        let run = cold(64, 0);
        let half = run.first.plus(32);
        free(half, 32, Temperature::Cold);
        let grown = extend(half, 32);
        free(run.first, if grown { 64 } else { 32 }, Temperature::Cold);
        grown
    }));
}

#[test]
fn a_run_grows_over_the_end_of_its_chunk() {
    assert!(once(|| {
        let run = cold(2 * CHUNK_PAGES, 0);
        let half = run.first.plus(CHUNK_PAGES - 50);
        free(half, CHUNK_PAGES + 50, Temperature::Cold);
        let grown = extend(half, CHUNK_PAGES + 50);
        free(run.first, if grown { run.pages } else { CHUNK_PAGES - 50 }, Temperature::Cold);
        grown
    }));
}

#[test]
fn nothing_grows_beyond_the_arena() {
    set_up!();
    assert!(!extend(PageIndex(u32::MAX / 2), 1));
}

#[test]
fn runs_beyond_a_chunk_leave_the_rest_of_their_last_chunk_and_the_longest_start_on_one() {
    assert!(once(|| {
        let run = cold(CHUNK_PAGES + 100, 0);
        bytes(&run)[run.pages * PAGE_BYTES - 1] = 1;
        let tail = run.first.plus(run.pages);
        let free_tail = !(tail.0 as usize).is_multiple_of(CHUNK_PAGES) && extend(tail, 1);
        if free_tail {
            free(tail, 1, Temperature::Cold);
        }
        release(run);
        let run = cold(4 * CHUNK_PAGES + 1, 0);
        assert_eq!(run.first.0 as usize % CHUNK_PAGES, 0);
        release(run);
        free_tail
    }));
}

#[test]
fn long_runs_take_the_end_of_one_chunk_and_the_start_of_another() {
    set_up!();
    // In a child, which has one thread.
    assert!(holds_in_child(|| {
        // Three chunks in a row, of which all but one page at each end comes back.
        let run = cold(3 * CHUNK_PAGES, 9);
        let inner = run.first.plus(1);
        free(inner, run.pages - 2, Temperature::Cold);
        let two = [cold(CHUNK_PAGES + 100, 0), cold(2 * CHUNK_PAGES - 102, 0)];
        // Other free pages may lie at lower addresses.
        let fit = two.iter().all(|two| two.first < inner.plus(run.pages - 2));
        check().expect("valid");
        two.into_iter().for_each(release);
        fit
    }));
}

#[test]
fn runs_take_pages_with_memory_wherever_these_begin() {
    set_up!();
    for pages in [76, 77, 509, 511] {
        // In a child, which has one thread.
        assert!(holds_in_child(|| {
            let run = cold(CHUNK_PAGES, 9);
            bytes(&run).fill(1);
            let inner = run.first.plus(1);
            free(inner, pages, Temperature::Cold);
            let again = cold(pages, 0);
            // Another extent may lie at a lower address.
            let is_dirty = !again.zeroed && (again.first == inner || again.first < run.first);
            check().expect("valid");
            is_dirty
        }));
    }
}

#[test]
fn runs_lie_on_the_boundary_asked_for() {
    for (pages, align_order) in [(1, 0), (3, 2), (16, 4), (1, 9), (10, 11), (600, 10), (1500, 12)] {
        let run = cold(pages, align_order);
        assert_eq!(address_of(run.first) as usize % (PAGE_BYTES << align_order), 0, "{pages} {align_order}");
        assert_eq!(page_of(address_of(run.first)), Some(run.first));
        release(run);
    }
}

#[test]
fn what_the_address_space_cannot_hold_is_refused() {
    set_up!();
    for (pages, align_order) in [(1 << 40, 0), (usize::MAX >> 12, 0), (1, 40), (1, 51), (513, 51)] {
        assert!(
            alloc(pages, align_order, Temperature::Cold, Fill::Sparse).is_none(),
            "{pages} {align_order}"
        );
    }
}

#[test]
fn live_runs_do_not_overlap() {
    let runs: Vec<Run> = (0..300).map(|n| cold(1 + n * 13 % 60, 0)).collect();
    for (n, run) in runs.iter().enumerate() {
        bytes(run).fill(n as u8);
    }
    for (n, run) in runs.iter().enumerate() {
        assert!(bytes(run).iter().all(|&byte| byte == n as u8));
    }
    runs.into_iter().for_each(release);
}

#[test]
fn the_run_freed_last_is_given_out_first() {
    set_up!();
    assert!(once(|| {
        let run = alloc(1, 0, Temperature::Hot, Fill::Sparse).expect("there is room");
        free(run.first, 1, Temperature::Hot);
        let again = alloc(1, 0, Temperature::Hot, Fill::Sparse).expect("there is room");
        let same = again.first == run.first;
        free(again.first, 1, Temperature::Hot);
        same
    }));
}

#[test]
fn a_page_is_cleared_of_its_owner_once() {
    let owner_of_test = Owner::plain(15);
    let run = cold(2, 0);
    set_owner(run.first, 2, owner_of_test);
    assert_eq!(owner(run.first.plus(1)), owner_of_test);
    assert!(clear_owner(run.first, owner_of_test));
    assert!(!clear_owner(run.first, owner_of_test));
    assert_eq!(owner(run.first), Owner::NONE);
    assert!(clear_owner(run.first.plus(1), owner_of_test));
    release(run);
}

#[test]
fn purge_gives_back_what_is_free_and_nothing_else() {
    let kept = cold(100, 0);
    bytes(&kept).fill(0x5a);
    assert!(once(|| {
        let run = cold(2 * CHUNK_PAGES, 0);
        bytes(&run).fill(1);
        release(run);
        purge_all() >= CHUNK_BYTES
    }));
    assert!(bytes(&kept).iter().all(|&byte| byte == 0x5a));
    release(kept);
}

#[test]
fn a_purge_of_some_takes_what_lies_together() {
    assert!(once(|| {
        purge_all();
        let run = cold(2 * CHUNK_PAGES, 0);
        bytes(&run).fill(1);
        release(run);
        purge_some(CHUNK_BYTES, Scattered::Stay) >= CHUNK_BYTES
    }));
}

#[test]
fn a_move_takes_the_advice_about_huge_pages_along() {
    let (from, to) = (cold(CHUNK_PAGES + 100, 9), cold(CHUNK_PAGES + 100, 9));
    let chunks = |run: &Run| run.first.0 as usize / CHUNK_PAGES..run.first.0 as usize / CHUNK_PAGES + 2;
    // SAFETY: the chunks are committed, and the caller holds the lock.
    let chunk = |index: usize| unsafe { &mut *arena::chunk(index) };
    let set = |run: &Run, advice: chunk::Advice| {
        let mut buddy = buddy::lock();
        chunks(run).for_each(|index| buddy.set_advice(index, advice));
    };
    let all_are = |run: &Run, advice: chunk::Advice| {
        let _buddy = buddy::lock();
        chunks(run).all(|index| chunk(index).advice == advice)
    };
    set(&from, chunk::Advice::Huge);
    note_moved(from.first, to.first, from.pages);
    assert!(all_are(&to, chunk::Advice::Unknown));
    // A kernel without huge pages refuses to hear of them.
    assert!(all_are(&from, chunk::Advice::Revoked) || all_are(&from, chunk::Advice::Unknown));
    [from, to].into_iter().for_each(|run| {
        set(&run, chunk::Advice::Small);
        release(run);
    });
}

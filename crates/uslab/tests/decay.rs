//! Decay: free memory stays as long as the program or the environment says, and then goes back.
//!
//! A process has one decay, so each test runs in a process of its own, in both modes.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ptr;
use std::time::{Duration, Instant};
use uslab::internal::entry::{Program, malloc_for};
use uslab::malloc::free;
use uslab::stats;

const MIB: usize = 1 << 20;
const BLOCKS: usize = 640;
const BLOCK_BYTES: usize = 100_000;
/// Most of the memory of the blocks.
const MOST_BYTES: usize = BLOCKS * BLOCK_BYTES * 9 / 10;

/// Free memory that is resident.
fn free_bytes() -> usize {
    stats::usage().dirty_bytes
}

/// Allocates 64 MB, touches it, frees it, and returns the free memory that is resident then.
fn wave() -> usize {
    let mut blocks = [ptr::null_mut::<u8>(); BLOCKS];
    for block in &mut blocks {
        *block = malloc_for::<Program>(BLOCK_BYTES);
        assert!(!block.is_null());
        // SAFETY: allocated above, with that size.
        unsafe { block.write_bytes(1, BLOCK_BYTES) };
    }
    // SAFETY: allocated above, freed once.
    blocks.into_iter().for_each(|block| unsafe { free(block) });
    free_bytes()
}

/// Waits until no more than a mebibyte of free memory is resident.
fn until_gone() {
    let start = Instant::now();
    while free_bytes() > MIB {
        assert!(start.elapsed() < Duration::from_secs(120), "free memory goes back");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("gone after {:.2?}", start.elapsed());
}

#[test]
fn free_memory_stays_as_long_as_the_program_says() {
    in_both_modes("free_memory_stays_as_long_as_the_program_says", &[], || {
        uslab::set_decay(None);
        assert!(wave() >= MOST_BYTES, "{} bytes stay", free_bytes());
        std::thread::sleep(Duration::from_millis(1700));
        assert!(free_bytes() >= MOST_BYTES, "{} bytes stay", free_bytes());
        uslab::set_decay(Some(Duration::from_millis(100)));
        until_gone();
        uslab::set_decay(Some(Duration::ZERO));
        let left_bytes = wave();
        assert!(left_bytes <= MIB, "{left_bytes} bytes stay");
    });
}

#[test]
fn free_memory_goes_back_after_about_a_second() {
    in_both_modes("free_memory_goes_back_after_about_a_second", &[], || {
        wave();
        until_gone();
    });
}

#[test]
fn the_environment_chooses_first() {
    let environment = [("USLAB_DECAY_MS", "never")];
    in_both_modes("the_environment_chooses_first", &environment, || {
        assert!(wave() >= MOST_BYTES, "{} bytes stay", free_bytes());
        std::thread::sleep(Duration::from_millis(1700));
        assert!(free_bytes() >= MOST_BYTES, "{} bytes stay", free_bytes());
        assert!(uslab::trim(0) >= MOST_BYTES, "a request is heeded");
    });
}

#[test]
fn the_programs_choice_stands_before_the_environments() {
    let environment = [("USLAB_DECAY_MS", "never")];
    in_both_modes("the_programs_choice_stands_before_the_environments", &environment, || {
        // Before the library reads the environment.
        uslab::set_decay(Some(Duration::ZERO));
        let left_bytes = wave();
        assert!(left_bytes <= MIB, "{left_bytes} bytes stay");
    });
}

/// Frees nearly nine of ten pages inside slabs in use. Returns the bytes that were in use before.
fn free_pages_inside_slabs() -> usize {
    const OBJECT_BYTES: usize = 1000;
    let mut objects = [ptr::null_mut::<u8>(); 24 * MIB / OBJECT_BYTES];
    for object in &mut objects {
        *object = malloc_for::<Program>(OBJECT_BYTES);
        // SAFETY: allocated above, with that size.
        unsafe { object.write_bytes(1, OBJECT_BYTES) };
    }
    let before_bytes = stats::usage().used_bytes;
    let is_freed = |&(index, _): &(usize, &*mut u8)| index / 10 % 10 != 0;
    // SAFETY: allocated above, freed once.
    objects.iter().enumerate().filter(is_freed).for_each(|(_, &object)| unsafe { free(object) });
    println!("{before_bytes} bytes in use, {} after the frees", stats::usage().used_bytes);
    before_bytes
}

fn until_pages_inside_slabs_went(before_bytes: usize) {
    let start = Instant::now();
    while stats::usage().used_bytes > before_bytes / 2 {
        assert!(start.elapsed() < Duration::from_secs(120), "{} bytes stay", stats::usage().used_bytes);
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("gone from slabs after {:.2?}", start.elapsed());
}

#[test]
fn pages_inside_slabs_stay_as_long_as_the_program_says() {
    in_both_modes("pages_inside_slabs_stay_as_long_as_the_program_says", &[], || {
        uslab::set_decay(None);
        let before_bytes = free_pages_inside_slabs();
        let stay = || stats::usage().used_bytes > before_bytes / 10 * 9;
        std::thread::sleep(Duration::from_millis(1200));
        assert!(stay(), "{} bytes of {before_bytes} stay", stats::usage().used_bytes);
        // They were seen at rest, but for less than 20 looks.
        uslab::set_decay(Some(Duration::from_secs(10)));
        std::thread::sleep(Duration::from_millis(1500));
        assert!(stay(), "{} bytes of {before_bytes} stay", stats::usage().used_bytes);
        uslab::set_decay(Some(Duration::from_millis(100)));
        until_pages_inside_slabs_went(before_bytes);
    });
}

#[test]
fn pages_inside_slabs_need_no_rest_without_decay() {
    let environment = [("USLAB_DECAY_MS", "0")];
    in_both_modes("pages_inside_slabs_need_no_rest_without_decay", &environment, || {
        let before_bytes = free_pages_inside_slabs();
        until_pages_inside_slabs_went(before_bytes);
    });
}

#[test]
fn free_memory_counts_against_a_limit_at_once() {
    let environment = [("USLAB_DECAY_MS", "never")];
    in_both_modes("free_memory_counts_against_a_limit_at_once", &environment, || {
        wave();
        uslab::set_limit(0, free_bytes() + 8 * MIB).unwrap();
        // Larger than any free piece, and than what the limit leaves.
        let block = malloc_for::<Program>(80 * MIB);
        assert!(block.is_null(), "the limit holds");
        let block = malloc_for::<Program>(60 * MIB);
        assert!(!block.is_null(), "free memory makes room below the limit");
        // SAFETY: allocated above.
        unsafe { free(block) };
    });
}

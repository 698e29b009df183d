//! Tests of this layer, one behaviour each. Random sequences of many steps are in
//! `tests/properties/`.

use super::classes::MAX_SMALL_BYTES;
use super::classes::{CLASSES, Class};
use super::entry::*;
use super::heap::Heap;
use super::list;
use crate::os;
use core::slice;

extern crate std;
use std::vec::Vec;

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { super::entry::usable_size(pointer) }
}

const MIB: usize = 1 << 20;

/// Fills an object with a pattern that differs from page to page.
fn fill(object: *mut u8, bytes: usize) {
    assert!(!object.is_null());
    // SAFETY: the object is the test's, of that size.
    let all = unsafe { slice::from_raw_parts_mut(object, bytes) };
    all.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
}

fn assert_filled(object: *const u8, bytes: usize) {
    // SAFETY: as above.
    let all = unsafe { slice::from_raw_parts(object, bytes) };
    assert!(all.iter().enumerate().all(|(i, &byte)| byte == (i % 251) as u8), "{bytes} bytes are kept");
}

fn release(object: *mut u8) {
    // SAFETY: the tests free what they allocated, once.
    unsafe { free(object) };
}

#[test]
fn every_class_serves_its_size_at_its_alignment() {
    for bytes in (0..CLASSES).filter_map(Class::at).map(Class::bytes) {
        let objects: Vec<*mut u8> = (0..20).map(|_| malloc(bytes)).collect();
        for &object in &objects {
            assert_eq!(usable_size(object), bytes);
            // Powers of two are aligned to themselves, up to a page.
            let align = if bytes.is_power_of_two() { bytes.min(4096) } else { ALIGN };
            assert_eq!(object as usize % align, 0, "{bytes}");
        }
        objects.into_iter().for_each(release);
    }
}

#[test]
fn realloc_keeps_contents_over_classes_and_runs() {
    let sizes = [1, 16, 17, 100, 128, 1000, 32 << 10, (32 << 10) + 1, 100_000, MIB - 1, 3 * MIB, 9 * MIB];
    for &from in &sizes {
        for &to in &sizes {
            let object = malloc(from);
            fill(object, from);
            // SAFETY: an object of this test; the old address is not used any more.
            let moved = unsafe { realloc(object, to) };
            assert_filled(moved, from.min(to));
            assert!(usable_size(moved) >= to);
            release(moved);
        }
    }
}

#[test]
fn large_objects_are_moved_by_pages_and_leave_zeroes() {
    let object = malloc(2 * MIB);
    // The pages behind it are in use, so the object cannot grow in place.
    let wall = malloc(2 * MIB);
    fill(object, 2 * MIB);
    // SAFETY: an object of this test; the old address is not used any more.
    let moved = unsafe { realloc(object, 20 * MIB) };
    assert_filled(moved, 2 * MIB);
    // A zeroed allocation at the old place must read as zero.
    let others: Vec<*mut u8> = (0..10).map(|_| zeroed(2 * MIB)).collect();
    for &other in &others {
        // SAFETY: allocated by this test, with that size.
        let found = unsafe { slice::from_raw_parts(other, 2 * MIB) };
        assert!(found.iter().all(|&byte| byte == 0));
    }
    others.into_iter().chain([wall, moved]).for_each(release);
}

/// Whether `attempt` holds once in a hundred times: other tests may take the pages that it needs.
fn once(mut attempt: impl FnMut() -> bool) -> bool {
    (0..100).any(|_| attempt())
}

#[test]
fn a_medium_object_shrinks_in_place_and_grows_back() {
    for bytes in [50_000, 100_000, 300_000, MIB] {
        let object = malloc(bytes);
        fill(object, bytes);
        // SAFETY: an object of this test, resized and freed by it alone. So below.
        let shrunk = unsafe { realloc(object, 33_000) };
        assert_eq!((shrunk, usable_size(shrunk)), (object, 36_864));
        assert_filled(shrunk, 33_000);
        release(shrunk);
        assert!(once(|| {
            let object = malloc(bytes);
            fill(object, 33_000);
            // SAFETY: as above.
            let shrunk = unsafe { realloc(object, 33_000) };
            // SAFETY: as above.
            let grown = unsafe { realloc(shrunk, bytes) };
            assert_filled(grown, 33_000);
            release(grown);
            grown == object
        }));
    }
}

#[test]
fn a_medium_object_grows_into_the_free_pages_behind_it() {
    assert!(once(|| {
        let block = malloc(4 * MIB);
        // SAFETY: an object of this test; its first pages stay, and the rest is free.
        let object = unsafe { realloc(block, 64 << 10) };
        fill(object, 64 << 10);
        // SAFETY: as above.
        let grown = unsafe { realloc(object, 3 * MIB) };
        assert_filled(grown, 64 << 10);
        release(grown);
        grown == block
    }));
}

#[test]
fn realloc_within_a_medium_class_stays_and_moves_no_pages() {
    let object = malloc(100_000);
    // SAFETY: an object of this test.
    let same = unsafe { realloc(object, 112 << 10) };
    assert_eq!((same, usable_size(same)), (object, 112 << 10));
    release(same);
}

#[test]
fn a_medium_size_that_is_cleared_is_zero_wherever_it_comes_from() {
    for round in 0..50 {
        let used = malloc(200_000);
        fill(used, 200_000);
        release(used);
        let object = zeroed(200_000 + round);
        // SAFETY: allocated by this test, with that size.
        let bytes = unsafe { slice::from_raw_parts_mut(object, 200_000 + round) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        bytes.fill(1);
        release(object);
    }
}

#[test]
fn realloc_within_a_class_stays_where_it_is() {
    let object = malloc(100);
    // SAFETY: allocated by this test.
    assert_eq!(unsafe { realloc(object, 112) }, object);
    // SAFETY: allocated by this test, last resized to that size.
    unsafe { free_sized(object, 112) };
}

#[test]
fn realloc_of_a_page_run_of_a_classs_size_moves_to_the_class() {
    // With alignment beyond a page, runs have one or two pages, which are also sizes of classes.
    // `free_sized` uses the size only: it would push a run left in place into the class's cache.
    for bytes in [4096, 8192] {
        let run = aligned_alloc(8192, bytes);
        assert_eq!(usable_size(run), bytes);
        fill(run, bytes);
        // SAFETY: an object of this test; the old address is not used any more.
        let moved = unsafe { realloc(run, bytes) };
        assert_ne!(moved, run);
        assert_filled(moved, bytes);
        // SAFETY: allocated by this test, last resized to that size.
        unsafe { free_sized(moved, bytes) };
    }
}

#[test]
fn refused_requests_set_errno_and_frees_keep_it() {
    let said = |set: fn()| {
        set();
        os::errno::get()
    };
    let (no_memory, invalid) = (said(os::errno::set_out_of_memory), said(os::errno::set_invalid));
    assert_ne!(no_memory, invalid);
    let refused = |expected: i32, object: *mut u8| {
        assert!(object.is_null());
        assert_eq!(os::errno::get(), expected);
        os::errno::set(0);
    };
    os::errno::set(0);
    refused(no_memory, malloc(usize::MAX));
    refused(no_memory, malloc(isize::MAX as usize + 1));
    refused(no_memory, calloc(usize::MAX / 2, 3));
    refused(no_memory, aligned_alloc(1 << 50, 1));
    refused(invalid, aligned_alloc(0, 1));
    refused(invalid, aligned_alloc(24, 1));
    let objects = [malloc(0), malloc(MIB)];
    os::errno::set(99);
    objects.into_iter().for_each(release);
    release(core::ptr::null_mut());
    assert_eq!(os::errno::get(), 99);
}

#[test]
fn objects_of_no_size_are_distinct() {
    let (a, b) = (malloc(0), malloc(0));
    assert!(!a.is_null() && !b.is_null() && a != b);
    release(a);
    release(b);
}

#[test]
fn zeroed_memory_is_zero_after_dirty_use() {
    for bytes in [10, 1000, 32 << 10, 40_000, 3 * MIB] {
        for _ in 0..5 {
            let object = zeroed(bytes);
            // SAFETY: allocated by this test, with that size.
            let found = unsafe { slice::from_raw_parts_mut(object, bytes) };
            assert!(found.iter().all(|&byte| byte == 0));
            found.fill(0xff);
            release(object);
        }
    }
}

#[test]
fn usable_size_of_a_pointer_that_is_no_object_is_zero() {
    assert_eq!(usable_size(core::ptr::null()), 0);
    let elsewhere = 0u64;
    assert_eq!(usable_size((&raw const elsewhere).cast()), 0);
    // A large run has the pages that the size needs, a medium object those of its class.
    for (bytes, usable) in [(100_000, 112 << 10), (3 * MIB + 1, 3 * MIB + 4096)] {
        let object = malloc(bytes);
        assert_eq!(usable_size(object), usable);
        assert_eq!(usable_size(object.wrapping_add(8)), 0);
        for page in 1..usable / 4096 {
            assert_eq!(usable_size(object.wrapping_add(page * 4096)), 0, "page {page}");
        }
        release(object);
    }
}

#[test]
fn dropping_a_heap_frees_its_large_objects() {
    let heap = Heap::new().expect("there is memory");
    let objects: Vec<_> = (1..5).map(|n| heap.alloc(n * 50_000, 16).expect("there is memory")).collect();
    // Frees one object from the middle of the heap's list, by the plain `free`.
    release(objects[1].as_ptr());
    let small = heap.alloc(10, 8).expect("there is memory");
    assert!(usable_size(small.as_ptr()) >= 10);
    drop(heap);
}

#[test]
fn every_size_is_served_by_its_class_the_first_time_and_the_second() {
    for size in (0..=MAX_SMALL_BYTES).step_by(7).chain([1024, 1025, 2048, 2049, MAX_SMALL_BYTES]) {
        for _ in 0..2 {
            let object = malloc(size);
            assert_eq!(usable_size(object), Class::of(size).unwrap().bytes(), "{size}");
            // SAFETY: it was just allocated.
            unsafe { free(object) };
        }
    }
}

#[test]
#[should_panic(expected = "the neighbours of a node link back to it")]
fn a_broken_list_of_large_objects_ends_the_process() {
    let heap = core::mem::ManuallyDrop::new(Heap::new().expect("there is memory"));
    let older = heap.alloc(1 << 20, 16).expect("there is memory");
    let newer = heap.alloc(1 << 20, 16).expect("there is memory");
    let page = crate::pages::page_of(older.as_ptr()).expect("in the arena");
    list::head(page).break_links();
    list::forget(crate::pages::page_of(newer.as_ptr()).expect("in the arena"));
}

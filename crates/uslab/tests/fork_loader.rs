//! Forks while another thread of the program holds the loader's lock. glibc leaves it taken in the
//! child for ever, so nothing there may wait for it: not stacks, not reports.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[allow(dead_code, reason = "its children start no threads")]
#[path = "storm/child.rs"]
mod child;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use uslab::debug::{Sink, set_abort, set_sink};
use uslab::internal::entry::{MALLOC, NEW, Operator, free_as, malloc_for};
use uslab::malloc::{free, malloc};
use uslab::profile;

/// Whether the other thread is to leave the loader.
static LEAVES: AtomicBool = AtomicBool::new(false);
/// Whether it is inside.
static IS_INSIDE: AtomicBool = AtomicBool::new(false);

extern "C" fn stay(_: *mut libc::dl_phdr_info, _: usize, _: *mut libc::c_void) -> libc::c_int {
    IS_INSIDE.store(true, Relaxed);
    while !LEAVES.load(Relaxed) {
        std::thread::yield_now();
    }
    1
}

/// Forks while another thread is inside the loader, and waits until the child ends.
fn fork_beside_a_visitor(work: impl FnOnce() -> Result<(), &'static str>) {
    LEAVES.store(false, Relaxed);
    IS_INSIDE.store(false, Relaxed);
    std::thread::scope(|scope| {
        // SAFETY: the loader calls `stay` with its descriptions, and that uses none.
        scope.spawn(|| unsafe { libc::dl_iterate_phdr(Some(stay), std::ptr::null_mut()) });
        while !IS_INSIDE.load(Relaxed) {
            std::thread::yield_now();
        }
        let child = child::fork(work);
        LEAVES.store(true, Relaxed);
        child::wait(child).unwrap();
    });
}

/// Allocates and frees much more than a period of the profile.
fn use_memory() {
    for _ in 0..2000 {
        let object = black_box(malloc(1000));
        // SAFETY: it was just allocated.
        unsafe { free(object) };
    }
}

/// The sites of the profile that have a stack.
fn sites_with_stacks() -> usize {
    let mut text = Vec::new();
    let _ = profile::write(&mut |piece| text.extend_from_slice(piece));
    let sites = text.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"site "));
    // Eleven words stand before the frames.
    sites.filter(|line| line.split(|&byte| byte == b' ').count() > 13).count()
}

#[test]
fn a_child_samples_with_stacks() {
    in_both_modes("a_child_samples_with_stacks", &[], || {
        profile::start(4096).expect("there is memory");
        use_memory();
        assert!(sites_with_stacks() > 0);
        fork_beside_a_visitor(|| {
            // Sites from before have their stacks: start anew.
            profile::stop();
            profile::start(4096).map_err(|_| "no memory")?;
            use_memory();
            if sites_with_stacks() > 0 { Ok(()) } else { Err("no site has a stack") }
        });
    });
}

static REPORTS: AtomicU32 = AtomicU32::new(0);

fn count(text: &str) {
    REPORTS.fetch_add(u32::from(text.contains("mismatch") || text.contains("double free")), Relaxed);
}

fn count_reports() {
    set_abort(false);
    set_sink(Sink::Callback(count));
}

#[test]
fn a_child_reports_a_double_free() {
    in_both_modes("a_child_reports_a_double_free", &[], || {
        count_reports();
        let object = malloc(100);
        fork_beside_a_visitor(|| {
            // SAFETY: the second free is the fault that the test is about.
            unsafe {
                free(object);
                free(object);
            }
            if REPORTS.load(Relaxed) == 1 { Ok(()) } else { Err("no report") }
        });
        // SAFETY: it is in use here.
        unsafe { free(object) };
    });
}

#[test]
fn a_child_reports_a_mismatch_as_its_parent_does() {
    let environment = [("USLAB_DEBUG", "FU"), ("USLAB_GUARD", "0")];
    in_both_modes("a_child_reports_a_mismatch_as_its_parent_does", &environment, || {
        count_reports();
        let mix = || {
            let object = malloc_for::<Operator<NEW>>(24);
            // SAFETY: the object is in use; the family is the fault that the test is about.
            unsafe { free_as::<MALLOC>(object) };
        };
        mix();
        // An object of the process may export its own operators: then no process reports it.
        let expected = 2 * REPORTS.load(Relaxed);
        fork_beside_a_visitor(|| {
            mix();
            if REPORTS.load(Relaxed) == expected { Ok(()) } else { Err("another answer") }
        });
    });
}

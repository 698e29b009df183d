//! Guard pages by the library's own interface: figures, sizes, frees of every kind, forks.

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::os::unix::process::ExitStatusExt;
use uslab::debug::guard::{self, Options, Side};
use uslab::internal::entry::{Program, free_sized_tested, good_size, malloc_for, realloc_for, zeroed_for};
use uslab::malloc::free;

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

/// Samples every allocation that takes the slow path, with objects at the end of their slots.
fn start() {
    let mut options = Options::default();
    (options.interval_ms, options.slots, options.side) = (0, 64, Side::Right);
    assert!(guard::start(options));
}

/// A guarded object of `size` bytes, an odd number: its usable size is the requested one.
fn guarded(size: usize) -> *mut u8 {
    let mut others = Vec::new();
    let object = (0..5000).map(|_| malloc_for::<Program>(size)).find(|&object| {
        let is_guarded = usable_size(object) == size;
        if !is_guarded {
            others.push(object);
        }
        is_guarded
    });
    // SAFETY: allocated above, and unused.
    others.into_iter().for_each(|other| unsafe { free(other) });
    object.expect("one of many allocations takes the slow path")
}

#[test]
fn objects_between_guard_pages_behave_as_all_others() {
    in_both_modes("objects_between_guard_pages_behave_as_all_others", &[("USLAB_GUARD", "1")], || {
        assert_eq!(guard::stats(), guard::Stats::default());
        start();
        for size in [1, 33, 777, 1023, 1025, 4097, 50_001] {
            let object = guarded(size);
            assert!(object.addr().is_multiple_of(16));
            let before = guard::stats();
            assert!(before.used_slots >= 1 && before.sampled >= 1);
            // SAFETY: an object of that size.
            unsafe { object.write_bytes(7, size) };
            // SAFETY: as above; the new object has at least that size.
            let moved = unsafe { realloc_for::<Program>(object, size + 2) };
            // SAFETY: as above.
            assert!((0..size).all(|at| unsafe { moved.add(at).read() } == 7));
            // SAFETY: an object of that size, unused from here on.
            unsafe { free_sized_tested::<{ uslab::internal::entry::MALLOC }>(moved, size + 2) };
            let zeroes = zeroed_for::<Program>(size);
            // SAFETY: an object of that size.
            assert!((0..size).all(|at| unsafe { zeroes.add(at).read() } == 0));
            // SAFETY: as above.
            unsafe { free(zeroes) };
        }
        let after = guard::stats();
        assert_eq!((after.used_slots, after.reported), (0, 0));
        assert_eq!(usable_size(guarded(1025)), 1025);
        guard::stop();
        let sampled = guard::stats().sampled;
        // SAFETY: unused.
        (0..10_000).for_each(|_| unsafe { free(malloc_for::<Program>(2001)) });
        assert_eq!(guard::stats().sampled, sampled);
        uslab::debug::validate().expect("the library's structures are whole");
    });
}

#[test]
fn rust_frees_small_objects_by_size_and_gets_none() {
    in_both_modes("rust_frees_small_objects_by_size_and_gets_none", &[("USLAB_GUARD", "1")], || {
        start();
        let sampled = guard::stats().sampled;
        let objects: Vec<_> =
            (0..5000).map(|n| (uslab::malloc::malloc(n % 1000 + 1), n % 1000 + 1)).collect();
        assert_eq!(guard::stats().sampled, sampled);
        // SAFETY: allocated with these sizes, and unused.
        objects.iter().for_each(|&(object, size)| unsafe { uslab::malloc::free_sized(object, size) });
    });
}

#[test]
fn a_late_start_guards_larger_objects_only() {
    in_both_modes("a_late_start_guards_larger_objects_only", &[], || {
        let early = malloc_for::<Program>(100);
        start();
        let sampled = guard::stats().sampled;
        let late: Vec<_> = (0..1000).map(|_| malloc_for::<Program>(100)).collect();
        assert_eq!(guard::stats().sampled, sampled);
        assert_eq!(usable_size(guarded(5001)), 5001);
        assert_eq!(good_size(5001), 5001, "an object between guard pages has no more");
        // SAFETY: unused.
        late.iter().chain(&[early]).for_each(|&object| unsafe { free(object) });
    });
}

#[test]
fn an_access_after_the_free_ends_the_process() {
    const NAME: &str = "an_access_after_the_free_ends_the_process";
    for mode in ["1", "0"] {
        let environment = [("USLAB_RSEQ", mode), ("USLAB_GUARD", "1")];
        let Some(output) = again::again(NAME, &environment) else {
            start();
            let object = guarded(1025);
            // SAFETY: the object is freed once. The read is the fault that this test is about.
            unsafe {
                free(object);
                core::hint::black_box(object.read_volatile());
            }
            return;
        };
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{text}");
        assert!(text.contains("uslab: use after free: read of 0x"), "{text}");
        assert!(text.contains("\n  allocated ") && text.contains("\n  freed "), "{text}");
    }
}

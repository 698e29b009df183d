//! Leaks, by the library's own interface: objects that are lost, and the places of the library in
//! which a pointer keeps an object.

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::hint::black_box;
use std::sync::Mutex;
use uslab::debug::guard::{self, Options, Side};
use uslab::debug::{self, Format, SearchError, Sink, find_leaks};
use uslab::malloc::{free, malloc};
use uslab::{CacheBuilder, Heap, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker};

const SEARCHED: [(&str, &str); 1] = [("USLAB_LEAKS", "1")];

/// The reports. Its memory is the system's, not the library's.
static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep_reports() {
    debug::set_format(Format::Json);
    debug::set_sink(Sink::Callback(|report| REPORTS.lock().unwrap().push(report.to_owned())));
}

/// Overwrites what calls that returned left on the stack.
#[inline(never)]
fn scrub() {
    black_box([0u8; 100 << 10]);
}

/// Calls `allocate` where no trace of its results stays behind.
#[inline(never)]
fn lose(count: usize, allocate: &dyn Fn() -> *mut u8) {
    for _ in 0..count {
        let object = black_box(allocate());
        assert!(!object.is_null());
        // SAFETY: an object of at least a byte.
        unsafe { object.write(1) };
    }
}

/// The number and the bytes of direct leaks, and the number of reports.
fn search() -> (usize, usize, usize) {
    scrub();
    search_here()
}

/// [`search`], with a frame where the stack is clear.
#[inline(never)]
fn search_here() -> (usize, usize, usize) {
    REPORTS.lock().unwrap().clear();
    let leaks = find_leaks().expect("a search");
    assert_eq!(REPORTS.lock().unwrap().len(), leaks.places, "a report for each place");
    (leaks.objects, leaks.bytes, leaks.places)
}

#[test]
fn without_debugging_there_is_no_search() {
    in_both_modes("without_debugging_there_is_no_search", &[], || {
        lose(1, &|| malloc(60));
        assert_eq!(find_leaks(), Err(SearchError::NotTracked));
    });
}

#[test]
fn objects_of_malloc_and_of_caches_are_found_and_those_that_are_freed_are_not() {
    in_both_modes(
        "objects_of_malloc_and_of_caches_are_found_and_those_that_are_freed_are_not",
        &SEARCHED,
        || {
            keep_reports();
            assert_eq!(search(), (0, 0, 0));
            lose(100, &|| malloc(60));
            assert_eq!(search(), (100, 6000, 1));
            assert!(REPORTS.lock().unwrap()[0].contains("\"cache\":\"malloc-64\""));
            lose(3, &|| malloc(1 << 20));
            assert_eq!(search(), (103, 6000 + (3 << 20), 2));
            let cache = CacheBuilder::new("sessions").build_raw(200).expect("there is memory");
            lose(7, &|| cache.alloc().expect("there is memory").as_ptr());
            assert_eq!(search(), (110, 7400 + (3 << 20), 3));
            lose(50, &|| {
                let object = malloc(60);
                // SAFETY: just allocated.
                unsafe { free(object) };
                black_box(Box::into_raw(Box::new(1u8)))
            });
            assert_eq!(search().0, 110);
        },
    );
}

#[test]
fn a_flag_of_a_cache_is_enough() {
    in_both_modes("a_flag_of_a_cache_is_enough", &[], || {
        keep_reports();
        let flags = uslab::Flags::STORE_USER;
        let cache = CacheBuilder::new("sessions").flags(flags).build_raw(200).expect("there is memory");
        lose(7, &|| cache.alloc().expect("there is memory").as_ptr());
        lose(7, &|| malloc(60));
        assert_eq!(search(), (7, 1400, 1));
    });
}

#[test]
fn private_heaps_and_reserved_objects_keep_what_they_lead_to() {
    in_both_modes("private_heaps_and_reserved_objects_keep_what_they_lead_to", &SEARCHED, || {
        keep_reports();
        let heap = Heap::new().expect("there is memory");
        for size in [64, 5000, 100_000, 3 << 20] {
            lose(10, &|| {
                let object = heap.alloc(size, 8).expect("there is memory").as_ptr();
                // SAFETY: an object of at least a word.
                unsafe { object.cast::<*mut u8>().add(size / 8 - 1).write(malloc(60)) };
                object
            });
        }
        assert_eq!(search(), (0, 0, 0));
        let cache = CacheBuilder::new("sessions").build_raw(200).expect("there is memory");
        let reserved = cache.prefill(100).expect("there is memory");
        assert_eq!(search(), (0, 0, 0));
        drop(reserved);
        assert_eq!(search(), (0, 0, 0));
        drop(heap);
        let (objects, bytes, _) = search();
        assert_eq!((objects, bytes), (40, 2400), "the heap's objects are gone");
    });
}

/// A shrinker that alone knows an object.
struct Keeper(usize);

impl Shrinker for Keeper {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.0 % 2
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        Scan::Stop
    }
}

#[test]
fn shrinkers_keep_what_they_lead_to() {
    in_both_modes("shrinkers_keep_what_they_lead_to", &SEARCHED, || {
        keep_reports();
        // The registration is lost: the library's own table leads to the shrinker.
        lose(3, &|| {
            let object = malloc(60);
            let options = ShrinkerOptions::default();
            let registration = register_shrinker("keeper", options, Keeper(object as usize));
            std::mem::forget(registration.expect("there is room"));
            object
        });
        assert_eq!(search(), (0, 0, 0));
    });
}

#[test]
fn guarded_objects_are_found() {
    let guarded = [SEARCHED[0], ("USLAB_GUARD", "all")];
    in_both_modes("guarded_objects_are_found", &guarded, || {
        keep_reports();
        let mut options = Options::default();
        (options.interval_ms, options.slots, options.side) = (0, 64, Side::Right);
        assert!(guard::start(options));
        lose(5, &|| uslab::internal::entry::malloc_for::<uslab::internal::entry::Program>(2000));
        assert_eq!(guard::stats().used_slots, 5);
        assert_eq!(search(), (5, 10_000, 1));
        let reports = REPORTS.lock().unwrap();
        assert!(
            reports[0].contains("guarded objects") && !reports[0].contains("\"stack\":[]"),
            "{reports:?}"
        );
    });
}

#[test]
fn searches_of_several_threads_take_turns_and_children_search_for_themselves() {
    in_both_modes(
        "searches_of_several_threads_take_turns_and_children_search_for_themselves",
        &SEARCHED,
        || {
            keep_reports();
            lose(10, &|| malloc(60));
            scrub();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        (0..5).for_each(|_| assert_eq!(find_leaks().expect("a search").objects, 10))
                    });
                }
                // Beside them, threads that start and end.
                for _ in 0..50 {
                    scope.spawn(|| lose(0, &|| malloc(60)));
                }
            });
            // SAFETY: the child makes system calls, and calls of the library, alone.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let (objects, ..) = search();
                // SAFETY: no preconditions.
                unsafe { libc::_exit(objects as i32) };
            }
            let mut status = 0;
            // SAFETY: `status` is a place for the answer.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(libc::WEXITSTATUS(status), 10);
        },
    );
}

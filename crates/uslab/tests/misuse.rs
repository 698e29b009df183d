//! Misuse: double frees and foreign pointers are recognised, at the latest at the slab. The report
//! on standard error names the pointer and the kind of misuse. Then the process ends by SIGABRT, or
//! continues under `USLAB_ON_MISUSE=report`.
//!
//! Each case runs in a child process, which prints the pointer it misuses, so that the report can
//! be checked for it.

#[path = "support/again.rs"]
mod again;
#[path = "support/pinned.rs"]
mod pinned;

use again::again;
use pinned::stay_on_this_cpu;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uslab::debug::{Sink, set_sink};
use uslab::malloc::{free, free_bulk, malloc, realloc};
use uslab::{CacheBuilder, Flags, Heap, RawCache};

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

/// A size that page runs without a class serve.
const LARGE: usize = 3 << 20;

/// A child prints this before the pointer that it is about to misuse.
const POINTER: &str = "misused pointer: ";
/// A child prints this at its end.
const WENT_ON: &str = "went on after the misuse";

/// Announces `pointer`, on unbuffered standard error, because the next step may end the child.
fn announce(pointer: *const u8) {
    eprintln!("{POINTER}{pointer:p}");
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that the child reported its announced pointer as `what`, with the name `cache`.
fn assert_reported(output: &Output, what: &str, cache: &str) {
    let text = text(output);
    let pointer =
        text.lines().find_map(|line| line.split(POINTER).nth(1)).expect("the child announces the pointer");
    let mut reports = text.lines().filter(|line| line.starts_with("uslab: "));
    let report = reports.find(|line| line.contains(&format!(" of {pointer}:")));
    let report = report.unwrap_or_else(|| panic!("no report of {pointer} in\n{text}"));
    assert!(report.contains(what) && report.contains(cache), "{what:?} and {cache:?} in {report:?}");
}

/// Runs `misuse` in two children. One must report and abort. The other, under
/// `USLAB_ON_MISUSE=report`, must print the same report and reach its end.
fn check(name: &str, what: &str, cache: &str, misuse: impl FnOnce()) {
    let Some(aborted) = again(name, &[]) else {
        misuse();
        eprintln!("{WENT_ON}");
        return;
    };
    assert_eq!(aborted.status.signal(), Some(libc::SIGABRT), "{}\n{}", aborted.status, text(&aborted));
    assert_reported(&aborted, what, cache);
    assert!(!text(&aborted).contains(WENT_ON));

    if let Some(told) = again(name, &[("USLAB_ON_MISUSE", "report")]) {
        assert!(told.status.success(), "{}\n{}", told.status, text(&told));
        assert_reported(&told, what, cache);
        assert!(text(&told).contains(WENT_ON));
    }
}

fn cache(name: &str) -> RawCache {
    CacheBuilder::new(name).build_raw(64).expect("a cache of 64 bytes can be made")
}

/// Checks that the cache still returns distinct objects and accepts them back.
fn assert_usable(cache: &RawCache) {
    let mut objects = [std::ptr::null_mut(); 500];
    assert!(cache.alloc_bulk(&mut objects));
    let distinct: std::collections::HashSet<_> = objects.iter().collect();
    assert_eq!(distinct.len(), objects.len());
    // SAFETY: allocated by this test, and unused from here on.
    unsafe { cache.free_bulk(&objects) };
    cache.shrink();
}

#[test]
fn double_free_into_a_cache() {
    check("double_free_into_a_cache", "double free", "records", || {
        let cache = cache("records");
        let object = cache.alloc().unwrap();
        announce(object.as_ptr());
        // SAFETY: the second free is the misuse under test; no thread allocates between the two.
        unsafe {
            cache.free(object);
            cache.free(object);
        }
        cache.shrink();
        assert_usable(&cache);
    });
}

#[test]
fn double_free_after_the_first_got_to_its_slab() {
    check("double_free_after_the_first_got_to_its_slab", "double free", "records", || {
        let cache = cache("records");
        let (object, other) = (cache.alloc().unwrap(), cache.alloc().unwrap());
        announce(object.as_ptr());
        // SAFETY: the last free is the misuse under test; `other` keeps the slab alive.
        unsafe {
            cache.free(object);
            cache.shrink();
            cache.free(object);
            cache.shrink();
            cache.free(other);
        }
        assert_usable(&cache);
    });
}

#[test]
fn double_free_in_one_bulk() {
    check("double_free_in_one_bulk", "double free", "records", || {
        let cache = cache("records");
        let mut objects = [std::ptr::null_mut(); 40];
        assert!(cache.alloc_bulk(&mut objects));
        objects[30] = objects[3];
        announce(objects[3]);
        // SAFETY: the object given twice is the misuse under test.
        unsafe { cache.free_bulk(&objects) };
        cache.shrink();
        assert_usable(&cache);
    });
}

#[test]
fn double_free_into_a_cache_without_caching() {
    check("double_free_into_a_cache_without_caching", "double free", "direct", || {
        let cache = CacheBuilder::new("direct").flags(Flags::NO_CACHING).build_raw(64).unwrap();
        let (object, other) = (cache.alloc().unwrap(), cache.alloc().unwrap());
        announce(object.as_ptr());
        // SAFETY: the second free is the misuse under test, recognised at once. `other` keeps the
        // slab alive.
        unsafe {
            cache.free(object);
            cache.free(object);
            cache.free(other);
        }
    });
}

#[test]
fn double_free_of_malloc() {
    check("double_free_of_malloc", "double free", "malloc-48", || {
        let (object, other) = (malloc(40), malloc(40));
        announce(object);
        // SAFETY: the second free is the misuse under test; `other` keeps the slab.
        unsafe {
            free(object);
            free(object);
            uslab::trim(0);
            free(other);
        }
    });
}

#[test]
fn double_free_of_malloc_in_a_row() {
    check("double_free_of_malloc_in_a_row", "double free", "malloc-112", || {
        stay_on_this_cpu();
        let object = malloc(100);
        announce(object);
        // SAFETY: the second free is the misuse under test.
        unsafe {
            free(object);
            free(object);
        }
        assert_ne!(malloc(100), malloc(100));
    });
}

#[test]
fn double_free_of_malloc_after_a_drain() {
    check("double_free_of_malloc_after_a_drain", "double free", "malloc-48", || {
        stay_on_this_cpu();
        let (object, other) = (malloc(40), malloc(40));
        announce(object);
        // SAFETY: the second free is the misuse under test; `other` keeps the slab.
        unsafe {
            free(object);
            uslab::trim(0);
            free(object);
        }
        assert_ne!(malloc(40), malloc(40));
        // SAFETY: allocated by this test, and unused from here on.
        unsafe { free(other) };
    });
}

#[test]
fn realloc_of_the_inside_of_an_object() {
    check("realloc_of_the_inside_of_an_object", "8 bytes inside object", "malloc-112", || {
        let object = malloc(100);
        let inside = object.wrapping_add(8);
        announce(inside);
        assert_eq!((usable_size(object), usable_size(inside)), (112, 0));
        // SAFETY: the interior pointer is the misuse under test.
        assert!(unsafe { realloc(inside, 100) }.is_null());
    });
}

#[test]
fn the_inside_of_an_object_of_a_heap() {
    check("the_inside_of_an_object_of_a_heap", "16 bytes inside object", "heap", || {
        let heap = Heap::new().expect("there is memory");
        let object = heap.alloc(100, 8).expect("there is memory").as_ptr();
        let inside = object.wrapping_add(16);
        announce(inside);
        // SAFETY: the misuse under test: the library recognises it before it accesses the memory
        // there.
        assert!(unsafe { realloc(inside, 500) }.is_null());
        assert_eq!(usable_size(inside), 0);
        assert!(usable_size(object) >= 100);
    });
}

#[test]
fn double_free_of_an_object_of_a_heap() {
    check("double_free_of_an_object_of_a_heap", "double free", "heap", || {
        let heap = Heap::new().expect("there is memory");
        let [first, second] = [(); 2].map(|()| heap.alloc(100, 8).expect("there is memory"));
        announce(first.as_ptr());
        // SAFETY: from this heap; the second free is the misuse under test. The second object keeps
        // the slab alive.
        unsafe {
            heap.free(first);
            heap.free(first);
            heap.free(second);
        }
    });
}

#[test]
fn the_inside_of_an_object_in_a_bulk() {
    check("the_inside_of_an_object_in_a_bulk", "48 bytes inside object", "malloc-64", || {
        let object = malloc(64);
        let inside = object.wrapping_add(48);
        announce(inside);
        let objects = [malloc(64), inside, malloc(64), malloc(100)];
        // SAFETY: the interior pointer is the misuse under test; the others are ours.
        unsafe { free_bulk(&objects) };
        assert!((0..1000).all(|_| malloc(64) != inside));
    });
}

#[test]
fn free_of_a_slab_that_is_gone() {
    check("free_of_a_slab_that_is_gone", "nothing is allocated there", "records", || {
        let cache = cache("records");
        let object = cache.alloc().unwrap();
        announce(object.as_ptr());
        // SAFETY: the second free is the misuse under test.
        unsafe {
            cache.free(object);
            assert!(cache.shrink() > 0);
            cache.free(object);
        }
        cache.shrink();
        assert_usable(&cache);
    });
}

#[test]
fn double_free_of_a_medium_object() {
    check("double_free_of_a_medium_object", "double free", "malloc-112k", || {
        stay_on_this_cpu();
        let object = malloc(100_000);
        announce(object);
        // SAFETY: the second free is the misuse under test.
        unsafe {
            free(object);
            free(object);
        }
    });
}

#[test]
fn double_free_of_a_medium_object_that_left_its_sheaf() {
    const NAME: &str = "double_free_of_a_medium_object_that_left_its_sheaf";
    check(NAME, "nothing is allocated there", "free", || {
        let object = malloc(100_000);
        announce(object);
        // SAFETY: the second free is the misuse under test.
        unsafe {
            free(object);
            uslab::trim(0);
            free(object);
        }
    });
}

#[test]
fn free_of_the_inside_of_a_medium_object() {
    check("free_of_the_inside_of_a_medium_object", "64 bytes inside object", "malloc-112k", || {
        let inside = malloc(100_000).wrapping_add(64);
        announce(inside);
        // SAFETY: the interior pointer is the misuse under test.
        unsafe { free(inside) };
    });
}

#[test]
fn free_of_a_later_page_of_a_medium_object() {
    check("free_of_a_later_page_of_a_medium_object", "8192 bytes inside object", "malloc-112k", || {
        let inside = malloc(100_000).wrapping_add(8192);
        announce(inside);
        // SAFETY: the interior pointer is the misuse under test.
        unsafe { free(inside) };
    });
}

#[test]
fn double_free_of_a_large_object() {
    check("double_free_of_a_large_object", "nothing is allocated there", "free", || {
        let object = malloc(LARGE);
        announce(object);
        // SAFETY: the second free is the misuse under test.
        unsafe {
            free(object);
            free(object);
        }
    });
}

#[test]
fn foreign_free_of_the_stack() {
    check("foreign_free_of_the_stack", "not memory of this allocator", "free", || {
        malloc(1);
        let mut on_the_stack = [0u64; 8];
        announce(on_the_stack.as_ptr().cast());
        // SAFETY: the foreign pointer is the misuse under test.
        unsafe { free(on_the_stack.as_mut_ptr().cast()) };
    });
}

#[test]
fn foreign_free_of_another_mapping() {
    check("foreign_free_of_another_mapping", "not memory of this allocator", "free", || {
        malloc(1);
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), 4096, read_write, private, -1, 0) };
        assert!(mapping != libc::MAP_FAILED);
        announce(mapping.cast());
        // SAFETY: the foreign pointer is the misuse under test.
        unsafe { free(mapping.cast()) };
    });
}

#[test]
fn foreign_free_into_a_cache() {
    check("foreign_free_into_a_cache", "not memory of this allocator", "records", || {
        let cache = cache("records");
        let mut on_the_stack = [0u64; 8];
        let pointer = NonNull::from(&mut on_the_stack).cast::<u8>();
        announce(pointer.as_ptr());
        // SAFETY: the foreign pointer is the misuse under test.
        unsafe { cache.free(pointer) };
        cache.shrink();
        assert_usable(&cache);
    });
}

#[test]
fn free_of_the_inside_of_an_object() {
    check("free_of_the_inside_of_an_object", "16 bytes inside object", "malloc-256", || {
        let object = malloc(256);
        let inside = object.wrapping_add(16);
        announce(inside);
        // SAFETY: the interior pointer is the misuse under test.
        unsafe { free(inside) };
        assert_ne!(malloc(256), inside);
    });
}

#[test]
fn free_of_the_inside_of_a_large_object() {
    check("free_of_the_inside_of_a_large_object", "64 bytes inside object", "large objects", || {
        let inside = malloc(LARGE).wrapping_add(64);
        announce(inside);
        // SAFETY: the interior pointer is the misuse under test.
        unsafe { free(inside) };
    });
}

#[test]
fn free_of_a_later_page_of_a_large_object() {
    check("free_of_a_later_page_of_a_large_object", "8192 bytes inside object", "large objects", || {
        let inside = malloc(LARGE).wrapping_add(8192);
        announce(inside);
        // SAFETY: the interior pointer is the misuse under test.
        unsafe { free(inside) };
    });
}

#[test]
fn free_into_another_cache() {
    check("free_into_another_cache", "given to records, but it belongs to", "records", || {
        let (cache, others) = (cache("records"), cache("others"));
        let (object, keeps) = (others.alloc().unwrap(), cache.alloc().unwrap());
        announce(object.as_ptr());
        // SAFETY: the wrong cache is the misuse under test.
        unsafe { cache.free(object) };
        cache.shrink();
        // In the process that continues the object is still allocated, so its own cache accepts it.
        // SAFETY: allocated by this test, and unused from here on.
        unsafe {
            others.free(object);
            cache.free(keeps);
        }
        cache.destroy().expect("no object is live");
        others.destroy().expect("no object is live");
    });
}

#[test]
fn large_object_into_a_cache() {
    check("large_object_into_a_cache", "given to records", "records", || {
        let cache = cache("records");
        let large = NonNull::new(malloc(LARGE)).unwrap();
        announce(large.as_ptr());
        // SAFETY: the wrong owner is the misuse under test.
        unsafe {
            cache.free(large);
            cache.shrink();
            free(large.as_ptr());
        }
        assert_usable(&cache);
    });
}

#[test]
fn misuse_among_good_objects_in_one_bulk() {
    check("misuse_among_good_objects_in_one_bulk", "not memory of this allocator", "free", || {
        let mut word = 0u64;
        let foreign = (&raw mut word).cast::<u8>();
        announce(foreign);
        let objects = [malloc(10), malloc(100), foreign, std::ptr::null_mut(), malloc(1000), malloc(100_000)];
        // SAFETY: the foreign pointer is the misuse under test; the others are ours.
        unsafe { free_bulk(&objects) };
        assert_eq!(uslab::stats::usage().large_objects, 0);
    });
}

#[test]
fn realloc_of_a_foreign_pointer() {
    check("realloc_of_a_foreign_pointer", "not memory of this allocator", "realloc", || {
        malloc(1);
        let mut word = 0u64;
        announce((&raw const word).cast());
        // SAFETY: the foreign pointer is the misuse under test.
        let moved = unsafe { uslab::malloc::realloc((&raw mut word).cast(), 100) };
        assert!(moved.is_null());
    });
}

#[test]
fn free_before_anything_was_allocated() {
    check("free_before_anything_was_allocated", "not memory of this allocator", "free", || {
        let mut word = 0u64;
        announce((&raw const word).cast());
        // SAFETY: the foreign pointer is the misuse under test.
        unsafe { free((&raw mut word).cast()) };
    });
}

#[test]
fn a_constructor_that_panics_or_returns_another_object_ends_the_process() {
    let name = "a_constructor_that_panics_or_returns_another_object_ends_the_process";
    const WHICH: &str = "USLAB_TEST_CONSTRUCTOR";
    let made = |how: &str| -> Option<Output> { again(name, &[(WHICH, how)]) };
    let ends = |output: &Output| output.status.signal() == Some(libc::SIGABRT);
    let Some(panicked) = made("panics") else {
        let builder = CacheBuilder::new("constructed");
        let cache = match std::env::var(WHICH).as_deref() {
            Ok("panics") => builder.build_constructed::<u64>(|_| panic!("cannot construct")),
            _ => builder.build_constructed::<u64>(|_| Box::leak(Box::new(1))),
        };
        let _ = cache.expect("a cache can be made").constructed();
        return;
    };
    assert!(ends(&panicked) && text(&panicked).contains("cannot construct"), "{}", text(&panicked));
    let other = made("another").expect("this is the parent");
    assert!(ends(&other) && text(&other).contains("returned another object"), "{}", text(&other));
}

#[test]
fn a_double_free_that_a_trim_finds_is_reported_without_locks() {
    static REPORTS: AtomicU32 = AtomicU32::new(0);
    let name = "a_double_free_that_a_trim_finds_is_reported_without_locks";
    for mode in ["1", "0"] {
        let Some(output) = again(name, &[("USLAB_ON_MISUSE", "report"), ("USLAB_RSEQ", mode)]) else {
            // SAFETY: ends the process, should it wait for ever; no preconditions.
            unsafe { libc::alarm(30) };
            stay_on_this_cpu();
            set_sink(Sink::Callback(|text| {
                // Takes the lock that the trim had.
                drop(cache("callback"));
                REPORTS.fetch_add(u32::from(text.contains("double free")), Relaxed);
            }));
            let objects = [(); 3].map(|()| malloc(100));
            for object in objects.into_iter().chain(objects) {
                // SAFETY: the second free of each is the fault that the test is about.
                unsafe { free(object) };
            }
            let before = REPORTS.load(Relaxed);
            uslab::trim(0);
            // One for a word of the slab's bits.
            assert_eq!((before, REPORTS.load(Relaxed)), (0, 1));
            eprintln!("{WENT_ON}");
            return;
        };
        assert!(output.status.success(), "{}\n{}", output.status, text(&output));
        assert!(text(&output).contains(WENT_ON), "{}", text(&output));
    }
}

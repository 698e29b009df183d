//! Late debugging: caches whose debugging is switched on while the program uses them.

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use uslab::debug::{self, Format, Sink, SwitchError};
use uslab::{Cache, CacheBuilder, Flags, RawCache, Uslab};

/// The program's memory is the library's, for the classes of `malloc`.
#[global_allocator]
static MEMORY: Uslab = Uslab;

static REPORTS: Mutex<String> = Mutex::new(String::new());

/// Reports must not allocate from the cache that is debugged: this has room beforehand.
fn keep(report: &str) {
    let mut reports = REPORTS.lock().unwrap_or_else(PoisonError::into_inner);
    if reports.len() + report.len() < reports.capacity() {
        reports.push_str(report);
    }
}

fn begin() {
    REPORTS.lock().expect("free").reserve(1 << 20);
    debug::set_abort(false);
    debug::set_format(Format::Json);
    debug::set_sink(Sink::Callback(keep));
}

fn take() -> String {
    let mut reports = REPORTS.lock().expect("free");
    let taken = reports.as_str().to_owned();
    reports.clear();
    taken
}

/// Requires one report of this kind, with these parts.
#[track_caller]
fn expect(fault: &str, parts: &[&str]) {
    let reports = take();
    assert_eq!(reports.matches("\"fault\":").count(), 1, "{fault}: {reports}");
    assert!(reports.starts_with(&format!("{{\"fault\":\"{fault}\"")), "{fault}: {reports}");
    for part in parts {
        assert!(reports.contains(part), "{part}: {reports}");
    }
}

#[track_caller]
fn expect_none() {
    assert_eq!(take(), "");
}

fn cache(name: &str) -> RawCache {
    CacheBuilder::new(name).build_raw(64).expect("a cache")
}

fn alloc(cache: &RawCache) -> NonNull<u8> {
    cache.alloc().expect("there is memory")
}

#[inline(never)]
fn free(cache: &RawCache, object: NonNull<u8>) {
    // SAFETY: the test frees objects of the cache, and wrong ones to see the report.
    unsafe { cache.free(object) };
}

#[test]
fn a_delayed_double_free_is_found_at_once_with_both_users() {
    in_both_modes("a_delayed_double_free_is_found_at_once_with_both_users", &[], || {
        begin();
        let cache = cache("late");
        let old: Vec<_> = (0..500).map(|_| alloc(&cache)).collect();
        assert_eq!(debug::switch("FU,late"), Ok(1));
        let (a, b) = (alloc(&cache), alloc(&cache));
        free(&cache, a);
        free(&cache, b);
        expect_none();
        free(&cache, a);
        let object = format!("\"pointer\":\"{:#x}\"", a.as_ptr() as usize);
        expect("double-free", &[&object, "\"state\":\"free\"", "\"allocated\":{", "\"freed\":{", "\"late\""]);
        // Objects from before are freed without a report, once.
        old.iter().for_each(|&object| free(&cache, object));
        expect_none();
        free(&cache, old[7]);
        expect("double-free", &["\"freed\":{"]);
        debug::validate().expect("valid");
        cache.destroy().expect("empty");
        assert_eq!(debug::switch("F,late"), Err(SwitchError::NoSuchCache));
    });
}

#[test]
fn pointers_and_caches_are_checked() {
    in_both_modes("pointers_and_caches_are_checked", &[], || {
        begin();
        let (cache, other) = (cache("checked"), cache("other"));
        assert_eq!(debug::switch("F,checked"), Ok(1));
        let (object, foreign) = (alloc(&cache), alloc(&other));
        let inside = object.as_ptr().wrapping_add(24);
        free(&cache, NonNull::new(inside).expect("not null"));
        expect("invalid-free", &["24 bytes inside object"]);
        free(&cache, foreign);
        expect("wrong-cache", &[]);
        let mut local = [0u64; 8];
        free(&cache, NonNull::from(&mut local).cast());
        expect("foreign-free", &[]);
        free(&cache, object);
        free(&other, foreign);
        expect_none();
    });
}

#[test]
fn sheaves_are_empty_while_it_is_on_and_return_afterwards() {
    in_both_modes("sheaves_are_empty_while_it_is_on_and_return_afterwards", &[], || {
        begin();
        let cache = cache("sheaves");
        let objects: Vec<_> = (0..300).map(|_| alloc(&cache)).collect();
        objects.iter().for_each(|&object| free(&cache, object));
        let cached = || {
            let stats = uslab::stats::caches().find(|stats| stats.name.as_str() == "sheaves");
            stats.expect("listed").sheaf_free
        };
        assert!(cached() > 0);
        for _ in 0..3 {
            assert_eq!(debug::switch("F,shea*"), Ok(1));
            assert_eq!(cached(), 0);
            let objects: Vec<_> = (0..300).map(|_| alloc(&cache)).collect();
            objects.iter().for_each(|&object| free(&cache, object));
            assert_eq!(cached(), 0);
            assert_eq!(debug::switch("-,sheaves"), Ok(1));
            let objects: Vec<_> = (0..300).map(|_| alloc(&cache)).collect();
            objects.iter().for_each(|&object| free(&cache, object));
            assert!(cached() > 0);
        }
        expect_none();
    });
}

#[test]
fn bulk_and_prefilled_objects_are_checked() {
    in_both_modes("bulk_and_prefilled_objects_are_checked", &[], || {
        begin();
        let typed = CacheBuilder::new("bulk").build::<[u64; 5]>().expect("a cache");
        assert_eq!(debug::switch("FU,bulk"), Ok(1));
        let mut objects = [std::ptr::null_mut(); 100];
        assert!(typed.alloc_bulk(&mut objects));
        // SAFETY: just allocated; the second time is the fault. The first object keeps the slab.
        unsafe { typed.free_bulk(&objects[1..]) };
        expect_none();
        // SAFETY: as above.
        unsafe { typed.free_bulk(&objects[3..4]) };
        expect("double-free", &["\"freed\":{"]);
        let mut prefilled = typed.prefill(10).expect("there is memory");
        let object = prefilled.alloc().expect("prefilled");
        // SAFETY: of this cache, unused; the second time is the fault.
        unsafe { typed.free(object) };
        drop(prefilled);
        expect_none();
        // SAFETY: as above.
        unsafe { typed.free(object) };
        expect("double-free", &[]);
    });
}

/// As [`bulk_and_prefilled_objects_are_checked`], with debugging from the start.
#[test]
fn bulk_frees_of_a_typed_cache_that_is_debugged_from_the_start() {
    in_both_modes("bulk_frees_of_a_typed_cache_that_is_debugged_from_the_start", &[], || {
        begin();
        let typed = CacheBuilder::new("started").flags(Flags::RED_ZONE).build::<[u64; 5]>().expect("a cache");
        let mut objects = [std::ptr::null_mut(); 100];
        assert!(typed.alloc_bulk(&mut objects));
        // SAFETY: just allocated; the second time is the fault. The first object keeps the slab.
        unsafe { typed.free_bulk(&objects[1..]) };
        expect_none();
        // SAFETY: as above.
        unsafe { typed.free_bulk(&objects[3..4]) };
        expect("double-free", &[]);
    });
}

#[test]
fn what_cannot_be_switched_is_refused() {
    in_both_modes("what_cannot_be_switched_is_refused", &[], || {
        begin();
        let started = CacheBuilder::new("from-start").flags(Flags::CONSISTENCY_CHECKS).build_raw(40);
        let _live = (started.expect("a cache"), cache("plain"));
        assert_eq!(debug::switch("FZ,plain"), Err(SwitchError::Layout));
        assert_eq!(debug::switch(",plain"), Err(SwitchError::Layout));
        assert_eq!(debug::switch("F,nowhere"), Err(SwitchError::NoSuchCache));
        assert_eq!(debug::switch("F,from-start"), Err(SwitchError::FromStart));
        for (text, message) in [
            ("FQ,plain", "column 2: 'Q' is none of the letters F, Z, P, U, T"),
            ("F", "column 2: the name of a cache is missing"),
            ("", "column 1: the name of a cache is missing"),
            ("F,plain;U", "column 10: the name of a cache is missing"),
        ] {
            let error = debug::switch(text).expect_err(text);
            assert_eq!(error.to_string(), message);
        }
        expect_none();
    });
}

/// Threads that free into and out of sheaves at every moment of the switch.
#[test]
fn threads_may_use_the_cache_during_each_switch() {
    in_both_modes("threads_may_use_the_cache_during_each_switch", &[], || {
        begin();
        let cache = cache("storm");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (cache, is_over) = (&cache, &is_over);
                scope.spawn(move || {
                    let mut round = thread;
                    while !is_over.load(Relaxed) {
                        round += 1;
                        let objects: Vec<_> = (0..round * 37 % 300 + 1).map(|_| alloc(cache)).collect();
                        for &object in &objects {
                            // SAFETY: 64 bytes of this thread.
                            unsafe { object.cast::<usize>().write(thread) };
                        }
                        for object in objects {
                            // SAFETY: as above.
                            assert_eq!(unsafe { object.cast::<usize>().read() }, thread);
                            free(cache, object);
                        }
                    }
                });
            }
            for round in 0..60 {
                let letters = ["FU", "F", "-"][round % 3];
                assert_eq!(debug::switch(&format!("{letters},storm")), Ok(1));
                if round % 10 == 0 {
                    debug::validate().expect("valid");
                }
            }
            is_over.store(true, Relaxed);
        });
        expect_none();
        cache.shrink();
        debug::validate().expect("valid");
        cache.destroy().expect("no object is lost");
    });
}

#[test]
fn classes_of_malloc_are_caches_too() {
    in_both_modes("classes_of_malloc_are_caches_too", &[], || {
        begin();
        for size in [80usize, 3000, 100_000, 1 << 20] {
            // SAFETY: the sizes are not 0; the second free is the fault.
            unsafe {
                let layout = std::alloc::Layout::from_size_align_unchecked(size, 16);
                let old = std::alloc::alloc(layout);
                let usable = uslab::internal::entry::usable_size(old);
                let name = uslab::stats::caches()
                    .filter(|stats| {
                        stats.object_bytes == usable as u64 && stats.name.as_str().starts_with("malloc-")
                    })
                    .map(|stats| stats.name.as_str().to_owned())
                    .next()
                    .expect("a class");
                assert_eq!(debug::switch(&format!("FU,{name}")), Ok(1), "{name}");
                let (a, b) = (std::alloc::alloc(layout), std::alloc::alloc(layout));
                std::alloc::dealloc(a, layout);
                std::alloc::dealloc(b, layout);
                std::alloc::dealloc(old, layout);
                // A run of pages that is freed twice is no object any more.
                let kinds = ["\"double-free\"", "\"invalid-free\""];
                uslab::internal::entry::free(a);
                assert_eq!(debug::switch(&format!("-,{name}")), Ok(1));
                let reports = take();
                assert!(kinds.iter().any(|kind| reports.contains(kind)), "{name}: {reports}");
                assert_eq!(reports.matches("\"fault\":").count(), 1, "{name}: {reports}");
            }
        }
    });
}

static SHARED: Cache<[u64; 12]> = Cache::new("forked");

#[test]
fn a_fork_child_goes_on_debugging() {
    in_both_modes("a_fork_child_goes_on_debugging", &[], || {
        begin();
        let object = SHARED.alloc().expect("there is memory");
        assert_eq!(debug::switch("FU,forked"), Ok(1));
        let other = SHARED.alloc().expect("there is memory");
        // SAFETY: the child uses the library and `_exit` alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: objects of the cache; the last free is the fault.
            unsafe {
                SHARED.free(object);
                SHARED.free(other);
                SHARED.free(object);
            }
            let is_found = take().matches("\"fault\":\"double-free\"").count() == 1;
            let is_off = debug::switch("-,forked") == Ok(1) && debug::validate().is_ok();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!(is_found && is_off))) };
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        // SAFETY: objects of the cache, freed once here.
        unsafe {
            SHARED.free(object);
            SHARED.free(other);
        }
        expect_none();
    });
}

/// While debugging was off, objects had users that the table does not know.
#[test]
fn users_of_an_earlier_period_are_not_shown() {
    in_both_modes("users_of_an_earlier_period_are_not_shown", &[], || {
        begin();
        let cache = cache("periods");
        assert_eq!(debug::switch("FU,periods"), Ok(1));
        let object = alloc(&cache);
        free(&cache, object);
        assert_eq!(debug::switch("-,periods"), Ok(1));
        assert_eq!(debug::switch("FU,periods"), Ok(1));
        free(&cache, object);
        let reports = take();
        assert!(reports.contains("\"double-free\"") && !reports.contains("\"freed\":{"), "{reports}");
    });
}

#[test]
fn a_trace_has_a_line_for_each_call() {
    in_both_modes("a_trace_has_a_line_for_each_call", &[], || {
        begin();
        let cache = cache("traced");
        assert_eq!(debug::switch("T,traced"), Ok(1));
        let object = alloc(&cache);
        free(&cache, object);
        assert_eq!(debug::switch("-,traced"), Ok(1));
        let object = alloc(&cache);
        free(&cache, object);
        let lines = take();
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(
            lines.contains("allocated") && lines.contains("freed") && lines.contains("traced"),
            "{lines}"
        );
    });
}

//! Debugged caches: faults that their flags must find, by the names of the kernel's tests
//! (`lib/tests/slub_kunit.c`), and programs without faults, which must get no report.
//!
//! Of the kernel's tests `test_next_pointer` has no counterpart: free objects hold no pointer.
//! `test_kmalloc_redzone_access` and `test_krealloc_redzone_zeroing` are about `malloc`: see
//! `tests/debug` (`overflow`, `overflow_after_realloc`).

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uslab::debug::{self, Format, Sink};
use uslab::{Cache, CacheBuilder, Flags, RawCache};

static TURN: Mutex<()> = Mutex::new(());
/// The reports since the last [`begin`]. Its memory is the system's, not the library's.
static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(report: &str) {
    REPORTS.lock().unwrap_or_else(PoisonError::into_inner).push(report.to_owned());
}

/// Makes reports go to [`REPORTS`], one test at a time, and lets the program continue.
fn begin() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    debug::set_abort(false);
    debug::set_format(Format::Json);
    debug::set_sink(Sink::Callback(keep));
    take();
    turn
}

fn take() -> Vec<String> {
    std::mem::take(&mut *REPORTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Requires one report, of this kind, with these parts.
#[track_caller]
fn expect(fault: &str, parts: &[&str]) {
    let reports = take();
    assert_eq!(reports.len(), 1, "{reports:#?}");
    let kind = format!("{{\"fault\":\"{fault}\"");
    assert!(reports[0].starts_with(&kind), "{fault}: {}", reports[0]);
    for part in parts {
        assert!(reports[0].contains(part), "{part}: {}", reports[0]);
    }
}

#[track_caller]
fn expect_none() {
    assert_eq!(take(), Vec::<String>::new());
}

const ALL: Flags =
    Flags::CONSISTENCY_CHECKS.with(Flags::RED_ZONE).with(Flags::POISON).with(Flags::STORE_USER);

fn cache(name: &str, size: usize, flags: Flags) -> RawCache {
    CacheBuilder::new(name).flags(flags).build_raw(size).expect("a cache")
}

fn alloc(cache: &RawCache) -> NonNull<u8> {
    cache.alloc().expect("there is memory")
}

/// Writes a byte of, before or behind an object, which a debugged cache must find.
fn harm(object: NonNull<u8>, offset: isize) {
    // SAFETY: the byte lies in the debugged object, which has zones on both sides.
    unsafe { object.as_ptr().offset(offset).write_volatile(0x41) };
}

fn free(cache: &RawCache, object: NonNull<u8>) {
    // SAFETY: the test frees objects of the cache, and wrong ones to see the report.
    unsafe { cache.free(object) };
}

#[test]
fn test_clobber_zone() {
    let _turn = begin();
    let cache = cache("TestSlub_RZ_alloc", 64, ALL);
    let object = alloc(&cache);
    harm(object, 64);
    debug::validate().expect("the structures are whole");
    expect("overflow", &["TestSlub_RZ_alloc", "\"state\":\"allocated\"", "\"allocated\":{", "\"value\":204"]);
    free(&cache, object);
    expect_none();
    cache.destroy().expect("no object is in use");
    expect_none();
}

#[test]
fn test_clobber_left_zone() {
    let _turn = begin();
    let cache = cache("left", 61, Flags::RED_ZONE);
    let object = alloc(&cache);
    harm(object, -1);
    harm(object, -16);
    free(&cache, object);
    let start = format!("\"pointer\":\"{:#x}\"", object.as_ptr() as usize - 16);
    expect("underflow", &["16 bytes changed", &start]);
}

#[test]
fn test_first_word() {
    let _turn = begin();
    let cache = cache("TestSlub_1th_word_free", 64, Flags::POISON);
    let object = alloc(&cache);
    free(&cache, object);
    harm(object, 0);
    debug::validate().expect("the structures are whole");
    expect("write-after-free", &["at offset 0 of"]);
    cache.destroy().expect("no object is in use");
    expect_none();
}

#[test]
fn test_clobber_50th_byte() {
    let _turn = begin();
    let cache = cache("TestSlub_50th_word_free", 64, Flags::POISON);
    let object = alloc(&cache);
    free(&cache, object);
    harm(object, 50);
    cache.destroy().expect("no object is in use");
    expect("write-after-free", &["at offset 50 of"]);
}

#[test]
fn test_clobber_redzone_free() {
    let _turn = begin();
    let cache = cache("TestSlub_RZ_free", 64, Flags::RED_ZONE);
    let object = alloc(&cache);
    free(&cache, object);
    harm(object, 64);
    let _ = alloc(&cache);
    expect("overflow", &["\"state\":\"free\"", "\"value\":187"]);
}

/// The kernel's `test_kfree_rcu`: a free that waits, then the cache goes.
#[test]
fn test_free_late_then_destroy() {
    let _turn = begin();
    let cache = cache("TestSlub_kfree_rcu", 64, ALL);
    let object = alloc(&cache).as_ptr() as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| free(&cache, NonNull::new(object as *mut u8).expect("an object")));
    });
    cache.destroy().expect("no object is in use");
    expect_none();
}

#[test]
fn test_leak_destroy() {
    let _turn = begin();
    let cache = cache("TestSlub_leak_destroy", 64, ALL);
    let object = alloc(&cache);
    let (cache, busy) = cache.destroy().expect_err("an object is in use");
    assert_eq!((busy.objects, busy.first[0]), (1, object.as_ptr()));
    expect("live-at-destroy", &["in use at the end of its cache", "\"allocated\":{"]);
    free(&cache, object);
}

#[test]
fn frees_of_wrong_pointers() {
    let _turn = begin();
    let cache = cache("right", 100, ALL);
    let other = self::cache("other", 100, ALL);
    let (object, stranger) = (alloc(&cache), alloc(&other));
    free(&cache, stranger);
    expect("wrong-cache", &["given to right", "\"allocated\":{"]);
    // SAFETY: inside the object.
    free(&cache, unsafe { object.add(1) });
    expect("invalid-free", &["1 byte inside object"]);
    let mut local = 0u64;
    free(&cache, NonNull::from(&mut local).cast());
    expect("foreign-free", &[]);
    free(&cache, object);
    free(&cache, object);
    expect("double-free", &["\"allocated\":{", "\"freed\":{"]);
    // SAFETY: as above.
    unsafe { cache.free_bulk(&[object.as_ptr()]) };
    expect("double-free", &[]);
    free(&other, stranger);
    expect_none();
}

#[test]
fn bulk_frees_of_typed_objects() {
    let _turn = begin();
    let cache = CacheBuilder::new("typed-bulk").flags(ALL).build::<[u8; 61]>().expect("a cache");
    let mut objects = [std::ptr::null_mut(); 100];
    assert!(cache.alloc_bulk(&mut objects));
    // SAFETY: just allocated.
    unsafe { cache.free_bulk(&objects[1..]) };
    expect_none();
    // SAFETY: as above, and twice, to see the report.
    unsafe { cache.free_bulk(&[objects[0], objects[0]]) };
    expect("double-free", &["\"freed\":{"]);
    cache.destroy().expect("no object is in use");
    expect_none();
}

#[test]
fn a_record_that_is_overwritten_is_told() {
    let _turn = begin();
    let cache = cache("record", 64, Flags::CONSISTENCY_CHECKS);
    let object = alloc(&cache);
    for offset in -8..0 {
        harm(object, offset);
    }
    free(&cache, object);
    expect("record-overwritten", &["its fields are 0x41414141"]);
}

#[test]
fn the_depot_knows_both_stacks() {
    let _turn = begin();
    #[inline(never)]
    fn allocate_here(cache: &RawCache) -> NonNull<u8> {
        std::hint::black_box(alloc(cache))
    }
    let cache = cache("stacks", 64, Flags::STORE_USER);
    let object = allocate_here(&cache);
    free(&cache, object);
    free(&cache, object);
    let reports = take();
    let stacks = reports[0].matches("\"stack\":[\"").count();
    assert_eq!((reports.len(), stacks), (1, 3), "{reports:#?}");
}

#[test]
fn every_alignment_and_size_is_kept() {
    let _turn = begin();
    for align in [8, 16, 64, 4096, 65536] {
        for size in [1, 8, 61, 64, 1000, 4096, 5000, 70_000, 256 << 10] {
            let cache =
                CacheBuilder::new("aligned").flags(ALL).align(align).build_raw(size).expect("a cache");
            let objects: Vec<_> = (0..5).map(|_| alloc(&cache)).collect();
            for (n, object) in objects.iter().enumerate() {
                assert_eq!(object.as_ptr() as usize % align, 0, "{size} {align}");
                assert!(cache.usable_bytes() == size);
                // SAFETY: the object has that many bytes.
                unsafe { object.write_bytes(n as u8, size) };
            }
            for (n, object) in objects.iter().enumerate() {
                // SAFETY: written above.
                let bytes = unsafe { std::slice::from_raw_parts(object.as_ptr(), size) };
                assert!(bytes.iter().all(|&byte| byte == n as u8));
            }
            objects.into_iter().for_each(|object| free(&cache, object));
            cache.destroy().expect("no object is in use");
        }
    }
    expect_none();
}

#[test]
fn constructed_objects_stay_constructed() {
    let _turn = begin();
    let cache = CacheBuilder::new("constructed").flags(ALL).build_constructed::<u64>(|place| place.write(77));
    let cache = cache.expect("a cache");
    for _ in 0..100 {
        let object = cache.alloc().expect("there is memory");
        // SAFETY: constructed, and unused by any other thread.
        unsafe {
            assert_eq!(object.read(), 77);
            cache.free(object);
        }
    }
    drop(cache);
    expect_none();
}

#[test]
fn bulk_and_prefilled_objects_are_debugged() {
    let _turn = begin();
    let cache = cache("bulk", 48, ALL);
    let mut objects = [std::ptr::null_mut(); 100];
    assert!(cache.alloc_bulk(&mut objects));
    // SAFETY: just allocated.
    unsafe { cache.free_bulk(&objects) };
    let mut prefilled = cache.prefill(10).expect("there is memory");
    let object = prefilled.alloc().expect("it has ten");
    harm(object, 48);
    drop(prefilled);
    expect_none();
    free(&cache, object);
    expect("overflow", &[]);
    cache.destroy().expect("no object is in use");
    expect_none();
}

#[test]
fn threads_and_checks_at_once_make_no_report() {
    let _turn = begin();
    let cache = cache("busy", 120, ALL);
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..200 {
                    let objects: Vec<_> = (0..(round * 7 + thread) % 60).map(|_| alloc(cache)).collect();
                    for object in objects {
                        // SAFETY: the object has that many bytes.
                        unsafe { object.write_bytes(thread as u8, 120) };
                        free(cache, object);
                    }
                }
            });
        }
        for _ in 0..50 {
            debug::validate().expect("the structures are whole");
        }
    });
    cache.shrink();
    cache.destroy().expect("no object is in use");
    expect_none();
}

#[test]
fn without_flags_a_cache_is_not_debugged() {
    let _turn = begin();
    static PLAIN: Cache<[u64; 4]> = Cache::new("plain");
    let object = PLAIN.alloc().expect("there is memory");
    // SAFETY: allocated above, freed once.
    unsafe { PLAIN.free(object) };
    assert_eq!(debug::validate().expect("the structures are whole").faulty_objects, 0);
    expect_none();
}

/// A check of the quarantine of large objects must not touch pages that a free gives back.
#[test]
fn large_frees_and_checks_at_once_make_no_report() {
    let environment = [("USLAB_DEBUG", "FZP")];
    in_both_modes("large_frees_and_checks_at_once_make_no_report", &environment, || {
        std::thread::scope(|scope| {
            let free_all_the_time = || {
                for round in 0..2000 {
                    let bytes = 33_000 + round % 7 * 4096;
                    let object = uslab::malloc::malloc(bytes);
                    // SAFETY: allocated above with that many bytes, and freed once.
                    unsafe {
                        object.write_bytes(round as u8, bytes);
                        uslab::malloc::free(object);
                    }
                }
            };
            let threads = [scope.spawn(free_all_the_time), scope.spawn(free_all_the_time)];
            while !threads.iter().all(|thread| thread.is_finished()) {
                let found = debug::validate().expect("the structures are whole");
                assert_eq!(found.faulty_objects, 0);
            }
        });
    });
}

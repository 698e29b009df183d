//! Little memory: limits on address space and data, and memory that runs out in the middle of an
//! operation. Failures must follow the standard, and freed memory must be usable again.
//!
//! No test sets overcommit mode 2: it applies to the whole machine, and other processes would fail
//! too. To the library it looks like RLIMIT_DATA: the kernel refuses a mapping.

#[path = "support/again.rs"]
mod again;
#[path = "support/alone.rs"]
mod alone;

use alone::alone;
use std::collections::HashSet;
use std::ptr;
use std::sync::Once;
use uslab::internal::errno;
use uslab::malloc::{aligned_alloc, calloc, free, free_bulk, malloc, malloc_bulk, realloc};
use uslab::{CacheBuilder, Heap};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// A resource of `setrlimit`.
#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// Limits this process. A failed assertion lifts the limit, because its message needs memory too.
fn set_limit(resource: Resource, bytes: usize) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            limit(libc::RLIMIT_AS, libc::RLIM_INFINITY);
            limit(libc::RLIMIT_DATA, libc::RLIM_INFINITY);
            tell(info);
        }));
    });
    limit(resource, bytes as libc::rlim_t);
}

fn limit(resource: Resource, bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a valid limit; lowering one's own soft limit is always allowed.
    let done = unsafe { libc::setrlimit(resource, &limit) };
    assert_eq!(done, 0, "the limit can be set");
}

/// Private, writable bytes that the process has mapped: what RLIMIT_DATA counts.
fn data_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("the kernel says VmData");
    let kib: usize = line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number");
    kib * 1024
}

/// Allocates until memory is used up, checks that the refusal sets ENOMEM, and returns the list and
/// the number of bytes. Each object is written to; the list links them through their first words.
fn exhaust(bytes: usize) -> (*mut u8, usize) {
    let (mut first, mut total) = (ptr::null_mut::<u8>(), 0);
    loop {
        errno::set(0);
        let object = malloc(bytes);
        if object.is_null() {
            assert_eq!(errno::get(), libc::ENOMEM);
            return (first, total);
        }
        // SAFETY: allocated by this test, with at least 16 bytes, aligned.
        unsafe {
            object.cast::<*mut u8>().write(first);
            object.add(bytes - 1).write(1);
        }
        first = object;
        total += bytes;
    }
}

fn free_list(mut at: *mut u8) {
    while !at.is_null() {
        // SAFETY: each object comes from `exhaust` and contains the next one's address.
        unsafe {
            let next = at.cast::<*mut u8>().read();
            free(at);
            at = next;
        }
    }
}

/// Uses memory up with objects of each size in turn. Checks each time that refusals are clean, that
/// freed memory can be allocated again, and that at least `least` bytes were available.
fn use_up_and_recover(least: usize) {
    // Runs of pages take groups of the next power of two within one chunk, so large ones use less
    // of the memory.
    for bytes in [64, 1000, 30_000, 100_000, 3 * MIB] {
        let (list, total) = exhaust(bytes);
        println!("objects of {bytes} bytes: {} MiB before memory was used up", total / MIB);
        assert!(total >= least, "{total} bytes of {least}");

        // Meanwhile all other functions fail likewise, and frees work. The test asks for twice the
        // size, which fits in no hole of one object.
        let large = (2 * bytes).max(4 * MIB);
        errno::set(0);
        assert!(malloc(large).is_null() && errno::get() == libc::ENOMEM);
        errno::set(0);
        assert!(calloc(large, 1).is_null() && errno::get() == libc::ENOMEM);
        errno::set(0);
        assert!(aligned_alloc(8192, large).is_null() && errno::get() == libc::ENOMEM);
        errno::set(0);
        // SAFETY: the test owns the list's first object; a refused realloc leaves it unchanged.
        assert!(unsafe { realloc(list, 2 * large) }.is_null() && errno::get() == libc::ENOMEM);

        errno::set(7);
        free_list(list);
        assert_eq!(errno::get(), 7, "free keeps errno");
        uslab::trim(0);
    }
    let object = malloc(MIB);
    assert!(!object.is_null());
    // SAFETY: allocated by this test.
    unsafe { free(object) };
}

#[test]
fn a_start_that_finds_no_memory_is_tried_again() {
    alone("a_start_that_finds_no_memory_is_tried_again", || {
        uslab::mode();
        let figures = || uslab::stats::json().to_string();
        assert!(figures().contains("\"reserved_bytes\": 0,"), "the first use maps memory, not start-up");
        set_limit(libc::RLIMIT_AS, 1);
        errno::set(0);
        let refused = malloc(100).is_null() && errno::get() == libc::ENOMEM;
        set_limit(libc::RLIMIT_AS, 4 * GIB);
        assert!(refused, "there was no memory");
        let object = malloc(100);
        assert!(!object.is_null());
        // SAFETY: allocated by this test.
        unsafe { free(object) };
        assert!(!figures().contains("\"reserved_bytes\": 0,"));
    });
}

#[test]
fn works_in_4_gib_of_address_space() {
    alone("works_in_4_gib_of_address_space", || {
        set_limit(libc::RLIMIT_AS, 4 * GIB);
        // One huge object, mostly untouched, takes most of the address space.
        let huge = malloc(2 * GIB);
        assert!(!huge.is_null());
        // SAFETY: allocated by this test, with two gibibytes.
        unsafe {
            huge.add(2 * GIB - 1).write(1);
            free(huge);
        }
        errno::set(0);
        assert!(malloc(4 * GIB).is_null() && errno::get() == libc::ENOMEM);

        // The rest of the process still has room: threads start, and mappings succeed.
        let threads: Vec<_> = (0..32)
            .map(|_| std::thread::spawn(|| free_list((0..1000).fold(ptr::null_mut(), |next, _| link(next)))))
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        let heap = Heap::new().expect("a heap can be made");
        assert!(heap.alloc(10 * MIB, 64).is_some() && heap.alloc(10, 8).is_some());
    });
}

/// A small object that contains `next`.
fn link(next: *mut u8) -> *mut u8 {
    let object = malloc(48);
    assert!(!object.is_null());
    // SAFETY: allocated by this test, aligned to 16.
    unsafe { object.cast::<*mut u8>().write(next) };
    object
}

#[test]
fn works_in_512_mib_of_address_space() {
    alone("works_in_512_mib_of_address_space", || {
        set_limit(libc::RLIMIT_AS, 512 * MIB);
        use_up_and_recover(200 * MIB);
    });
}

#[test]
fn works_in_48_mib_of_address_space() {
    alone("works_in_48_mib_of_address_space", || {
        // The test harness's own mappings count too.
        let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
        let pages: usize = statm.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        set_limit(libc::RLIMIT_AS, pages * uslab::internal::page_bytes() + 48 * MIB);
        let object = malloc(MIB);
        assert!(!object.is_null());
        // SAFETY: allocated by this test.
        unsafe { free(object) };
    });
}

#[test]
fn survives_a_limit_of_data_at_start() {
    alone("survives_a_limit_of_data_at_start", || {
        set_limit(libc::RLIMIT_DATA, data_bytes() + 64 * MIB);
        use_up_and_recover(40 * MIB);
    });
}

#[test]
fn survives_a_limit_of_data_later() {
    alone("survives_a_limit_of_data_later", || {
        let list = (0..100_000).fold(ptr::null_mut(), |next, _| link(next));
        set_limit(libc::RLIMIT_DATA, data_bytes() + 32 * MIB);
        use_up_and_recover(20 * MIB);
        free_list(list);
        // The library uses a higher limit at once.
        set_limit(libc::RLIMIT_DATA, data_bytes() + 256 * MIB);
        use_up_and_recover(160 * MIB);
    });
}

#[test]
fn bulk_allocation_is_all_or_nothing_when_memory_runs_out() {
    alone("bulk_allocation_is_all_or_nothing_when_memory_runs_out", || {
        const BYTES: usize = 1000;
        let cache = CacheBuilder::new("bulk").build_raw(BYTES).expect("a cache can be made");
        let kept: Vec<_> = (0..100).map(|_| cache.alloc().expect("there is memory")).collect();
        let mut objects = vec![ptr::null_mut(); 200_000];
        set_limit(libc::RLIMIT_DATA, data_bytes() + 16 * MIB);

        let mut most = 0;
        for round in 0..20 {
            assert!(!cache.alloc_bulk(&mut objects), "200 MB do not fit in 16");
            assert!(cache.prefill(objects.len()).is_none());
            // The same number fits every time, so nothing is lost.
            let fits = 12_000;
            assert!(cache.alloc_bulk(&mut objects[..fits]), "round {round}");
            let distinct: HashSet<_> = objects[..fits].iter().collect();
            assert_eq!(distinct.len(), fits);
            for &object in &objects[..fits] {
                // SAFETY: allocated by this test, with that size.
                unsafe { object.write_bytes(0xee, BYTES) };
            }
            // SAFETY: allocated by this test, and unused from here on.
            unsafe { cache.free_bulk(&objects[..fits]) };
            most = most.max(uslab::stats::usage().used_bytes);
        }
        println!("bulk: {} MiB in slabs at the end of a round, at most", most / MIB);

        let (cache, busy) = cache.destroy().expect_err("a hundred objects live");
        assert_eq!(busy.objects, kept.len());
        for object in kept {
            // SAFETY: allocated by this test, and unused from here on.
            unsafe { cache.free(object) };
        }
        cache.destroy().expect("no object is live");
    });
}

#[test]
fn malloc_bulk_is_all_or_nothing_when_memory_runs_out() {
    alone("malloc_bulk_is_all_or_nothing_when_memory_runs_out", || {
        let mut objects = vec![ptr::null_mut(); MIB];
        malloc(1);
        set_limit(libc::RLIMIT_DATA, data_bytes() + 32 * MIB);
        for bytes in [64, 5000, 100_000, 2 * MIB + 1] {
            let fits = 16 * MIB / (bytes + bytes / 8);
            let too_many = (64 * MIB / bytes).min(objects.len()).max(fits + 1);
            let too_many = if bytes * too_many < 48 * MIB {
                objects.resize(MIB, ptr::null_mut());
                MIB
            } else {
                too_many
            };
            for _ in 0..10 {
                errno::set(0);
                assert!(!malloc_bulk(bytes, &mut objects[..too_many]));
                assert_eq!(errno::get(), libc::ENOMEM);
                assert!(malloc_bulk(bytes, &mut objects[..fits]), "{fits} of {bytes} bytes");
                // SAFETY: allocated by this test, and unused from here on.
                unsafe { free_bulk(&objects[..fits]) };
            }
            uslab::trim(0);
            assert_eq!(uslab::stats::usage().large_objects, 0);
        }
    });
}

#[test]
fn creation_fails_cleanly_when_memory_runs_out() {
    alone("creation_fails_cleanly_when_memory_runs_out", || {
        malloc(1);
        set_limit(libc::RLIMIT_DATA, data_bytes() + 4 * MIB);
        let mut caches = Vec::with_capacity(100_000);
        let error = loop {
            match CacheBuilder::new("many").build_raw(100) {
                Ok(cache) => caches.push(cache),
                Err(error) => break error,
            }
        };
        println!("caches: {} before {error}", caches.len());
        assert!(caches.len() > 100);
        // Existing caches continue to work within the memory left, and a new cache reuses the
        // memory of a destroyed one.
        caches.truncate(caches.len() / 2);
        let cache = CacheBuilder::new("next").build_raw(100).expect("the memory of another cache is free");
        cache.destroy().expect("no object is live");
    });
}

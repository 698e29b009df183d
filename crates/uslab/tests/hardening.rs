//! Words of `USLAB_SECURE`: addresses that serve one cache, random order, sizes that change, and
//! text without a meaning.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::ptr::NonNull;
use uslab::internal::entry;
use uslab::{CacheBuilder, RawCache, debug};

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

const CHILD: &str = "USLAB_TEST_CHILD";
const OBJECTS: usize = 20_000;

/// Runs the test `name` again, in a process with this value: the library reads it once.
fn again(name: &str, secure: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("there is a path"));
    command.args([name, "--exact", "--nocapture"]).env(CHILD, "1").env("USLAB_SECURE", secure);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The pages of so many objects of a cache, which are free again afterwards.
fn pages_of(cache: &RawCache) -> BTreeSet<usize> {
    let objects: Vec<NonNull<u8>> = (0..OBJECTS).map(|_| cache.alloc().expect("memory")).collect();
    let pages = objects.iter().map(|object| object.addr().get() / 4096).collect();
    // SAFETY: from this cache, and used by no thread.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    cache.shrink();
    pages
}

#[test]
fn released_slabs_serve_their_own_cache_again_and_no_other() {
    if !is_child() {
        return drop(again("released_slabs_serve_their_own_cache_again_and_no_other", "ranges"));
    }
    for bytes in [64, 500, 9000] {
        let one = CacheBuilder::new("one").build_raw(bytes).expect("memory");
        let other = CacheBuilder::new("other").build_raw(bytes).expect("memory");
        let first = pages_of(&one);
        assert!(first.is_disjoint(&pages_of(&other)), "objects of {bytes} bytes");
        let again = pages_of(&one);
        let kept = first.intersection(&again).count();
        assert!(kept * 10 >= first.len() * 9, "{kept} of {} pages serve again", first.len());
        debug::validate().expect("the structures are whole");
    }
}

#[test]
fn objects_come_in_random_order() {
    if !is_child() {
        return drop(again("objects_come_in_random_order", "order"));
    }
    let cache = CacheBuilder::new("shuffled").build_raw(64).expect("memory");
    let objects: Vec<_> = (0..1000).map(|_| cache.alloc().expect("memory").addr().get()).collect();
    let neighbours = objects.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 64).count();
    assert!(neighbours < 200, "{neighbours} of 1000 objects follow their neighbours");
    debug::validate().expect("the structures are whole");
}

#[test]
fn a_resized_object_shows_neither_a_canary_nor_what_it_had() {
    if !is_child() {
        return drop(again("a_resized_object_shows_neither_a_canary_nor_what_it_had", "1"));
    }
    let bytes = |object: *mut u8, count| {
        // SAFETY: an object in use of at least so many bytes, which the caller wrote or cleared.
        unsafe { std::slice::from_raw_parts(object, count) }.to_vec()
    };
    // SAFETY: one object, resized within its class, used up to its size, and freed once.
    unsafe {
        let object = entry::malloc(100);
        object.write_bytes(0xee, 100);
        assert_eq!(entry::realloc(object, 97), object, "it stays in its place");
        assert_eq!(entry::realloc(object, 112), object);
        assert_eq!(bytes(object, 112), [[0xee; 97].as_slice(), &[0; 15]].concat());
        object.add(97).write_bytes(0xee, 15);
        let moved = entry::realloc(object, 113);
        assert_ne!(moved, object, "another class");
        assert_eq!(bytes(moved, 112), [0xee; 112]);
        entry::free(moved);
    }
    debug::validate().expect("the structures are whole");
    assert_eq!(debug::check_objects(), 0);
}

/// Objects lie 16 bytes further apart, and no more, whatever their class could promise.
#[test]
fn an_object_takes_16_bytes_more() {
    if !is_child() {
        return drop(again("an_object_takes_16_bytes_more", "1"));
    }
    for class in [16, 48, 64, 128, 1024, 4096, 5120] {
        let mut objects: Vec<usize> = (0..4000).map(|_| entry::malloc(class).addr()).collect();
        objects.sort_unstable();
        let nearest = objects.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert_eq!(nearest, Some(class + 16));
        assert!(objects.iter().all(|object| object.is_multiple_of(16)));
        // SAFETY: each is freed once.
        objects.iter().for_each(|&object| unsafe { entry::free(object as *mut u8) });
    }
    assert_eq!(debug::check_objects(), 0);
}

/// The library reads `USLAB_SECURE` in this first call, before it chooses the cache.
#[test]
fn the_first_object_of_a_process_is_aligned() {
    if !is_child() {
        return drop(again("the_first_object_of_a_process_is_aligned", "canary"));
    }
    let object = entry::aligned_alloc(64, 64);
    assert!(!object.is_null() && object.addr().is_multiple_of(64), "{object:?}");
}

#[test]
fn aligned_objects_of_malloc_stay_aligned() {
    if !is_child() {
        ["1", "check", "canary", "quarantine,order"]
            .into_iter()
            .for_each(|words| drop(again("aligned_objects_of_malloc_stay_aligned", words)));
        return;
    }
    let mut objects = Vec::new();
    for align in (3..=13).map(|shift| 1 << shift) {
        for size in [1, 16, 40, 64, 100, 1000, 4096, 5000, 32 << 10, 100_000] {
            for alloc in [entry::aligned_alloc, entry::aligned_alloc_noreclaim] {
                let object = alloc(align, size);
                assert!(!object.is_null() && object.addr().is_multiple_of(align), "{align} {size}");
                // SAFETY: an object of so many bytes.
                unsafe { object.write_bytes(0xee, size) };
                assert!(usable_size(object) >= size);
                objects.push((object, align, size));
            }
        }
    }
    assert_eq!(debug::check_objects(), 0);
    for (object, align, size) in objects {
        // SAFETY: each is freed once, by the alignment and the size that it was allocated with.
        unsafe { entry::free_aligned_sized_tested::<{ entry::ANY }>(object, align, size) };
    }
    debug::validate().expect("the structures are whole");
    assert_eq!(debug::check_objects(), 0);
}

/// A walk reads objects that other threads allocate, resize and free.
#[test]
fn threads_and_checks_at_once_make_no_report() {
    if !is_child() {
        return drop(again("threads_and_checks_at_once_make_no_report", "1"));
    }
    let work = |seed: usize| {
        let mut objects = vec![std::ptr::null_mut::<u8>(); 64];
        for round in 0..60_000 {
            let (at, bytes) = ((round * 7 + seed) % 64, 1 + round * 13 % 400);
            // SAFETY: null, or an object of this thread, used up to its size and freed once.
            unsafe {
                objects[at] = match round % 3 {
                    0 => entry::realloc(objects[at], bytes),
                    _ => {
                        entry::free(objects[at]);
                        entry::malloc(bytes)
                    }
                };
                objects[at].write_bytes(0xee, bytes);
            }
        }
        // SAFETY: as above.
        objects.into_iter().for_each(|object| unsafe { entry::free(object) });
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|seed| scope.spawn(move || work(seed))).collect();
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert_eq!(debug::check_objects(), 0);
        }
    });
    debug::validate().expect("the structures are whole");
}

#[test]
fn text_without_a_meaning_is_reported_by_its_column() {
    const NAME: &str = "text_without_a_meaning_is_reported_by_its_column";
    if is_child() {
        assert!(CacheBuilder::new("plain").build_raw(64).is_ok());
        return;
    }
    let stderr = String::from_utf8(again(NAME, "zero,none").stderr).expect("text");
    let lines: Vec<_> = stderr.lines().filter(|line| line.contains("USLAB_SECURE")).collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    assert!(lines[0].starts_with("uslab: USLAB_SECURE is ignored: column 6: "), "{stderr}");
}

//! Short-lived threads: 10 000 of them leave nothing behind.
//!
//! The library keeps no state per thread, so a thread's start and end do not involve it. Each
//! thread here allocates, frees half of its objects and leaves the rest to another thread, like a
//! server that passes work on.
#![cfg(not(loom))]

use std::ptr::NonNull;
use std::sync::Mutex;
use uslab::{CacheBuilder, RawCache};

const BATCH: usize = 100;
const BATCHES: usize = 100;
const OBJECTS: usize = 64;
const OBJECT_BYTES: usize = 256;

/// Objects that threads left behind.
struct Left(Mutex<Vec<NonNull<u8>>>);
// SAFETY: an object belongs to the thread that removes it, under the lock.
unsafe impl Sync for Left {}

fn rss_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    // SAFETY: no preconditions.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize
}

fn live_and_die(cache: &RawCache, left: &Left, id: u8) {
    let objects: Vec<NonNull<u8>> = (0..OBJECTS).map(|_| cache.alloc().unwrap()).collect();
    for object in &objects {
        // SAFETY: the thread owns the object, of that many bytes.
        unsafe { object.write_bytes(id, OBJECT_BYTES) };
    }
    let theirs = {
        let mut left = left.0.lock().unwrap();
        let theirs = std::mem::take(&mut *left);
        left.extend(&objects[OBJECTS / 2..]);
        theirs
    };
    for object in theirs.into_iter().chain(objects[..OBJECTS / 2].iter().copied()) {
        // SAFETY: owned, valid, and freed once.
        unsafe {
            let bytes = std::slice::from_raw_parts(object.as_ptr(), OBJECT_BYTES);
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "two threads wrote to {object:p}");
            cache.free(object);
        }
    }
}

#[test]
fn ten_thousand_threads_leave_nothing_behind() {
    let cache = CacheBuilder::new("threads").build_raw(OBJECT_BYTES).unwrap();
    let left = Left(Mutex::new(Vec::new()));
    let mut rss_after_warm_up = 0;
    for batch in 0..BATCHES {
        std::thread::scope(|scope| {
            for thread in 0..BATCH {
                let (cache, left) = (&cache, &left);
                scope.spawn(move || live_and_die(cache, left, (batch + thread) as u8));
            }
        });
        if batch == BATCHES / 10 {
            rss_after_warm_up = rss_bytes();
        }
    }
    let grown = rss_bytes().saturating_sub(rss_after_warm_up);
    assert!(grown <= 8 << 20, "nine thousand threads left {grown} bytes behind");
    for object in left.0.into_inner().unwrap() {
        // SAFETY: no other thread owns it.
        unsafe { cache.free(object) };
    }
    uslab::debug::validate().expect("the structures are whole");
    cache.destroy().expect("an object was lost");
    uslab::debug::validate().expect("the structures are whole");
}

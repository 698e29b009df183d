//! Large numbers: live caches by the thousands, more caches in a process's
//! life than ids, and more moves of large objects than the kernel allows mappings. A program that
//! frees its memory must not exhaust any of these.

#[path = "support/again.rs"]
mod again;
#[path = "support/alone.rs"]
mod alone;

use alone::alone;
use uslab::malloc::{free, malloc, realloc};
use uslab::{CacheBuilder, Heap, RawCache};

fn cache(bytes: usize) -> RawCache {
    CacheBuilder::new("many").build_raw(bytes).expect("a cache can be made")
}

#[test]
fn the_last_of_thousands_of_caches_know_their_live_objects() {
    alone("the_last_of_thousands_of_caches_know_their_live_objects", || {
        const CACHES: usize = 3 * uslab::internal::layout::FIRST_RECORDS + 200;
        let caches: Vec<RawCache> = (0..CACHES).map(|n| cache(16 + n % 500)).collect();
        let objects: Vec<_> = caches.iter().map(|cache| cache.alloc().expect("there is memory")).collect();
        for (cache, object) in caches.into_iter().zip(objects).rev().take(400) {
            let (cache, busy) = cache.destroy().expect_err("one object lives");
            assert_eq!((busy.objects, busy.first[0]), (1, object.as_ptr()));
            // SAFETY: allocated by this test, and unused from here on.
            unsafe { cache.free(object) };
            cache.destroy().expect("no object is live");
        }
    });
}

#[test]
fn ids_of_destroyed_caches_are_used_again() {
    alone("ids_of_destroyed_caches_are_used_again", || {
        for round in 0..600 {
            let caches: Result<Vec<_>, _> =
                (0..200).map(|_| CacheBuilder::new("many").build_raw(64)).collect();
            assert!(caches.is_ok(), "after {} caches: {caches:?}", round * 200);
        }
    });
}

#[test]
fn memory_of_destroyed_caches_is_used_again() {
    alone("memory_of_destroyed_caches_is_used_again", || {
        let together = || {
            let heaps: Vec<_> = (0..100).map(|_| Heap::new().expect("a heap can be made")).collect();
            heaps
                .iter()
                .for_each(|heap| assert!(heap.alloc(100, 8).is_some() && heap.alloc(1000, 8).is_some()));
        };
        together();
        let before = uslab::internal::boot::used_bytes();
        (0..20).for_each(|_| together());
        let grown = uslab::internal::boot::used_bytes() - before;
        println!("heaps: {grown} bytes of metadata more after 2000 heaps that came and went");
        assert!(grown < 64 << 10);
    });
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted").lines().count()
}

#[test]
fn moving_large_objects_does_not_use_up_mappings() {
    alone("moving_large_objects_does_not_use_up_mappings", || {
        const MIB: usize = 1 << 20;
        let before = mappings();
        let mut objects = [std::ptr::null_mut::<u8>(); 64];
        for round in 0..40_000usize {
            let at = round.wrapping_mul(0x9e37_79b9) >> 7 & 63;
            let bytes = MIB + (round.wrapping_mul(0x85eb_ca6b) >> 5 & 7) * 64 * 4096;
            // SAFETY: an object of this test or null; the old address is not used any more.
            let moved = unsafe { realloc(objects[at], bytes) };
            assert!(!moved.is_null());
            // SAFETY: allocated by this test, with that size.
            unsafe { moved.add(bytes - 1).write(1) };
            objects[at] = moved;
            if round % 3 == 0 {
                let other = round.wrapping_mul(0xc2b2_ae35) >> 7 & 63;
                // SAFETY: an object of this test or null, unused from here on.
                unsafe { free(objects[other]) };
                objects[other] = malloc(MIB);
            }
        }
        let most = mappings();
        println!("mappings: {before} before, {most} after moving large objects");
        assert!(most < 2000, "{most} mappings");
    });
}

//! The quarantine of hardened caches: a freed object takes a place, and the object that was there
//! goes on to its slab.
//!
//! ```text
//!   frees of a CPU ─▶ 64 places from a random one on ─▶ 64 from another one on ─▶ …
//! ```
//!
//! So an object is used again after a random number of frees: on average as many as there are
//! places. Objects that are freed together leave together, in random order within 16 places, and
//! lie together when they are used again. With a random place for each, the program would have more
//! cache misses.
//!
//! The size classes of `malloc` share two arrays. A cache of the program has one of its own: the
//! program may destroy it while other caches' frees are under way. Objects of n bytes take the
//! first 1 MiB / n places. The classes, of 32 KiB at most, hold 3 MiB together at most, and a cache
//! of the program 1 MiB.

use crate::os;
use crate::pages;
use crate::rseq::Cpu;
use crate::sync::{CachePadded, prefetch_for_write};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

/// A place for an object, or null.
pub type Place = AtomicPtr<u8>;

/// Largest object of the slab, record and zones included, that counts as small.
const MAX_SMALL_BYTES: usize = 1 << 10;
/// Bytes that objects of one size may hold in an array. A larger object has one place.
const MAX_KEPT_BYTES: usize = 1 << 20;
/// Frees of a CPU that take places in a row, before it goes on from another place.
const ROW: u64 = 64;
/// Places of a row that are taken in random order; a power of two.
const MIXED: u64 = 16;
/// Places of a cache of the program.
const OWN_PLACES: usize = 256;

#[unsafe(link_section = ".bss.uslab_tables")]
static SMALL: [Place; 1024] = [const { Place::new(ptr::null_mut()) }; 1024];
#[unsafe(link_section = ".bss.uslab_tables")]
static LARGER: [Place; 64] = [const { Place::new(ptr::null_mut()) }; 64];

/// Frees so far, on the CPUs that share a counter: places in the sequence of random numbers.
static FREES: [CachePadded<AtomicU64>; 16] = [const { CachePadded(AtomicU64::new(0)) }; 16];

/// Allocates the places of a cache, all of them null; they are never released. Empty if there is no
/// memory.
pub fn new_places() -> &'static [Place] {
    let places = pages::boot::alloc(OWN_PLACES * size_of::<Place>(), 64).cast::<Place>();
    if places.is_null() {
        return &[];
    }
    // SAFETY: fresh, zeroed memory of that many places, which lives for ever.
    unsafe { core::slice::from_raw_parts(places, OWN_PLACES) }
}

/// The places for objects of `bytes` bytes: of a cache's own ones, or of those that the size
/// classes share, as many as are in use.
pub fn places_for(bytes: usize, own: Option<&'static [Place]>) -> &'static [Place] {
    let places = own.unwrap_or(if bytes <= MAX_SMALL_BYTES { &SMALL } else { &LARGER });
    &places[..places.len().min((MAX_KEPT_BYTES / bytes).max(1))]
}

/// Chooses one of `places` for an object that the caller is about to check and clear; `None` if
/// there is none. Prefetches the place and the object that will leave it: both were last used some
/// thousand frees ago, and the caller's checks take longer than these misses.
#[inline]
pub fn choose(places: &[Place]) -> Option<&Place> {
    let frees = &Cpu::current().shared(&FREES).unwrap_or(&FREES[0]).0;
    // Two threads may get one count: then they choose one place.
    let count = frees.load(Relaxed);
    frees.store(count + 1, Relaxed);
    let place = places.get(place_of(count, ptr::from_ref(frees) as u64, places.len()))?;
    prefetch_for_write(place.load(Relaxed));
    Some(place)
}

/// The place of a CPU's free number `count`, of `places` places. Each place is as likely as any
/// other.
#[inline]
fn place_of(count: u64, cpu: u64, places: usize) -> usize {
    let random = os::random::at((count / ROW) ^ cpu);
    // The upper half of the product: no division.
    let first = ((u128::from(random) * places as u128) >> 64) as usize;
    let place = first + ((count % ROW) ^ (random % MIXED)) as usize;
    if place < places { place } else { place % places.max(1) }
}

/// Puts a free object into `place`, and returns the one that leaves, if one does.
#[inline]
pub fn exchange(place: &Place, object: *mut u8) -> Option<*mut u8> {
    let old = place.swap(object, AcqRel);
    (!old.is_null()).then_some(old)
}

/// Empties a cache's own places, and calls `free` for each object.
pub fn leave(places: &[Place], free: impl Fn(*mut u8)) {
    places
        .iter()
        .map(|place| place.swap(ptr::null_mut(), AcqRel))
        .filter(|old| !old.is_null())
        .for_each(free);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn each_place_is_used_as_often_and_a_row_uses_none_twice() {
        for places in [1, 5, 31, 64, 256, 1024] {
            let mut uses = vec![0u32; places];
            for row in 0..4096 {
                let mut row: Vec<_> =
                    (row * ROW..(row + 1) * ROW).map(|at| place_of(at, 7, places)).collect();
                row.iter().for_each(|&place| uses[place] += 1);
                row.sort_unstable();
                row.dedup();
                assert_eq!(row.len(), places.min(ROW as usize));
            }
            let mean = 4096 * ROW as u32 / places as u32;
            assert!(uses.iter().all(|&uses| uses.abs_diff(mean) < mean / 2), "{places}: {uses:?}");
        }
    }

    #[test]
    fn without_a_place_nothing_is_chosen() {
        assert!(choose(&[]).is_none());
    }
}

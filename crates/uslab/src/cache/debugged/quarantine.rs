//! The quarantine of hardened caches: a freed object takes a random place, and the object that was
//! there goes on to its slab.
//!
//! So an object is used again after a random number of frees: as many as there are places, in the
//! mean. The size classes of `malloc` share two arrays. A cache of the program has one of its own:
//! the program may destroy it while other caches' frees are under way. Objects of n bytes take the
//! first 1 MiB / n places. The classes, of 32 KiB at most, hold 3 MiB together
//! at most, and a cache of the program 1 MiB.

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
    let random = os::random::at(count ^ ptr::from_ref(frees) as u64);
    // The upper half of the product: no division.
    let place = places.get(((u128::from(random) * places.len() as u128) >> 64) as usize)?;
    prefetch_for_write(place.load(Relaxed));
    Some(place)
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

//! The quarantine of hardened caches: a freed object takes a random place, and the object that was
//! there goes on to its slab.
//!
//! So an object is used again after a random number of frees: as many as there are places, in the
//! mean. Small objects have 1024 places for all caches, larger ones 64: 3 MiB at most.

use crate::os;
use crate::pages;
use crate::rseq::{Cpu, Owner};
use crate::sync::CachePadded;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

/// Largest object of the slab, record and zones included, that counts as small.
const MAX_SMALL_BYTES: usize = 1 << 10;

#[unsafe(link_section = ".bss.uslab_tables")]
static SMALL: [AtomicPtr<u8>; 1024] = [const { AtomicPtr::new(ptr::null_mut()) }; 1024];
#[unsafe(link_section = ".bss.uslab_tables")]
static LARGER: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(ptr::null_mut()) }; 64];

/// Frees so far, on the CPUs that share a counter: places in the sequence of random numbers.
static FREES: [CachePadded<AtomicU64>; 16] = [const { CachePadded(AtomicU64::new(0)) }; 16];

/// Takes in a free object of `bytes` bytes, and returns the one that leaves, if one does.
pub fn exchange(object: *mut u8, bytes: usize) -> Option<*mut u8> {
    let frees = &Cpu::current().shared(&FREES).unwrap_or(&FREES[0]).0;
    let count = frees.fetch_add(1, Relaxed);
    let random = os::random::at(count ^ ptr::from_ref(frees) as u64) as usize;
    let places = if bytes <= MAX_SMALL_BYTES { &SMALL[..] } else { &LARGER[..] };
    let old = places[random % places.len()].swap(object, AcqRel);
    (!old.is_null()).then_some(old)
}

/// Takes the objects out that lie in pages of `owner`, and calls `free` for each.
pub fn leave(owner: Owner, free: impl Fn(*mut u8)) {
    for place in SMALL.iter().chain(&LARGER) {
        let object = place.load(Relaxed);
        let is_its = pages::owner_of(object) == Some(owner);
        if is_its && place.compare_exchange(object, ptr::null_mut(), AcqRel, Relaxed).is_ok() {
            free(object);
        }
    }
}

//! The bitmap of a slab and its free count: the only steps on them that race.
//!
//! Small enough to be run as they are by a loom model (`tests/loom.rs`): everything else about
//! slabs happens under a lock.

use crate::sync::atomic::{AtomicI32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Sets the bits of `mask`: those objects are free. Returns those that were set before: they are
/// free already.
///
/// Release: what the freer did to the objects happens before the next thread takes them.
#[inline]
pub fn free(word: &AtomicU64, mask: u64) -> u64 {
    debug_assert!(mask != 0, "a giver has an object to give");
    word.fetch_or(mask, AcqRel) & mask
}

/// Takes up to `wanted` of a word's free objects, lowest first; returns their mask. One taker at a
/// time (the lists' lock).
#[inline]
pub fn take(word: &AtomicU64, wanted: usize) -> u64 {
    let free = word.load(Relaxed);
    if free == 0 || wanted == 0 {
        return 0;
    }
    if wanted >= free.count_ones() as usize {
        // Bits that givers set since the load stay for the next taker.
        let taken = word.fetch_and(!free, Acquire) & free;
        debug_assert_eq!(taken, free, "a bit that is set stays so until the one taker clears it");
        return taken;
    }
    let mut rest = free;
    for _ in 0..wanted {
        rest &= rest - 1;
    }
    let mask = free & !rest;
    debug_assert_eq!(mask.count_ones() as usize, wanted, "a taker takes as many bits as it wants");
    let taken = word.fetch_and(!mask, Acquire) & mask;
    debug_assert_eq!(taken, mask, "a bit that is set stays so until the one taker clears it");
    taken
}

/// After [`free`]: adds to the count; returns the count before.
///
/// Release and acquire: who sees the count sees the bits, and the giver that completes a slab sees
/// all that was done to it.
#[inline]
pub fn add(count: &AtomicI32, n: usize) -> i32 {
    count.fetch_add(n as i32, AcqRel)
}

/// After [`take`]: lowers the count; returns what is left, which may be less than 0 while a giver
/// is between its steps.
#[inline]
pub fn subtract(count: &AtomicI32, n: usize) -> i32 {
    count.fetch_sub(n as i32, AcqRel) - n as i32
}

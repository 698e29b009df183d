//! The racing steps on a slab: changes of a word of its bitmap and of its free count.
//!
//! All other changes of slabs happen under a lock, or on a slab that a refill has moved to the
//! taking list under it. A loom model (`tests/loom.rs`) runs these functions as they are.

use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use crate::sync::atomic::{AtomicI32, AtomicU64};

/// Marks the objects of `mask` free. Returns the bits that were set before: a double free of those
/// objects.
///
/// Release: the freeing thread's accesses to the objects happen before the next thread takes them.
#[inline]
pub fn free(word: &AtomicU64, mask: u64) -> u64 {
    debug_assert!(mask != 0, "a giver has an object to give");
    word.fetch_or(mask, AcqRel) & mask
}

/// Takes up to `wanted` of a word's free objects, lowest first; returns their mask. The caller
/// holds the lists' lock or has moved the slab to the taking list, so one thread takes at a time.
#[inline]
pub fn take(word: &AtomicU64, wanted: usize) -> u64 {
    let free = word.load(Relaxed);
    if free == 0 || wanted == 0 {
        return 0;
    }
    if wanted >= free.count_ones() as usize {
        // Bits that freeing threads set since the load stay for the next take.
        let taken = word.fetch_and(!free, Acquire) & free;
        debug_assert_eq!(taken, free, "a bit that is set stays so until the one taker clears it");
        return taken;
    }
    let first = free.trailing_zeros();
    let run = !(u64::MAX << wanted) << first;
    // Neighbours, as in a fresh or freed slab, are found without a search for each bit.
    let mask = if free & run == run { run } else { lowest(free, wanted) };
    debug_assert_eq!(mask.count_ones() as usize, wanted, "a taker takes as many bits as it wants");
    let taken = word.fetch_and(!mask, Acquire) & mask;
    debug_assert_eq!(taken, mask, "a bit that is set stays so until the one taker clears it");
    taken
}

/// The lowest `wanted` of the bits set in `free`, which has more.
fn lowest(free: u64, wanted: usize) -> u64 {
    let rest = (0..wanted).fold(free, |rest, _| rest & (rest - 1));
    free & !rest
}

/// After [`free`]: adds to the count; returns the count before.
///
/// Release and acquire: a thread that reads the count sees the bits that it counts. The freeing
/// thread that completes a slab sees all earlier accesses to the slab. And sequentially consistent:
/// the thread reads the slab's list next, see `Slab::is_listed_as_full`.
#[inline]
pub fn add(count: &AtomicI32, n: usize) -> i32 {
    count.fetch_add(n as i32, SeqCst)
}

/// After [`take`]: subtracts from the count; returns the new count. It may be negative while a
/// freeing thread has set a bit and not counted it yet.
#[inline]
pub fn subtract(count: &AtomicI32, n: usize) -> i32 {
    count.fetch_sub(n as i32, AcqRel) - n as i32
}

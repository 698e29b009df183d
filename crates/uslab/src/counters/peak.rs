//! Highest values of some counters since the start.

use super::header;
use crate::sync::CachePadded;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The highest value noted so far.
pub struct Peak(AtomicUsize);

impl Peak {
    const fn new() -> Peak {
        Peak(AtomicUsize::new(0))
    }

    /// Raises the peak to `now` if that is higher, and returns the peak. Writes only a new maximum.
    pub(super) fn note(&self, now: usize) -> usize {
        let before = self.0.load(Relaxed);
        if now > before { self.0.fetch_max(now, Relaxed).max(now) } else { before }
    }
}

/// Bytes of slabs and of free pages with memory behind them.
///
/// Padded, as those below: each new slab may write it, and every slow path reads what lies beside.
pub(super) static SYSTEM_BYTES: CachePadded<Peak> = CachePadded(Peak::new());
/// Large objects that the program held.
pub(super) static LARGE_OBJECTS: CachePadded<Peak> = CachePadded(Peak::new());
/// Bytes of large objects that the program held.
pub(super) static LARGE_BYTES: CachePadded<Peak> = CachePadded(Peak::new());

/// Bytes of slabs and of free pages with memory behind them, now: all but large objects.
pub(super) fn system_bytes() -> usize {
    let header = header();
    let held = header.used_bytes.load(Relaxed) + header.dirty_bytes.load(Relaxed);
    held.saturating_sub(header.large_bytes.load(Relaxed)) as usize
}

/// Records the peak of [`system_bytes`]. Must be called after each step by which they can grow: a
/// slab was created, more pages of a slab were charged, or pages of a large object became free.
pub(crate) fn note_system() {
    SYSTEM_BYTES.note(system_bytes());
}

/// Records the peaks of large objects. Must be called after one was counted.
pub(crate) fn note_large() {
    LARGE_OBJECTS.note(header().large_objects.load(Relaxed) as usize);
    LARGE_BYTES.note(header().large_bytes.load(Relaxed) as usize);
}

//! Marks: which entries of a table threads have used, so that forks, drains and background work
//! visit these alone.
//!
//! ```text
//!   thread   mark of entry n set? ── yes ─▶ use it (its lock, or a sequence)
//!                       └ no ─▶ lock ─▶ set the mark ─▶ unlock ─┘
//!   fork     the same lock ─▶ lock or park the marked entries ─▶ copy ─▶ undo ─▶ unlock
//! ```
//!
//! **An entry without a mark is as it was made**, and stays so while a thread holds the lock under
//! which marks are set. So a fork, which holds it until the memory is copied, leaves these entries
//! alone. This saves more than the visits: to release a lock, a fork writes to a page that parent
//! and child share by then, and the kernel copies that page.
//!
//! A thread that finds its mark set takes no lock, and writes nothing. Marks are never cleared, so
//! the word is written at most 64 times.

use super::{Lock, Park};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The entries of a table that threads have used. One mark stands for one entry in tables of up to
/// 64 entries, and for a few neighbours in longer ones.
pub struct Marks {
    bits: AtomicU64,
    entries: u32,
    /// A mark stands for 2^shift entries.
    shift: u32,
}

impl Marks {
    /// No mark in a table of so many entries.
    pub const fn none(entries: usize) -> Marks {
        let shift = entries.div_ceil(u64::BITS as usize).next_power_of_two().trailing_zeros();
        Marks { bits: AtomicU64::new(0), entries: entries as u32, shift }
    }

    /// A table of one entry, which is marked.
    pub const fn of_one() -> Marks {
        Marks { bits: AtomicU64::new(1), entries: 1, shift: 0 }
    }

    /// The bit of entry `index`, modulo their number.
    fn bit(&self, index: usize) -> u64 {
        let entries = self.entries as usize;
        let index = if index < entries { index } else { index % entries.max(1) };
        1 << (index >> self.shift)
    }

    /// Whether threads may have used the entry `index`, modulo their number.
    #[inline]
    pub fn has(&self, index: usize) -> bool {
        self.bits.load(Relaxed) & self.bit(index) != 0
    }

    /// Marks the entry `index`, modulo their number, under `lock`, unless it has its mark. May
    /// sleep until a fork has copied the memory.
    #[inline]
    pub fn add<P: Park>(&self, index: usize, lock: &Lock<(), P>) {
        if !self.has(index) {
            self.add_first(index, lock);
        }
    }

    #[cold]
    fn add_first<P: Park>(&self, index: usize, lock: &Lock<(), P>) {
        let _held = lock.lock();
        self.bits.fetch_or(self.bit(index), Relaxed);
    }

    /// Marks the entry `index`, modulo their number, for readers that bear to miss a mark which is
    /// set meanwhile. A fork does not.
    #[inline]
    pub fn note(&self, index: usize) {
        if !self.has(index) {
            self.bits.fetch_or(self.bit(index), Relaxed);
        }
    }

    /// The marked entries, with those that share their marks.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (mut bits, entries, shift) = (self.bits.load(Relaxed), self.entries as usize, self.shift);
        core::iter::from_fn(move || {
            let first = (bits != 0).then(|| (bits.trailing_zeros() as usize) << shift)?;
            bits &= bits - 1;
            Some(first..entries.min(first + (1 << shift)))
        })
    }

    /// The marked entries of `table`, with those that share their marks.
    pub fn of<'a, T>(&self, table: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
        self.ranges().flat_map(move |range| {
            let end = range.end.min(table.len());
            table.get(range.start..end).unwrap_or_default()
        })
    }
}

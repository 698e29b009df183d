//! A table of the sheaves that threads own at this moment, by which debug builds check invariant 8
//! (ARCHITECTURE.md).
//!
//! A thread that takes a sheaf out of a slot or a barn claims it. It releases the sheaf before it
//! puts it where another thread may take it. A sheaf that is claimed twice has two owners: an
//! exchange returned it to both.
//!
//! ```text
//!   slot ──exchange──▶ claim … the owner fills or empties it … release ──exchange──▶ slot
//!   barn ──pop───────▶ claim                                   release ──push──────▶ barn
//!   slabs ─alloc─────▶ claim                                   release ──free──────▶ slabs
//! ```
//!
//! The table has a fixed size and no lock; a sheaf whose window is full is not tracked. A sheaf
//! that is lost, to a fork child or for want of a barrier, keeps its place in the table: it never
//! returns. Release builds contain neither the table nor these steps.

use super::sheaf;
use crate::os::invariant::{Checked, Subject, assert_valid, invariant};
use crate::rseq::{Sheaf, is_dummy};

/// Notes that the calling thread owns `sheaf` from now on. Ignores the dummy and null, which stand
/// for no sheaf.
#[inline(always)]
pub(super) fn claim(sheaf: *mut Sheaf) {
    if cfg!(debug_assertions) && !sheaf.is_null() && !is_dummy(sheaf) {
        assert_valid(|| check(sheaf));
        invariant!(table::insert(sheaf as usize), "a sheaf has one owner", sheaf);
    }
}

/// Notes that the calling thread is about to put `sheaf` where another thread may take it.
#[inline(always)]
pub(super) fn release(sheaf: *mut Sheaf) {
    if cfg!(debug_assertions) && !sheaf.is_null() && !is_dummy(sheaf) {
        assert_valid(|| check(sheaf));
        table::remove(sheaf as usize);
    }
}

/// Checks the invariants of a sheaf that hold even while sequences work on it. No thread may free
/// the sheaf meanwhile.
pub(super) fn check(sheaf: *mut Sheaf) -> Checked {
    use core::sync::atomic::Ordering::Relaxed;
    let subject = Subject::new("sheaf", sheaf);
    subject.equal(sheaf as usize % 64, 0, "a sheaf starts on a cache line")?;
    subject.holds(crate::pages::page_of_any(sheaf.cast()).is_some(), "a sheaf lies in the arena")?;
    // SAFETY: it lies in the arena, where pages with sheaves stay mapped; the words are atomics.
    let header = unsafe { &*sheaf };
    let (count, capacity) = (header.count.load(Relaxed), header.capacity.load(Relaxed));
    subject.at_most(count, capacity, "a sheaf holds no more objects than its capacity")?;
    subject.equal(header.sentinel.load(Relaxed), 0, "the place before a sheaf's first object is NULL")?;
    let owner = crate::pages::owner_of(sheaf.cast()).map(|owner| owner.slots());
    let expected = sheaf::owner_of_capacity(capacity as usize).slots();
    subject.equal(owner, Some(expected), "a sheaf lies in the slabs of its capacity")
}

#[cfg(debug_assertions)]
mod table {
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

    const WINDOWS: usize = 256;
    const PLACES: usize = 8;

    static OWNED: [[AtomicUsize; PLACES]; WINDOWS] =
        [const { [const { AtomicUsize::new(0) }; PLACES] }; WINDOWS];

    fn window(sheaf: usize) -> &'static [AtomicUsize; PLACES] {
        &OWNED[(sheaf >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56]
    }

    fn times(sheaf: usize) -> usize {
        window(sheaf).iter().filter(|place| place.load(SeqCst) == sheaf).count()
    }

    /// Inserts a sheaf; returns false if it is in the table already. Of two threads that insert the
    /// same sheaf at once, at least one sees the other's entry.
    pub fn insert(sheaf: usize) -> bool {
        if times(sheaf) > 0 {
            return false;
        }
        let free = |place: &&AtomicUsize| place.compare_exchange(0, sheaf, SeqCst, Relaxed).is_ok();
        window(sheaf).iter().find(free).is_none() || times(sheaf) == 1
    }

    pub fn remove(sheaf: usize) {
        for place in window(sheaf) {
            if place.load(Relaxed) == sheaf {
                place.store(0, SeqCst);
            }
        }
    }
}

#[cfg(not(debug_assertions))]
mod table {
    pub fn insert(_: usize) -> bool {
        true
    }
    pub fn remove(_: usize) {}
}

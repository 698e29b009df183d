//! Which sheaves threads own at this moment: the check of invariant 8, in debug builds.
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
//! The table is fixed, without a lock; a sheaf that finds its window full is not followed. Sheaves
//! that are lost, to a fork child or for want of a barrier, keep their place: they never return.
//! Release builds have neither table nor steps.

use super::sheaf;
use crate::os::invariant::{Checked, Subject, assert_valid, invariant};
use crate::rseq::{Sheaf, is_dummy};

/// The calling thread owns `sheaf` from now on; not the dummy, nor null, which stand for none.
#[inline(always)]
pub(super) fn claim(sheaf: *mut Sheaf) {
    if cfg!(debug_assertions) && !sheaf.is_null() && !is_dummy(sheaf) {
        assert_valid(|| check(sheaf));
        invariant!(table::insert(sheaf as usize), "a sheaf has one owner", sheaf);
    }
}

/// The calling thread is about to give `sheaf` away.
#[inline(always)]
pub(super) fn release(sheaf: *mut Sheaf) {
    if cfg!(debug_assertions) && !sheaf.is_null() && !is_dummy(sheaf) {
        assert_valid(|| check(sheaf));
        table::remove(sheaf as usize);
    }
}

/// Checks what holds of a sheaf from its first object to its last, whether sequences work on it or
/// not. It must not be freed meanwhile.
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

    /// False if the sheaf is there already. Of two threads that insert it at once, at least one
    /// sees the other.
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

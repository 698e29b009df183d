//! Invariants of the stores of owners, and the functions that check them under the stores' locks.

use super::{OWNERS, Store};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use crate::rseq::{Owner, Slot, is_dummy};
use core::sync::atomic::Ordering::Relaxed;

/// Upper bound on the owners that a sampled walk visits.
const MAX_WALKED: usize = 64;

impl Store {
    /// Asserts, in debug builds, what holds of an owner that was just put into the store.
    #[inline(always)]
    pub(super) fn assert_pushed(&self, slot: *mut Slot) {
        assert_valid(|| check_free(slot));
        if is_sampled() {
            assert_valid(|| self.check(MAX_WALKED).map(drop));
        }
    }

    /// Checks up to `most` free owners; returns how many.
    pub(super) fn check(&self, most: usize) -> Checked<usize> {
        let subject = Subject::new("store of owners", self);
        subject.holds(self.fresh_left == 0 || !self.fresh.is_null(), "owners never used lie somewhere")?;
        let (mut seen, mut at) = (0, self.free);
        while !at.is_null() && seen < most {
            check_free(at)?;
            seen += 1;
            // SAFETY: free owners are valid slots for ever; the store's lock guards their links.
            at = unsafe { (*at).context().load(Relaxed).cast() };
        }
        Ok(seen + self.fresh_left)
    }
}

/// Checks a free owner.
pub(super) fn check_free(slot: *mut Slot) -> Checked {
    let subject = Subject::new("free owner", slot);
    subject.equal(slot as usize % align_of::<Slot>(), 0, "an owner is a slot")?;
    // SAFETY: free owners are valid slots for ever.
    let slot = unsafe { &*slot };
    let is_empty = is_dummy(slot.main.load(Relaxed)) && is_dummy(slot.spare.load(Relaxed));
    subject.holds(is_empty, "an owner of bare slabs has the dummy for each CPU")?;
    subject.equal(slot.id.load(Relaxed), u32::from(Owner::NONE.id()), "a free owner has no id")
}

/// Checks all stores, one after another; returns how many owners are free.
pub fn check() -> Checked<usize> {
    OWNERS.iter().try_fold(0, |free, store| Ok(free + store.lock().check(usize::MAX)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::malloc::owners::{free, take};

    #[test]
    fn a_free_owner_that_is_in_use_is_found() {
        crate::cache::start::ensure();
        let owner = take(20, 64 as *mut u8).expect("there is room");
        assert_eq!(check_free(owner.slots()).unwrap_err().invariant, "a free owner has no id");
        free(owner);
        check().expect("valid");
    }

    #[test]
    fn an_owner_with_a_sheaf_is_found() {
        let slot = Slot::holding(core::ptr::dangling_mut());
        let invalid = check_free((&raw const slot).cast_mut()).unwrap_err();
        assert_eq!(invalid.invariant, "an owner of bare slabs has the dummy for each CPU");
        let store = Store { free: core::ptr::null_mut(), fresh: core::ptr::null_mut(), fresh_left: 1 };
        assert_eq!(store.check(1).unwrap_err().invariant, "owners never used lie somewhere");
    }
}

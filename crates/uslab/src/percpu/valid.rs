//! Invariants of a cache's slots and barns, and functions that check them beside running threads.
//!
//! In rseq mode other CPUs change their slots at any time. A check can test only that each word of
//! a slot is the dummy or the address of a sheaf. In locked mode the check takes the slot's lock,
//! and so may look into its sheaves. Barns have a lock in both modes.

use super::access::Access;
use super::barn::Barn;
use super::cpu_cache::CpuCache;
use super::drain::BOTH;
use super::ownership;
use super::sheaf::Owned;
use crate::os::invariant::{Checked, Subject, assert_valid};
use crate::pages;
use crate::rseq::locked::LockedSlot;
use crate::rseq::{DUMMIES, Mode, Sheaf, Slot, Which, dummy_for_pushes, dummy_of, is_dummy, mode};
use crate::slab;
use core::sync::atomic::Ordering::Relaxed;

/// The totals of a walk of a cache.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Slots, of all CPUs.
    pub slots: usize,
    /// Sheaves that the walk looked into: those of barns and, in locked mode, of slots.
    pub sheaves: usize,
    /// The totals of its slabs.
    pub slabs: slab::Walked,
}

/// Checks the invariants of a slot's words that hold at any time.
pub(super) fn check_slot(slot: &Slot) -> Checked {
    let subject = Subject::new("slot", slot);
    for which in BOTH {
        let sheaf = slot.place(which).load(Relaxed);
        subject.holds(!sheaf.is_null(), "a slot has a sheaf or the dummy in each place")?;
        let lies_there = is_dummy(sheaf) || pages::page_of_any(sheaf.cast()).is_some();
        subject.holds(lies_there, "the sheaf of a slot lies in the arena")?;
        subject.equal(sheaf as usize % 64, 0, "the sheaf of a slot starts on a cache line")?;
    }
    Ok(())
}

/// Checks the invariants of a slot of a counted row that hold at any time.
fn check_counted(slot: &Slot) -> Checked {
    check_slot(slot)?;
    let subject = Subject::new("counted slot", slot);
    subject.holds(is_dummy(slot.spare.load(Relaxed)), "a counted slot has no spare")
}

/// Asserts, in debug builds, the invariants of this CPU's slot, after a change.
#[inline(always)]
pub(super) fn assert_slot(access: &impl Access) {
    assert_valid(|| check_slot(access.slot()));
}

/// Checks a dummy: a sheaf without room, which never holds an object.
fn check_without_room(sheaf: *mut Sheaf) -> Checked {
    let subject = Subject::new("dummy", sheaf);
    // SAFETY: dummies live for ever, and their words are atomics.
    let dummy = unsafe { &*sheaf };
    subject.equal(dummy.count.load(Relaxed), 0, "the dummy has no object")?;
    subject.equal(dummy.capacity.load(Relaxed), 0, "the dummy has no room")?;
    subject.equal(dummy.sentinel.load(Relaxed), 0, "the dummy yields NULL")
}

/// Checks the dummies that all caches share.
pub fn check_dummy() -> Checked {
    (0..DUMMIES).map(dummy_of).chain([dummy_for_pushes()]).try_for_each(check_without_room)
}

impl CpuCache {
    /// Checks slots, barns and slabs, each under its lock. The caller holds the registry's lock,
    /// which keeps the cache alive and forks away. The cost grows with what the cache owns.
    /// Allocates nothing.
    pub fn check(&self) -> Checked<Walked> {
        let mut walked = Walked { slots: self.cpus * self.nodes, ..Walked::default() };
        let subject = Subject::new("cache", self);
        // SAFETY: the first slot of a cache's owner is valid for ever.
        let first = unsafe { &*self.slabs().owner().slots() };
        subject.equal(
            first.id.load(Relaxed),
            u32::from(self.slabs().id()),
            "the owner has the cache's id",
        )?;
        let test = self.slabs().geometry().start_test();
        let words = [test.mask, test.reciprocal, test.last];
        for slot in self.storing_slots() {
            check_slot(slot)?;
            let subject = Subject::new("slot", slot);
            let has = slot.start_test.each_ref().map(|word| word.load(Relaxed));
            subject.holds(has == words, "each slot has the start test of its cache")?;
            let is_parked = slot.parked.iter().any(|place| !place.load(Relaxed).is_null());
            subject.holds(!is_parked, "a sheaf is parked only while a fork copies the memory")?;
            if mode() == Mode::Locked {
                walked.sheaves += self.check_locked(slot)?;
            }
        }
        for slot in self.counted_slots() {
            check_counted(slot)?;
        }
        if mode() == Mode::Locked {
            check_without_room(first.main.load(Relaxed))?;
        }
        for barn in self.barns() {
            walked.sheaves += barn.check(|sheaf| self.check_objects(sheaf))?;
        }
        walked.slabs = self.slabs().check()?;
        Ok(walked)
    }

    /// Checks what needs no walk of sheaves and slabs: the words of slots, and the counts and heads
    /// of barns and lists.
    pub fn check_heads(&self) -> Checked {
        self.storing_slots().try_for_each(check_slot)?;
        self.check_unused()?;
        self.counted_slots().iter().try_for_each(check_counted)?;
        self.barns().iter().try_for_each(Barn::check_heads)?;
        self.slabs().check_heads()
    }

    /// Checks that slots of CPUs on which no thread used the cache hold dummies. No thread may use
    /// the cache meanwhile.
    fn check_unused(&self) -> Checked {
        let has_sheaf =
            |slot: &&Slot| BOTH.into_iter().any(|which| !is_dummy(slot.place(which).load(Relaxed)));
        let in_use = self.used_slots().filter(has_sheaf).count();
        let all = self.all_slots().filter(has_sheaf).count();
        Subject::new("cache", self).equal(in_use, all, "a slot gets a sheaf after its CPU is marked")
    }

    /// Checks the sheaves of a slot under its lock; returns how many there are. Skips a slot whose
    /// lock stays taken.
    fn check_locked(&self, slot: &Slot) -> Checked<usize> {
        let Some(_locked) = LockedSlot::lock_soon(slot) else { return Ok(0) };
        let [main, spare] = BOTH.map(|which: Which| slot.place(which).load(Relaxed));
        let subject = Subject::new("slot", slot);
        subject.holds(main != spare || is_dummy(main), "a sheaf stands in one place of a slot")?;
        let mut sheaves = 0;
        for sheaf in [main, spare].into_iter().filter(|&sheaf| !is_dummy(sheaf)) {
            self.check_objects(sheaf)?;
            sheaves += 1;
        }
        Ok(sheaves)
    }

    /// Checks a sheaf that no other thread uses, and that its objects are this cache's.
    fn check_objects(&self, sheaf: *mut Sheaf) -> Checked {
        ownership::check(sheaf)?;
        Owned(sheaf).objects().iter().try_for_each(|&object| self.slabs().check_taken(object))
    }
}

//! Invariants of a barn, and the functions that check them under its lock.

use super::{Barn, ROOM, Stacks};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use crate::percpu::ownership;
use crate::percpu::sheaf::Owned;
use crate::rseq::{Sheaf, is_dummy};
use core::sync::atomic::Ordering::Relaxed;

impl Barn {
    /// Asserts, in debug builds, what holds after a change.
    #[inline(always)]
    pub(super) fn assert_valid(&self, stacks: &Stacks) {
        assert_valid(|| self.check_counts(stacks));
        if is_sampled() {
            assert_valid(|| stacks.check(&mut |_| Ok(())));
        }
    }

    fn check_counts(&self, stacks: &Stacks) -> Checked {
        let subject = Subject::new("barn", self);
        subject.at_most(stacks.fulls as usize, ROOM, "a barn has no more full sheaves than its room")?;
        subject.at_most(stacks.empties as usize, ROOM, "a barn has no more empty sheaves than its room")?;
        subject.at_most(
            stacks.least_fulls as usize,
            stacks.fulls as usize,
            "the fewest full ones are no more than there are",
        )?;
        subject.at_most(
            stacks.least_empties as usize,
            stacks.empties as usize,
            "the fewest empty ones are no more",
        )?;
        let shown = self.hint.fulls.load(Relaxed);
        subject.equal(shown, stacks.fulls as usize, "the number for readers without the lock is right")
    }

    /// Checks the counts.
    pub(in crate::percpu) fn check_heads(&self) -> Checked {
        self.check_counts(&self.stacks.lock())
    }

    /// Checks each sheaf, and each full one with `check_objects` too; returns the number of
    /// sheaves.
    pub(in crate::percpu) fn check(
        &self,
        mut check_objects: impl FnMut(*mut Sheaf) -> Checked,
    ) -> Checked<usize> {
        let stacks = self.stacks.lock();
        self.check_counts(&stacks)?;
        stacks.check(&mut check_objects)?;
        Ok(stacks.fulls().len() + stacks.empties().len())
    }
}

impl Stacks {
    fn check(&self, check_objects: &mut dyn FnMut(*mut Sheaf) -> Checked) -> Checked {
        let subject = Subject::new("barn", self);
        let (full, empty) = (self.fulls(), self.empties());
        for (at, &sheaf) in full.iter().chain(empty).enumerate() {
            subject.holds(!sheaf.is_null() && !is_dummy(sheaf), "a barn holds sheaves, and no dummies")?;
            let is_twice = full.iter().chain(empty).skip(at + 1).any(|&other| other == sheaf);
            subject.holds(!is_twice, "a sheaf stands in a barn once")?;
            ownership::check(sheaf)?;
            let sheaf_subject = Subject::new("sheaf", sheaf);
            if at < full.len() {
                sheaf_subject.at_least(Owned(sheaf).count(), 1, "a full sheaf has an object")?;
                check_objects(sheaf)?;
            } else {
                sheaf_subject.equal(Owned(sheaf).count(), 0, "an empty sheaf has no object")?;
            }
        }
        Ok(())
    }
}

//! Invariants of a CPU's page lists, and the functions that check them under the lists' lock.

use super::{CpuPages, Lists, ORDERS, ROOM, used};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use crate::pages::arena::{self, PageIndex};
use crate::pages::buddy;
use crate::rseq::Owner;
use core::sync::atomic::Ordering::Relaxed;

impl CpuPages {
    /// Asserts, in debug builds, what holds after a change of the lists.
    #[inline(always)]
    pub(super) fn assert_valid(&self, lists: &Lists) {
        assert_valid(|| self.check_counts(lists));
        if is_sampled() {
            assert_valid(|| self.check(lists).map(drop));
        }
    }

    fn check_counts(&self, lists: &Lists) -> Checked {
        let subject = Subject::new("CPU page lists", self);
        for (list, room) in lists.of_order.iter().zip(ROOM) {
            subject.at_most(list.count, room, "a list has no more runs than its room")?;
        }
        subject.equal(self.runs.load(Relaxed), lists.all(), "the number for those without the lock is right")
    }

    /// Checks every run; returns how many there are.
    pub(super) fn check(&self, lists: &Lists) -> Checked<usize> {
        self.check_counts(lists)?;
        for order in 0..ORDERS {
            let list = &lists.of_order[order];
            let runs = &list.runs[..usize::from(list.count)];
            for (at, &first) in runs.iter().enumerate() {
                let first = PageIndex(first);
                let subject = Subject::new("listed run", arena::address_of(first));
                subject.holds(arena::contains(first.plus((1 << order) - 1)), "a run lies in the arena")?;
                subject.equal(first.0 % (1 << order), 0, "a run lies on a multiple of its pages")?;
                let has_policy = arena::contains(first) && arena::home_of(first).has_policy();
                subject.holds(!has_policy, "a run of a policy's chunk is in no CPU's list")?;
                subject.holds(!runs[..at].contains(&first.0), "a run stands in a list once")?;
                for page in 0..1 << order {
                    let owner = arena::owner(first.plus(page)).slots();
                    subject.equal(owner, Owner::NONE.slots(), "a page in a CPU's list has no owner")?;
                }
                buddy::lock().check_used(first, 1 << order)?;
            }
        }
        Ok(lists.all())
    }
}

/// Checks the lists of all CPUs, one after another; returns how many runs they have.
pub(in crate::pages) fn check_all() -> Checked<usize> {
    used().try_fold(0, |runs, cpu| Ok(runs + cpu.check(&cpu.lists.lock())?))
}

#[cfg(test)]
mod tests {
    use super::super::{AtomicUsize, EMPTY, Lock, RUNS, Rank};
    use super::*;
    use crate::pages::{Fill, PAGE_BYTES, Temperature, alloc, boot, free};

    /// Returns the result of a check of lists that belong to no CPU. They hold `runs`, of two pages
    /// each, and claim to hold `counted` runs.
    fn found(runs: &[u32], counted: usize) -> Checked<usize> {
        let mut lists = EMPTY;
        lists.of_order[1].count = runs.len() as u8;
        lists.of_order[1].runs[..runs.len()].copy_from_slice(runs);
        let cpu = CpuPages { lists: Lock::new(Rank::CpuPages, EMPTY), runs: AtomicUsize::new(counted) };
        cpu.check(&lists)
    }

    fn invariant(runs: &[u32], counted: usize) -> &'static str {
        found(runs, counted).expect_err("the check finds it").invariant
    }

    #[test]
    fn lists_that_are_broken_are_found() {
        set_up!();
        let run = alloc(4, 2, Temperature::Cold, Fill::Sparse).expect("there is room");
        let first = run.first.0;
        assert_eq!(found(&[first, first + 2], 2), Ok(2));
        assert_eq!(invariant(&[first], 2), "the number for those without the lock is right");
        assert_eq!(invariant(&[first + 1], 1), "a run lies on a multiple of its pages");
        assert_eq!(invariant(&[first, first], 2), "a run stands in a list once");
        assert_eq!(invariant(&[u32::MAX - 1], 1), "a run lies in the arena");
        assert_eq!(invariant(&[0; RUNS / 2 + 1], RUNS / 2 + 1), "a list has no more runs than its room");
        arena::set_owner(run.first, 1, Owner::plain(15));
        assert_eq!(invariant(&[first], 1), "a page in a CPU's list has no owner");
        arena::set_owner(run.first, 1, Owner::NONE);
        free(run.first, 4, Temperature::Cold);
    }

    #[test]
    #[should_panic(expected = "an alignment is one that boot memory has")]
    fn an_alignment_that_boot_memory_has_not_ends_the_process() {
        set_up!();
        boot::alloc(8, 2 * PAGE_BYTES);
    }
}

//! The CPUs on which threads have used a cache, and the groups whose barns they have used: forks,
//! drains and idle flushes visit the slots and barns of these alone.
//!
//! A thread marks a CPU ([`Marks`]) before it may exchange a sheaf of that CPU's slots or take
//! their locks, and a group before it uses the group's barn. So a slot of another CPU holds
//! dummies, and a barn of another group is empty and its lock free.
//!
//! In rseq mode a thread may leave its CPU between mark and exchange. Then the exchange fails: its
//! sequence tests the CPU.

use super::CpuCache;
use super::barn::Barn;
use crate::os::Lock;
use crate::rseq::{Cpu, Slot};
use crate::sync::{Marks, Rank};

/// A thread that marks CPUs or groups of any cache holds this lock, and so does a fork.
static MARKS: Lock<()> = Lock::new(Rank::Marks, ());

/// Takes the lock for the duration of a fork.
pub(super) fn lock_for_fork() {
    MARKS.acquire_for_fork();
}

/// Undoes [`lock_for_fork`].
pub(super) fn unlock_after_fork(child: bool) {
    if child { MARKS.reset_in_child() } else { MARKS.release_after_fork() }
}

/// The marks of a cache.
pub(super) struct Used {
    cpus: Marks,
    groups: Marks,
}

impl Used {
    /// No marks on a machine of so many CPUs and groups.
    pub const fn none(cpus: usize, groups: usize) -> Used {
        Used { cpus: Marks::none(cpus), groups: Marks::none(groups) }
    }

    /// Whether threads may use the slots of this CPU.
    #[inline]
    pub fn has_cpu(&self, cpu: Cpu) -> bool {
        self.cpus.has(cpu.number())
    }

    /// Marks a CPU. May sleep until a fork has copied the memory.
    #[inline]
    pub fn add_cpu(&self, cpu: Cpu) {
        self.cpus.add(cpu.number(), &MARKS);
    }

    /// Marks a group, as [`Used::add_cpu`].
    #[inline]
    pub fn add_group(&self, group: usize) {
        self.groups.add(group, &MARKS);
    }
}

#[cfg(test)]
std::thread_local! {
    /// The slots that drains and idle flushes of this thread visited.
    pub(super) static VISITS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// Counts a visit of a drain or an idle flush to a slot, for tests.
#[inline]
pub(super) fn note_visit() {
    #[cfg(test)]
    VISITS.set(VISITS.get() + 1);
}

impl CpuCache {
    /// The slots, in all rows, of the CPUs on which threads have used the cache. Every other slot
    /// holds dummies, and keeps them while the caller holds the lock of [`lock_for_fork`].
    ///
    /// Without that lock another thread may mark a CPU meanwhile. The caller then misses a sheaf
    /// that it would have missed as well if it had read the slot a moment earlier.
    pub(super) fn used_slots(&self) -> impl Iterator<Item = &Slot> {
        self.used_storing_slots().chain(self.used_counted_slots())
    }

    /// How many slots a tick of the cache visits.
    pub fn count_used_slots(&self) -> usize {
        self.used_slots().count()
    }

    /// Those of [`CpuCache::used_slots`] in the cache's own rows and in the hidden ones.
    pub(super) fn used_storing_slots(&self) -> impl Iterator<Item = &Slot> {
        self.used_of_rows(self.slots()).chain(self.used_of_rows(self.hidden_slots()))
    }

    /// The slots, in rows of one for each CPU, of the CPUs in use.
    pub(super) fn used_of_rows<'a>(&self, rows: &'a [Slot]) -> impl Iterator<Item = &'a Slot> {
        rows.chunks(self.row_distance.max(1)).flat_map(|row| self.used.cpus.of(&row[..self.cpus]))
    }

    /// Those of [`CpuCache::used_slots`] in the counted row.
    pub(super) fn used_counted_slots(&self) -> impl Iterator<Item = &Slot> {
        self.used.cpus.of(self.counted_slots())
    }

    /// The barns of the groups whose barns threads have used. Every other barn is empty, and
    /// stays so while the caller holds the lock of [`lock_for_fork`].
    pub(super) fn used_barns(&self) -> impl Iterator<Item = &Barn> {
        self.used.groups.of(self.barns())
    }
}

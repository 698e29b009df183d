//! A CPU number that indexes tables only with a bounds check.
//!
//! Tables have an entry for each CPU that the kernel can report. CPUs share entries where there are
//! more than [`super::MAX_CPUS`] or an unknown number of them. So a CPU number may exceed a table's
//! length. [`Cpu`] hides the number, and each of its methods defines the result for one beyond the
//! end.

use super::detect::{Mode, mode};
use crate::os;

/// The CPU that a thread ran on when it asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu(usize);

impl Cpu {
    /// The CPU whose entry in tables has this index.
    pub fn of_index(index: usize) -> Cpu {
        Cpu(index)
    }

    /// The CPU that the calling thread runs on. The thread may migrate at any time, so the answer
    /// may be stale. In locked mode it may be the thread's hint (`hint`). A thread that the kernel
    /// refuses to register has a number beyond all tables.
    #[inline]
    pub fn current() -> Cpu {
        Cpu(match mode() {
            Mode::Rseq => registered(),
            Mode::Locked => super::fake::cpu().unwrap_or_else(super::hint::get),
        })
    }

    /// As [`Cpu::current`], but asks the kernel in locked mode, and makes the answer the thread's
    /// hint. That may be a system call.
    pub fn asked() -> Cpu {
        Cpu(match mode() {
            Mode::Rseq => registered(),
            Mode::Locked => super::fake::cpu().unwrap_or_else(super::hint::ask),
        })
    }

    /// The number. It may exceed the length of a table, since CPUs may exist that the table does
    /// not count.
    pub fn number(self) -> usize {
        self.0
    }

    /// This CPU's own entry of `table`; `None` beyond its end.
    #[inline]
    pub fn own<T>(self, table: &[T]) -> Option<&T> {
        table.get(self.0)
    }

    /// The entry of `table` for this CPU's number modulo the table's length, so CPUs may share it.
    /// `None` if the table is empty.
    #[inline]
    pub fn shared<T>(self, table: &[T]) -> Option<&T> {
        // Most tables have an entry for each CPU, and a division takes longer than a step.
        self.own(table).or_else(|| table.get(self.0.checked_rem(table.len())?))
    }

    /// The next number, even if no such CPU exists.
    #[inline]
    pub fn next(self) -> Cpu {
        Cpu(self.0.wrapping_add(1))
    }

    /// The CPU's NUMA node; 0 if unknown.
    #[inline]
    pub fn node(self) -> usize {
        os::cpu::node_of(self.0)
    }

    /// The CPU's group: see [`os::sharing`]; 0 if unknown.
    #[inline]
    pub fn group(self) -> usize {
        os::sharing::group_of(self.0)
    }
}

/// The CPU of the calling thread, in rseq mode. Registers the thread if the library does that and
/// has not yet. A number beyond all tables if the kernel refuses.
#[inline]
fn registered() -> usize {
    usize::try_from(super::arch::area_cpu()).ok().or_else(super::own::register).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_beyond_the_table_has_no_entry_of_its_own_and_shares_one() {
        let table = [10, 11, 12];
        assert_eq!([0, 2, 3, usize::MAX].map(|cpu| Cpu(cpu).own(&table)), [Some(&10), Some(&12), None, None]);
        assert_eq!([0, 2, 3, 1000].map(|cpu| Cpu(cpu).shared(&table)), [10, 12, 10, 11].each_ref().map(Some));
        assert_eq!(Cpu(usize::MAX).next().shared(&table), Some(&10));
        assert_eq!(Cpu(7).shared::<u8>(&[]), None);
        assert_eq!(Cpu(usize::MAX).node(), 0);
    }
}

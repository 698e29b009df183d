//! The number of a CPU, which leads into tables only by a check.
//!
//! Tables have an entry for each CPU that the kernel can report, and are shared where those are
//! more than [`super::MAX_CPUS`] or unknown. So a number that a thread is told may lie beyond a
//! table's end. It is never an index by itself: [`Cpu`] keeps it, and each way to an entry says
//! what becomes of one beyond.

use super::detect::{Mode, mode};
use crate::os;

/// A CPU that the thread was on a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu(usize);

impl Cpu {
    /// The CPU that the thread runs on; stale the moment it is returned.
    #[inline]
    pub fn current() -> Cpu {
        Cpu(match mode() {
            Mode::Rseq => super::arch::area_cpu() as usize,
            Mode::Locked => super::fake::cpu().unwrap_or_else(os::cpu::current),
        })
    }

    /// This CPU's own entry of `table`; `None` beyond its end.
    #[inline]
    pub fn own<T>(self, table: &[T]) -> Option<&T> {
        table.get(self.0)
    }

    /// The entry of `table` that this CPU uses, perhaps with others: CPUs beyond its end begin
    /// again at its start. `None` of an empty table.
    #[inline]
    pub fn shared<T>(self, table: &[T]) -> Option<&T> {
        table.get(self.0.checked_rem(table.len())?)
    }

    /// The CPU with the next number, if there is one.
    #[inline]
    pub fn next(self) -> Cpu {
        Cpu(self.0.wrapping_add(1))
    }

    /// Its NUMA node; 0 where that is unknown.
    #[inline]
    pub fn node(self) -> usize {
        os::cpu::node_of(self.0)
    }
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

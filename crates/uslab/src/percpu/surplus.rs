//! Surplus: which barns of a node have sheaves for the CPUs of other groups.
//!
//! ```text
//!   full sheaves of a barn   0 ── ¼ ──────────────── ¾ ── 1 of its room
//!                            ◀─ bit off      bit on ─▶
//! ```
//!
//! A CPU whose barn has no full sheaf takes one of a barn with a surplus before it goes to the
//! slabs. It reads one word for that, which changes only when a barn becomes rich or poor. Were it
//! to read how many sheaves each barn has, every exchange with a barn would take a line away from
//! all CPUs of the node.
//!
//! The bits are hints: a drain leaves them, and the next thread that finds such a barn poor turns
//! its bit off.

use super::CpuCache;
use super::access::Home;
use super::barn::Barn;
use crate::os::sharing;
use crate::rseq::Sheaf;
use crate::sync::CachePadded;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A bit for each of the first 64 groups of a node.
pub(super) type Surplus = CachePadded<AtomicU64>;

/// Bytes of the words, which stand behind the barns: none where each node has one barn.
pub(super) const fn bytes(groups: usize, nodes: usize) -> usize {
    if groups > nodes { nodes * size_of::<Surplus>() } else { 0 }
}

/// Writes the words.
///
/// # Safety
/// `start` must point to [`bytes`] bytes, aligned to 64, that belong to the caller.
pub(super) unsafe fn init(start: *mut Surplus, groups: usize, nodes: usize) {
    for node in 0..bytes(groups, nodes) / size_of::<Surplus>() {
        // SAFETY: the caller's promise.
        unsafe { start.add(node).write(CachePadded(AtomicU64::new(0))) };
    }
}

/// The bit of a group among those of its node, which begin at `first`; 0 for one beyond the 64th.
fn bit_of(group: usize, first: usize) -> u64 {
    group.checked_sub(first).and_then(|at| 1u64.checked_shl(at as u32)).unwrap_or(0)
}

impl CpuCache {
    /// The barn of a group, marked as used. May sleep until a fork has copied the memory.
    pub(super) fn barn(&self, group: usize) -> &Barn {
        let barns = self.barns();
        let group = if group < barns.len() { group } else { 0 };
        self.used.add_group(group);
        &barns[group]
    }

    /// Takes a full sheaf of the barn of the CPU's group, or of a richer one of its node. In
    /// exchange it puts `empty` (null for none) there, as `Barn::take_full` does.
    pub(super) fn take_full(&self, empty: &mut *mut Sheaf, home: Home) -> Option<*mut Sheaf> {
        let own = self.barn(home.group).take_full(empty);
        if own.is_some() {
            self.note_stock(home.node, home.group);
            return own;
        }
        let group = self.rich_neighbour(home)?;
        let taken = self.barn(group).take_full(empty);
        self.note_stock(home.node, group);
        taken
    }

    /// Another group of the node whose barn has a surplus: the next one behind the CPU's own.
    pub(super) fn rich_neighbour(&self, home: Home) -> Option<usize> {
        let surplus = self.surplus().get(home.node)?.load(Relaxed);
        let first = sharing::groups_of_node(home.node).start;
        let own = home.group.checked_sub(first)? as u32 % 64;
        let others = surplus & !(1 << own);
        (others != 0).then(|| {
            let distance = others.rotate_right(own).trailing_zeros();
            first + ((own + distance) % 64) as usize
        })
    }

    /// Turns the bit of a group on or off, if its barn has become rich or poor.
    pub(super) fn note_stock(&self, node: usize, group: usize) {
        let Some(surplus) = self.surplus().get(node) else { return };
        let bit = bit_of(group, sharing::groups_of_node(node).start);
        let barn = self.barn(group);
        let (fulls, room) = (barn.fulls(), barn.room(self.sheaf_bytes()));
        let is_on = surplus.load(Relaxed) & bit != 0;
        if is_on && 4 * fulls <= room {
            surplus.fetch_and(!bit, Relaxed);
        } else if !is_on && 4 * fulls >= 3 * room && bit != 0 {
            surplus.fetch_or(bit, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_bit_among_those_of_its_node() {
        assert_eq!([4, 5, 67, 68, 3].map(|group| bit_of(group, 4)), [1, 2, 1 << 63, 0, 0]);
    }

    #[test]
    fn words_exist_only_where_a_node_has_several_barns() {
        assert_eq!([bytes(1, 1), bytes(2, 2), bytes(8, 1), bytes(8, 2)], [0, 0, 64, 128]);
    }
}

//! A surplus: which groups of CPUs of a node have stock for the others.
//!
//! ```text
//!   bit g of a node's word:   off ── stock grows past a mark ──▶ on
//!                             off ◀── stock falls to a lower one ── on
//! ```
//!
//! A CPU whose group has nothing finds a richer group by one word, which changes only when a group
//! becomes rich or poor. If it read the stock of each group instead, every change of that stock
//! would take a cache line away from all CPUs of the node.

use super::sharing;
use crate::sync::CachePadded;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A word for each node, with a bit for each of the first 64 groups of it. The bits are hints.
#[repr(transparent)]
pub struct Surplus(CachePadded<AtomicU64>);

impl Surplus {
    /// Bytes of the words of `nodes` nodes: none where each node has one group.
    pub const fn bytes(groups: usize, nodes: usize) -> usize {
        if groups > nodes { nodes * size_of::<Surplus>() } else { 0 }
    }

    /// Writes the words: no group has a surplus.
    ///
    /// # Safety
    /// `start` must point to [`Surplus::bytes`] bytes, aligned to 64, that belong to the caller.
    pub unsafe fn init(start: *mut Surplus, groups: usize, nodes: usize) {
        for node in 0..Surplus::bytes(groups, nodes) / size_of::<Surplus>() {
            // SAFETY: the caller's promise.
            unsafe { start.add(node).write(Surplus(CachePadded(AtomicU64::new(0)))) };
        }
    }

    /// Another group of `node`, whose word this is, that has a surplus: the next one behind `own`.
    pub fn neighbour(&self, node: usize, own: usize) -> Option<usize> {
        let first = sharing::groups_of_node(node).start;
        let own = own.checked_sub(first)? as u32 % 64;
        let others = self.0.load(Relaxed) & !(1 << own);
        (others != 0).then(|| {
            let distance = others.rotate_right(own).trailing_zeros();
            first + ((own + distance) % 64) as usize
        })
    }

    /// Whether the bit of `group` is on.
    pub fn has(&self, node: usize, group: usize) -> bool {
        self.0.load(Relaxed) & bit_of(group, sharing::groups_of_node(node).start) != 0
    }

    /// Turns the bit of `group` on or off.
    pub fn set(&self, node: usize, group: usize, is_on: bool) {
        let bit = bit_of(group, sharing::groups_of_node(node).start);
        if bit == 0 {
            return;
        }
        if is_on {
            self.0.fetch_or(bit, Relaxed)
        } else {
            self.0.fetch_and(!bit, Relaxed)
        };
    }
}

/// The bit of a group among those of its node, which begin at `first`; 0 for one beyond the 64th.
fn bit_of(group: usize, first: usize) -> u64 {
    group.checked_sub(first).and_then(|at| 1u64.checked_shl(at as u32)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_bit_among_those_of_its_node() {
        assert_eq!([4, 5, 67, 68, 3].map(|group| bit_of(group, 4)), [1, 2, 1 << 63, 0, 0]);
    }

    #[test]
    fn words_exist_only_where_a_node_has_several_groups() {
        assert_eq!([(1, 1), (2, 2), (8, 1), (8, 2)].map(|(g, n)| Surplus::bytes(g, n)), [0, 0, 64, 128]);
    }
}

//! Free objects of a richer group: a CPU whose lists have none takes from lists of its node with a
//! surplus before it makes a slab.
//!
//! ```text
//!   slabs with free objects in the lists of a group    0 ── 1 ──── 2 ── …
//!                                                    bit off ─▶│◀─ bit on
//! ```
//!
//! So each group keeps a slab to itself, and CPUs of different last-level caches seldom meet at one
//! lock. In a small process, and where memory is used up, a take serves from the lists of every
//! group of its node instead.

use super::lists::Lists;
use super::pool::Slabs;
use crate::os::sharing;
use crate::os::surplus::Surplus;
use core::ops::Range;

/// Slabs with free objects from which on a group serves others.
const RICH: u32 = 2;

impl Slabs {
    /// The words, one for each node; none where each node has one group.
    fn surplus(&self) -> &[Surplus] {
        let count = if self.groups().len() > self.node_count { self.node_count } else { 0 };
        // SAFETY: `new` wrote as many behind the groups; they live as long as the slabs.
        unsafe { core::slice::from_raw_parts(self.behind_groups(), count) }
    }

    /// Another group of the same node whose lists have a surplus.
    pub(super) fn rich_neighbour(&self, group: usize) -> Option<usize> {
        let node = self.node_of(group);
        let neighbour = self.surplus().get(node)?.neighbour(node, group)?;
        (neighbour < self.groups().len()).then_some(neighbour)
    }

    /// The groups of the node of `group`.
    pub(super) fn groups_beside(&self, group: usize) -> Range<usize> {
        if self.surplus().is_empty() {
            return group..group + 1;
        }
        let all = sharing::groups_of_node(self.node_of(group));
        all.start..all.end.min(self.groups().len())
    }

    /// The other groups of the same node that seem to have free objects.
    pub(super) fn neighbours(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        self.groups_beside(group).filter(move |&other| other != group && self.groups()[other].has_free())
    }

    /// Turns the bit of a group on or off, if its lists have become rich or poor.
    #[inline]
    pub(super) fn note_surplus(&self, lists: &mut Lists, group: usize) {
        let node = self.node_of(group);
        let Some(surplus) = self.surplus().get(node) else { return };
        let slabs = lists.with_free_objects();
        self.groups()[group].set_has_free(slabs > 0);
        let is_rich = slabs >= RICH;
        if is_rich != lists.is_rich {
            lists.is_rich = is_rich;
            surplus.set(node, group, is_rich);
        }
    }
}

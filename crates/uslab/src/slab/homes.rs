//! The home of a slab: the node of the group in whose lists it stands, and how a thread finds it.
//!
//! ```text
//!   page map ──▶ owner of node 0 │ owner of node 1 │ …     one distance apart, each with slots
//! ```
//!
//! If the layer above has slots for each node, the page map names the slots of the slab's node. So
//! a free finds the sheaves for that node by the owner alone. Otherwise a cache has one owner, and
//! the slab's descriptor names the group.

use super::one::Slab;
use super::pool::Slabs;
use crate::os::{self, sharing};
use crate::pages::{self, PageIndex};
use crate::rseq::{Cpu, Owner};
use core::sync::atomic::Ordering::Relaxed;

impl Slabs {
    /// Gives the slabs of each node an owner of their own, `bytes` apart; with 0 all nodes share
    /// one owner.
    ///
    /// # Safety
    /// The slots of the other nodes' owners must lie behind those of the first, each `bytes`
    /// further on, and be as [`Owner::of_slots`] requires. There must be no slab yet.
    pub unsafe fn with_owners_apart(mut self, bytes: usize) -> Slabs {
        self.owner_distance = bytes;
        self
    }

    /// The owner that the page map has for the pages of these slabs; the first node's, if each node
    /// has one.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether each node has an owner of its own, so that a page's owner shows the slab's node.
    pub fn has_owner_of_each_node(&self) -> bool {
        self.owner_distance != 0
    }

    /// The owner of the slabs of `node`.
    pub(super) fn owner_on(&self, node: usize) -> Owner {
        // SAFETY: the promise of `with_owners_apart`.
        unsafe { Owner::of_slots(self.owner.slots().byte_add(node * self.owner_distance)) }
    }

    /// The group whose lists serve the CPU that the thread runs on with objects of `node`.
    pub(super) fn group_for(&self, node: usize) -> usize {
        let node = if node < self.node_count { node } else { 0 };
        let groups = self.groups().len();
        if groups == self.node_count {
            return node;
        }
        let group = sharing::group_for(Cpu::current().number(), node);
        if group < groups { group } else { 0 }
    }

    /// The node of a group.
    pub(super) fn node_of(&self, group: usize) -> usize {
        if self.groups().len() == self.node_count { group } else { sharing::node_of_group(group) }
    }

    /// Whether `page` belongs to one of these slabs.
    #[inline]
    pub(super) fn owns(&self, page: PageIndex) -> bool {
        self.is_owned_by(pages::owner(page))
    }

    /// Whether `owner` is one of these slabs'.
    #[inline]
    pub fn is_owned_by(&self, owner: Owner) -> bool {
        owner == self.owner || (self.owner_distance != 0 && self.is_owned_by_other(owner))
    }

    /// [`Slabs::is_owned_by`] for slabs with an owner for each node. `owner` must come from the
    /// page map.
    #[inline]
    pub fn is_owned_by_a_row(&self, owner: Owner) -> bool {
        // Every owner between the first one's slots and the last one's end is one of these.
        let distance = owner.slots().addr().wrapping_sub(self.owner.slots().addr());
        distance < self.owner_distance * self.node_count
    }

    fn is_owned_by_other(&self, owner: Owner) -> bool {
        let distance = owner.slots().addr().wrapping_sub(self.owner.slots().addr());
        distance.is_multiple_of(self.owner_distance) && distance / self.owner_distance < self.node_count
    }

    /// The home of `object`: the node of its slab. `None` for a pointer into none of these slabs.
    #[inline]
    pub fn home_of(&self, object: *const u8) -> Option<usize> {
        self.slab_of(object).map(|slab| self.node_of(slab.group())).filter(|&node| node < self.node_count)
    }

    /// Counts a slab that was made (`change` is 1) or is released (-1) for the node of its memory,
    /// which stays the same meanwhile. On a machine of one node nothing is counted.
    pub(super) fn count_on_node(&self, slab: Slab, change: i32) {
        if os::cpu::has_nodes()
            && let Some(node) = pages::home_of(slab.0).node()
            && let Some(count) = self.record().node_slabs.get(node)
        {
            count.fetch_add(change, Relaxed);
        }
    }

    /// Returns the home of the first of `objects`, and how many from the first on share it. On a
    /// machine of one node it looks at none.
    #[inline]
    pub fn home_of_first(&self, objects: &[*mut u8]) -> (usize, usize) {
        if self.node_count == 1 {
            return (0, objects.len());
        }
        // A pointer to no object of these slabs gets node 0: its free reports it there.
        let home = |&object: &*mut u8| self.home_of(object).unwrap_or(0);
        let first = objects.first().map_or(0, home);
        (first, objects.iter().take_while(|object| home(object) == first).count())
    }
}

//! The home of a slab: the node whose lists it stands in, and the owner that tells it.
//!
//! ```text
//!   page map ──▶ owner of node 0 │ owner of node 1 │ …     one distance apart, each with slots
//! ```
//!
//! Where the layer above has slots for each node, the page map names those of the node of a slab.
//! So a free finds, by the owner alone, the sheaves for that node. Elsewhere a cache has one owner,
//! and the slab's descriptor tells the node.

use super::pool::Slabs;
use crate::pages::{self, PageIndex};
use crate::rseq::Owner;

impl Slabs {
    /// Gives the slabs of each node an owner of their own, so many bytes apart; 0: all have one.
    ///
    /// # Safety
    /// Behind the first owner's slots there must be, that far apart, the slots of each other
    /// node's, as [`Owner::of_slots`] asks for. There must be no slab yet.
    pub unsafe fn with_owners_apart(mut self, bytes: usize) -> Slabs {
        self.owner_distance = bytes;
        self
    }

    /// The owner that the page map has for the pages of these slabs; the first node's, if each node
    /// has one.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether the owner of a page tells the node of its slab.
    pub fn has_owner_of_each_node(&self) -> bool {
        self.owner_distance != 0
    }

    /// The owner of the slabs of `node`.
    pub(super) fn owner_on(&self, node: usize) -> Owner {
        // SAFETY: the promise of `with_owners_apart`.
        unsafe { Owner::of_slots(self.owner.slots().byte_add(node * self.owner_distance)) }
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

    /// Whether `owner` is one of these slabs', which have an owner of each node. `owner` must come
    /// from the page map.
    #[inline]
    pub fn is_owned_by_a_row(&self, owner: Owner) -> bool {
        // Whatever owner lies between the first one's slots and the last one's end is one of them.
        let distance = owner.slots().addr().wrapping_sub(self.owner.slots().addr());
        distance < self.owner_distance * self.nodes().len()
    }

    fn is_owned_by_other(&self, owner: Owner) -> bool {
        let distance = owner.slots().addr().wrapping_sub(self.owner.slots().addr());
        distance.is_multiple_of(self.owner_distance) && distance / self.owner_distance < self.nodes().len()
    }

    /// The home of `object`: the node of its slab. `None` for a pointer into no slab of these.
    #[inline]
    pub fn home_of(&self, object: *const u8) -> Option<usize> {
        self.slab_of(object).map(|slab| slab.node()).filter(|&node| node < self.nodes().len())
    }

    /// How many of `objects`, from the first on, have the home of the first; and that home. On a
    /// machine of one node it looks at none.
    #[inline]
    pub fn home_of_first(&self, objects: &[*mut u8]) -> (usize, usize) {
        if self.nodes().len() == 1 {
            return (0, objects.len());
        }
        // The slabs report a pointer that is no object of theirs, whatever its home is said to be.
        let home = |&object: &*mut u8| self.home_of(object).unwrap_or(0);
        let first = objects.first().map_or(0, home);
        (first, objects.iter().take_while(|object| home(object) == first).count())
    }
}

//! Which chunk serves a run of up to a chunk, and which wholly free chunks are purged.
//!
//! A run of 9 to 511 pages without alignment takes the lowest extent that fits: free pages in a row
//! that all have memory. If there is none, and for other runs, the fullest chunk with an aligned
//! block serves. Of wholly free chunks the lowest serves, and a purge starts from the highest. So
//! neighbouring chunks stay free for long runs, and the chunks that serve next keep their memory.

use super::lengths::{Class, Length};
use super::nodes::{self, NodeLists};
use super::whole::Index;
use super::{Buddy, EMPTY_LEVEL, LEVELS, ORDERS, PINNED_LEVEL};
use crate::os::corruption::verify;
use crate::pages::arena;
use crate::pages::chunk::{Chunk, MIN_EXTENT_PAGES, NONE};
use crate::pages::policy::Locked;
use crate::pages::{CHUNK_PAGES, home::Home};

/// Upper bound of the chunks that a search for one looks at.
const MAX_TRIED: usize = 64;
/// A search for an extent reads the chunks below so many bounds of lengths: after a purge, many
/// bounds are too high.
const MAX_BOUNDS: usize = 512;
/// Upper bound of the chunks that a purge tries for one that the system does not refuse.
const MAX_PURGE_LOOKS: usize = 8;

/// A listed chunk. The caller holds the buddy's lock, and changes no chunk meanwhile.
fn at<'a>(index: usize) -> &'a Chunk {
    // SAFETY: indices and links name committed chunks, and the caller holds the lock.
    unsafe { &*arena::chunk(index) }
}

impl Buddy {
    /// The fullest chunk of `home` in use with room for a run of `order`; then the lowest wholly
    /// free chunk that is mapped, with memory of that home, or else without memory. Then any chunk
    /// of `home` with room, unmapped ones included, and last one of any home without memory.
    pub(super) fn fullest_with(&self, order: u32, home: Home) -> Option<usize> {
        let own = self.lists_of(home);
        let index = own
            .fullest_with(order, PINNED_LEVEL)
            .or_else(|| self.lowest_whole(home))
            .or_else(|| own.fullest_with(order, LEVELS))
            .or_else(|| self.all_lists().find_map(NodeLists::untouched))?;
        self.whole_index(index)
    }

    /// The lowest extent for a run that needs no alignment, in a chunk of `home` that is in use:
    /// the chunk, and the first page in it. `None` for runs with an alignment, such as slabs of
    /// several objects, for runs of up to [`MIN_EXTENT_PAGES`] pages, and for whole chunks.
    pub(super) fn lowest_extent(&self, pages: usize, align_order: u32, home: Home) -> Option<(usize, usize)> {
        if align_order > 0 || pages <= MIN_EXTENT_PAGES || pages >= CHUNK_PAGES {
            return None;
        }
        let is_own = |&index: &usize| self.share_lists(arena::home_of_chunk(index), home);
        let find = |class| {
            let mut chunks = Length::Extent.with(class, MAX_BOUNDS).take(MAX_TRIED).filter(is_own);
            chunks.find_map(|index| Some((index, at(index).extent(pages)?)))
        };
        // Extents of the first class may be a page too short. All of the next are long enough.
        let class = Class::of_extent(pages);
        let (index, first) = find(class).or_else(|| find(class.next()))?;
        Some((self.whole_index(index)?, first))
    }

    /// `index`, if it is that of a committed chunk whose count and links are consistent.
    fn whole_index(&self, index: usize) -> Option<usize> {
        let is_listed = index < arena::chunks_committed() && self.is_chunk_whole(index);
        verify(is_listed, "buddy", self, "a list leads to a chunk within the bound").then_some(index)
    }

    /// The fullest chunk of any node with room for a run of `order`: memory of another node is
    /// better than none. `None` for a home with a policy, which takes no other memory.
    pub(super) fn fullest_anywhere(&self, order: u32, home: Home) -> Option<usize> {
        if home.has_policy() {
            return None;
        }
        self.whole_index(self.lists.iter().find_map(|lists| lists.fullest_with(order, LEVELS))?)
    }

    /// Returns the wholly free chunk to purge next: the highest one with dirty pages. With `unmap`,
    /// also a clean one of [`EMPTY_LEVEL`]. With [`Locked::Stay`] it skips chunks that the system
    /// refused to purge.
    pub fn next_whole(&self, locked: Locked, unmap: bool) -> Option<usize> {
        let previous = |&index: &usize| Index::Backed.previous(index);
        let backed = core::iter::successors(Index::Backed.previous(arena::chunks_committed()), previous);
        let dirty = backed.take(MAX_PURGE_LOOKS).find(|&index| self.is_purgeable(at(index), locked));
        dirty.or_else(|| self.clean_whole().filter(|_| unmap))
    }

    /// Unmaps those of `count` chunks from `first` on that have no memory: addresses that an
    /// allocation took in vain, and that the limit would count.
    pub(super) fn unmap_clean(&mut self, first: usize, count: usize) {
        for index in first..first + count {
            let chunk = at(index);
            let is_clean = chunk.is_all_free() && chunk.dirty_pages == 0 && !chunk.is_unmapped;
            // SAFETY: all pages of the chunk are free, and stay so under the lock; it is mapped.
            if is_clean && self.may_be_unmapped(index) && unsafe { arena::unmap_memory(index, 1) } {
                self.with_chunk(index, |chunk| note_unmapped(index, chunk));
                arena::note_unmapped(1);
            }
        }
    }

    /// Whether chunk `index` may be unmapped when all of it is free.
    pub fn may_be_unmapped(&self, index: usize) -> bool {
        arena::may_be_unmapped(index) && !self.is_collapsing(index)
    }

    /// The lowest wholly free chunk with memory of `home`, or else without memory and mapped.
    fn lowest_whole(&self, home: Home) -> Option<usize> {
        let committed = arena::chunks_committed();
        let lowest = |index: Index| index.all(0, committed).take(MAX_TRIED);
        let is_own = |&index: &usize| self.share_lists(arena::home_of_chunk(index), home);
        let backed = lowest(Index::Backed).find(is_own);
        let is_clean = |&index: &usize| nodes::is_untouched(at(index)) && !at(index).is_unmapped;
        backed.or_else(|| lowest(Index::Whole).find(is_clean))
    }

    /// A wholly free chunk without memory that could be unmapped.
    fn clean_whole(&self) -> Option<usize> {
        let chunk = |index: u32| (index != NONE).then_some(index);
        self.all_lists().find_map(|lists| {
            let first = chunk(lists.heads[EMPTY_LEVEL][ORDERS - 1]);
            core::iter::successors(first, |&index| chunk(at(index as usize).next))
                .map(|index| index as usize)
                .find(|&index| at(index).dirty_pages == 0 && self.may_be_unmapped(index))
        })
    }
}

/// Records that a chunk is unmapped, and its policy gone with the mapping.
pub(in crate::pages) fn note_unmapped(index: usize, chunk: &mut Chunk) {
    chunk.is_unmapped = true;
    arena::set_home_of_chunk(index, Home::here());
}

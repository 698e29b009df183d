//! Sparse runs: runs of which only some pages are charged. Each chunk counts the uncharged pages.

use super::{Buddy, arena};
use crate::os::corruption::verify;
use crate::os::invariant::invariant;
use crate::pages::arena::PageIndex;
use crate::pages::home::Home;
use crate::pages::{CHUNK_PAGES, Fill};

impl Buddy {
    /// See [`super::super::sparse::alloc_sparse`].
    pub fn alloc_sparse(
        &mut self,
        order: u32,
        needed: u64,
        fill: Fill,
        home: Home,
    ) -> Option<(PageIndex, u64)> {
        invariant!(order <= 6, "a mask has a bit for each page of a sparse run", order);
        if !self.is_possible(needed.count_ones() as usize, order) {
            return None;
        }
        let pages = 1 << order;
        let run = self.alloc_in_chunk(pages, order, fill, home)?;
        let (index, first) = (run.first.0 as usize / CHUNK_PAGES, run.first.0 as usize % CHUNK_PAGES);
        // SAFETY: the chunk has a page in use, so it is committed, and `&mut self` is the lock.
        let charged = needed | unsafe { (*arena::chunk(index)).memory_mask(first, pages) };
        self.note_taken(run, charged.count_ones() as usize).then(|| {
            self.note_uncharged(run.first, (pages - charged.count_ones() as usize) as isize);
            (run.first, charged)
        })
    }

    /// See [`super::super::sparse::charge`].
    pub fn charge_of(&mut self, first: PageIndex, pages: usize) -> bool {
        let is_charged = self.charge(pages);
        if is_charged {
            self.note_uncharged(first, -(pages as isize));
        }
        is_charged
    }

    /// See [`super::super::sparse::uncharge`].
    pub fn uncharge_of(&mut self, first: PageIndex, pages: usize) {
        self.uncharge(pages);
        self.note_uncharged(first, pages as isize);
    }

    /// So many more pages of the chunk are not charged. A purge notes it after the pages' bits are
    /// cleared, and a thread that charges them again may come first: the sum is then below zero.
    fn note_uncharged(&mut self, first: PageIndex, more: isize) {
        // SAFETY: the run is the caller's, so its chunk is committed; `&mut self` is the lock.
        let pages = unsafe { &mut (*arena::chunk(first.0 as usize / CHUNK_PAGES)).uncharged_pages };
        *pages = pages.wrapping_add(more as i16);
        invariant!(
            usize::from(pages.unsigned_abs()) <= CHUNK_PAGES,
            "uncharged pages lie in the chunk",
            i32::from(*pages)
        );
    }

    /// See [`super::super::sparse::free_sparse`]. Returns the dirty pages that there are now.
    pub fn free_sparse(&mut self, first: PageIndex, order: u32, charged: u64) -> usize {
        let (index, at) = (first.0 as usize / CHUNK_PAGES, first.0 as usize % CHUNK_PAGES);
        let is_taken_back = self.with_chunk(index, |chunk| chunk.free_sparse(at, 1 << order, charged));
        let address = arena::address_of(first);
        if !verify(is_taken_back, "run", address, "pages that are freed were in use") {
            return self.dirty_pages;
        }
        self.leave_policy(index);
        self.operations = self.operations.saturating_add(1);
        self.note_uncharged(first, charged.count_ones() as isize - (1 << order));
        self.uncharge(charged.count_ones() as usize);
        self.dirty_pages
    }
}

//! Huge pages of chunks: which chunk gets one, and which one is split first.
//!
//! A chunk gets its huge page at the first touch: the kernel then backs all 512 pages at once, and
//! a program that fills them saves 511 page faults and most misses of the TLB. All pages of such a
//! chunk count as held.
//!
//! A purge of part of a chunk splits its huge page for good. So a purge takes other pages first. As
//! long as memory is not wanted, it leaves free memory in such chunks, up to a fortieth of what the
//! process holds, and does not split a huge page for a single page inside a slab.

use super::whole::Index;
use super::{Buddy, arena};
use crate::os;
use crate::os::config::HugePages;
use crate::pages::arena::PageIndex;
use crate::pages::chunk::{Advice, Chunk};
use crate::pages::policy::Locked;
use crate::pages::{CHUNK_BYTES, CHUNK_PAGES, Fill, bound, huge};

/// Upper bound on the rows of chunks that have advice of their own, each of which may cost two of
/// the 65 530 mappings that Linux gives a process: 8192.
pub(super) const MAX_ADVISED_ROWS: usize = 8192;

/// Free pages of a slab of 32 pages that do not cost its chunk the huge page.
const MAX_KEPT_OF_SLAB: usize = 1;
/// Upper bound of the chunks of which a purge splits the emptiest.
const MAX_COMPARED: usize = 64;

impl Buddy {
    /// Chooses what backs a wholly free chunk without memory, of which a run is about to be taken.
    /// The chunk stands in no list.
    pub(super) fn choose_backing(&mut self, index: usize, fill: Fill) {
        let mut is_huge = self.wants_huge(fill);
        // SAFETY: committed, and `&mut self` is the lock.
        let before = unsafe { (*arena::chunk(index)).advice };
        let is_advised = match before {
            Advice::Small | Advice::Revoked => !is_huge,
            Advice::Huge => is_huge,
            Advice::Unknown => false,
        };
        if !is_advised {
            let start = arena::address_of_chunk(index);
            // SAFETY: the chunk is mapped, and ours.
            let advise = || unsafe { os::huge::advise(start, CHUNK_BYTES, is_huge) };
            if self.may_advise(index, is_huge) && advise() {
                self.set_advice(index, if is_huge { Advice::Huge } else { Advice::Small });
            } else if before == Advice::Huge {
                // The kernel keeps its advice, and backs the chunk with a huge page.
                is_huge = true;
            } else {
                return;
            }
        }
        if is_huge {
            // SAFETY: as above; no other reference to the chunk lives.
            unsafe { (*arena::chunk(index)).back_with_huge() };
            self.policy.note_fresh(CHUNK_PAGES);
        } else if fill == Fill::Sparse {
            self.probes.note_small(index);
        }
    }

    /// Whether a chunk that is about to serve a run of this `fill` should get a huge page.
    fn wants_huge(&mut self, fill: Fill) -> bool {
        match huge::mode() {
            HugePages::Never => false,
            _ if arena::is_populated() => false,
            HugePages::Always => self.has_room_for_huge() && os::huge::learn(),
            HugePages::Auto => {
                // Where free memory cannot wait, a huge page would be split soon. A small program
                // never pays for the question whether the system has them.
                self.used_pages >= huge::MIN_USED_PAGES
                    && !bound::is_bounded()
                    && os::huge::learn()
                    && self.dirty_pages <= self.used_pages / 8
                    && self.has_room_for_huge()
                    && match fill {
                        Fill::Dense => true,
                        Fill::Sparse => self.probes.count_huge_if_dense(self.used_pages),
                        Fill::Unknown => false,
                    }
            }
        }
    }

    /// Whether another huge page is far enough from the limits.
    pub(super) fn has_room_for_huge(&self) -> bool {
        let limit = self.soft_pages.min(self.hard_pages);
        self.held_pages() + self.claimed_pages + CHUNK_PAGES <= limit - limit / 8
    }

    /// Notes the advice of a chunk.
    pub fn set_advice(&mut self, index: usize, advice: Advice) {
        self.advised_rows = self.advised_rows_after(index, advice == Advice::Huge);
        // SAFETY: callers pass committed indices; `&mut self` is the lock.
        unsafe { (*arena::chunk(index)).advice = advice };
    }

    /// Whether the advice may be given: not where it would cut the arena into too many mappings.
    pub fn may_advise(&self, index: usize, is_huge: bool) -> bool {
        self.advised_rows_after(index, is_huge) <= self.advised_rows.max(MAX_ADVISED_ROWS)
    }

    /// Rows of chunks with [`Advice::Huge`], counted by their ends, once chunk `index` has the
    /// advice, or has it not.
    fn advised_rows_after(&self, index: usize, is_huge: bool) -> usize {
        // SAFETY: committed, and `&self` is the lock.
        let is_advised = |index: usize| unsafe { (*arena::chunk(index)).advice == Advice::Huge };
        let is_before = index > 0 && is_advised(index - 1);
        let is_after = index + 1 < arena::chunks_committed() && is_advised(index + 1);
        let ends = |is_huge: bool| usize::from(is_before && !is_huge) + usize::from(is_huge && !is_after);
        self.advised_rows - ends(is_advised(index)) + ends(is_huge)
    }

    /// Part of the chunk is about to be purged, or was moved away: that splits its huge page.
    /// Returns whether the caller must tell the kernel, by [`revoke`], once it has let go of the
    /// lock; the caller holds a page of the chunk until then.
    pub fn split(&mut self, index: usize) -> bool {
        self.with_chunk(index, Chunk::break_huge);
        // SAFETY: committed, and `&mut self` is the lock.
        let advice = unsafe { (*arena::chunk(index)).advice };
        let has_room = self.may_advise(index, false);
        let must_revoke = match advice {
            Advice::Huge => has_room,
            Advice::Unknown => has_room && os::huge::is_available(),
            Advice::Small => false,
            // The thread that set it may not have told the kernel yet.
            Advice::Revoked => self.is_collapsing(index),
        };
        if must_revoke {
            self.set_advice(index, Advice::Revoked);
        }
        must_revoke
    }

    /// Notes that the kernel moved a mapping onto the chunks of a run, and its advice with it.
    pub fn note_moved(&mut self, first: PageIndex, pages: usize) {
        let (first, last) = (first.0 as usize, first.0 as usize + pages - 1);
        (first / CHUNK_PAGES..=last / CHUNK_PAGES).for_each(|index| self.set_advice(index, Advice::Unknown));
        // The move split the huge page of a chunk of which the run is a part.
        if first % CHUNK_PAGES > 0 {
            self.with_chunk(first / CHUNK_PAGES, Chunk::break_huge);
        }
        if (last + 1) % CHUNK_PAGES > 0 {
            self.with_chunk(last / CHUNK_PAGES, Chunk::break_huge);
        }
    }

    /// Pages that may stay in chunks that huge pages back.
    pub fn kept_huge_pages(&self, locked: Locked) -> usize {
        match (locked, huge::mode()) {
            (Locked::Go, _) => 0,
            // Free memory cannot wait there.
            (Locked::Stay, _) if bound::is_bounded() => 0,
            (Locked::Stay, HugePages::Always) => usize::MAX,
            (Locked::Stay, _) => self.held_pages() / huge::KEPT_SHARE,
        }
    }

    /// See [`super::super::sparse::should_purge_rested`].
    pub fn should_purge_rested(&self, first: PageIndex, pages: usize) -> bool {
        // SAFETY: the page is in use, so its chunk is committed, and `&self` is the lock.
        let is_huge = unsafe { (*arena::chunk(first.0 as usize / CHUNK_PAGES)).is_huge };
        let keeps_more = huge::mode() == HugePages::Always && !bound::is_bounded();
        !is_huge || pages > MAX_KEPT_OF_SLAB && !keeps_more
    }

    /// Returns a chunk with pages in use that a huge page backs, and of which a purge of blocks of
    /// `block` pages takes some: the emptiest of the next 64, from `cursor` on and around the end.
    pub fn next_huge(&self, cursor: usize, locked: Locked, block: usize) -> Option<usize> {
        // SAFETY: indexed chunks are committed, and `&self` is the lock.
        let at = |index: usize| unsafe { &*arena::chunk(index) };
        // All free pages of these chunks are dirty, so the largest order tells which have a block.
        let least = block.trailing_zeros() as u8;
        let has_block = |&index: &usize| at(index).order >= least && self.is_purgeable(at(index), locked);
        let huge = Index::Huge.around(cursor, arena::chunks_committed());
        huge.filter(has_block).take(MAX_COMPARED).max_by_key(|&index| at(index).free_pages)
    }
}

/// Tells the kernel that chunk `index` is not to be backed by a huge page any more. Without that, a
/// kernel thread would give it one again, with memory for each page that was purged. Where the
/// kernel refuses, the chunk's next first touch advises it anew.
pub fn revoke(index: usize) {
    // SAFETY: the caller holds a page of the chunk, which is therefore mapped.
    let is_followed = unsafe { os::huge::advise(arena::address_of_chunk(index), CHUNK_BYTES, false) };
    if !is_followed {
        super::lock().set_advice(index, Advice::Unknown);
    }
}

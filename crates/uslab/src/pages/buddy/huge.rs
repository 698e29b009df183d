//! Huge pages of chunks: which chunk gets one, and which one is split first.
//!
//! A chunk gets its huge page at the first touch: the kernel then backs all 512 pages at once, and
//! a program that fills them saves 511 page faults and most misses of the TLB. All pages of such a
//! chunk count as held.
//!
//! A purge of part of a chunk splits its huge page for good. So purges take other pages first, and
//! leave a fortieth of what the process holds in such chunks as long as memory is not wanted.

use super::{Buddy, EMPTY_LEVEL, PINNED_LEVEL, arena};
use crate::os;
use crate::os::config::HugePages;
use crate::pages::arena::PageIndex;
use crate::pages::chunk::{Advice, Chunk, NONE};
use crate::pages::huge;
use crate::pages::policy::Locked;
use crate::pages::{CHUNK_BYTES, CHUNK_PAGES, PAGE_BYTES};

/// A heap that has less in use gets small pages: 32 MiB. Of its last huge page much may be unused.
pub const MIN_HUGE_PAGES: usize = (32 << 20) / PAGE_BYTES;
/// Runs of more pages, 128 KiB, are not filled from their start on: they get small pages.
const MAX_RUN_PAGES: usize = (128 << 10) / PAGE_BYTES;
/// Upper bound on the mappings that revoked advice may split, of the 65 530 that Linux gives a
/// process: 8192.
const MAX_REVOKED: usize = 8192;

impl Buddy {
    /// Chooses what backs a wholly free chunk without memory, of which a run of `pages` pages is
    /// about to be taken.
    pub(super) fn choose_backing(&mut self, index: usize, chunk: &mut Chunk, pages: usize) {
        let is_wanted = self.wants_huge(pages);
        if is_wanted != (chunk.advice == Advice::Huge) {
            let start = arena::address_of_chunk(index);
            // SAFETY: the chunk is mapped, and ours.
            let is_followed = unsafe { os::huge::advise(start, CHUNK_BYTES, is_wanted) };
            if !is_followed {
                return;
            }
            self.set_advice(index, if is_wanted { Advice::Huge } else { Advice::Small });
        }
        if is_wanted {
            chunk.back_with_huge();
            self.policy.note_fresh(CHUNK_PAGES);
        }
    }

    /// Whether a chunk should get a huge page that is about to serve a run of `pages` pages.
    fn wants_huge(&self, pages: usize) -> bool {
        match huge::mode() {
            HugePages::Never => false,
            _ if !os::huge::is_available() || arena::is_populated() => false,
            HugePages::Always => true,
            HugePages::Auto => {
                let limit = self.soft_pages.min(self.hard_pages);
                pages <= MAX_RUN_PAGES
                    && self.used_pages >= MIN_HUGE_PAGES
                    && self.dirty_pages <= self.used_pages / 8
                    && self.held_pages() + CHUNK_PAGES <= limit - limit / 8
            }
        }
    }

    pub(super) fn set_advice(&mut self, index: usize, advice: Advice) {
        // SAFETY: callers pass committed indices; `&mut self` is the lock.
        let before = unsafe { core::mem::replace(&mut (*arena::chunk(index)).advice, advice) };
        self.revoked_chunks += usize::from(advice == Advice::Revoked);
        self.revoked_chunks -= usize::from(before == Advice::Revoked);
    }

    /// Part of the chunk is about to be purged, which splits its huge page. Returns whether the
    /// caller must tell the kernel, by [`revoke`], once it has let go of the lock; the caller holds
    /// a page of the chunk until then.
    pub fn split(&mut self, index: usize) -> bool {
        self.with_chunk(index, Chunk::break_huge);
        // SAFETY: committed, and `&mut self` is the lock.
        let is_advised = unsafe { (*arena::chunk(index)).advice == Advice::Huge };
        let must_revoke = is_advised && self.revoked_chunks < MAX_REVOKED;
        if must_revoke {
            self.set_advice(index, Advice::Revoked);
        }
        must_revoke
    }

    /// Pages that may stay in chunks that huge pages back.
    pub fn kept_huge_pages(&self, locked: Locked) -> usize {
        match (locked, huge::mode()) {
            (Locked::Go, _) => 0,
            (Locked::Stay, HugePages::Always) => usize::MAX,
            (Locked::Stay, _) => self.held_pages() / huge::KEPT_SHARE,
        }
    }

    /// See [`super::super::sparse::should_purge_rested`].
    pub fn should_purge_rested(&mut self, first: PageIndex, pages: usize) -> bool {
        // SAFETY: the page is in use, so its chunk is committed, and `&mut self` is the lock.
        let is_huge = unsafe { (*arena::chunk(first.0 as usize / CHUNK_PAGES)).is_huge };
        let kept_pages = self.policy.kept_inside_pages + pages;
        let is_kept = is_huge
            && (huge::mode() == HugePages::Always || kept_pages <= self.held_pages() / huge::KEPT_SHARE);
        if is_kept {
            self.policy.kept_inside_pages = kept_pages;
        }
        !is_kept
    }

    /// Returns the emptiest chunk with pages in use that a huge page backs and that has pages to
    /// purge.
    pub fn next_huge(&self, locked: Locked) -> Option<usize> {
        const _: () = assert!(PINNED_LEVEL < EMPTY_LEVEL);
        // SAFETY: listed chunks are committed, and `&self` is the lock.
        let at = |index: u32| unsafe { &*arena::chunk(index as usize) };
        self.heads[..PINNED_LEVEL].iter().rev().flatten().find_map(|&head| {
            core::iter::successors((head != NONE).then_some(head), |&index| {
                let next = at(index).next;
                (next != NONE).then_some(next)
            })
            .find(|&index| at(index).keeps_huge() && self.is_purgeable(at(index), locked))
            .map(|index| index as usize)
        })
    }
}

/// Tells the kernel that chunk `index` is not to be backed by a huge page any more. Without that, a
/// kernel thread would give it one again, with memory for each page that was purged.
pub fn revoke(index: usize) {
    // SAFETY: the caller holds a page of the chunk, which is therefore mapped.
    unsafe { os::huge::advise(arena::address_of_chunk(index), CHUNK_BYTES, false) };
}

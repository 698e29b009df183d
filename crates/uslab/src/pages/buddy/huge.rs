//! Huge pages of chunks: which chunk gets one, and which one is split first.
//!
//! A chunk gets its huge page at the first touch: the kernel then backs all 512 pages at once, and
//! a program that fills them saves 511 page faults and most misses of the TLB. All pages of such a
//! chunk count as held.
//!
//! Old chunks get one later, if they are dense: the background thread asks the kernel to copy their
//! pages together.
//!
//! A purge of part of a chunk splits its huge page for good. So purges take other pages first, and
//! leave a fortieth of what the process holds in such chunks as long as memory is not wanted.

use super::{Buddy, EMPTY_LEVEL, PINNED_LEVEL, arena};
use crate::os;
use crate::os::config::HugePages;
use crate::pages::arena::PageIndex;
use crate::pages::chunk::{Advice, Chunk, NONE};
use crate::pages::policy::Locked;
use crate::pages::{CHUNK_BYTES, CHUNK_PAGES};
use crate::pages::{huge, touched};

/// A heap that has less in use gets small pages: 40 MiB. Of its last huge page most may be unused,
/// which must not exceed a twentieth of the heap.
pub const MIN_HUGE_PAGES: usize = 20 * CHUNK_PAGES;
/// Runs of a power of two of pages, up to 128 KiB, are slabs: they fill a chunk, and are filled
/// themselves. Between others holes remain.
const MAX_SLAB_PAGES: usize = 32;
/// A run of whole chunks gets huge pages if it is no larger than this part of what is in use, and
/// the program touches all of such runs (see [`touched`]).
const MAX_RUN_SHARE: usize = 4;
/// A dense chunk has no more free pages. That is less than [`huge::KEPT_SHARE`] lets stay, so that
/// no purge splits its huge page for them.
const MAX_FREE_PAGES: usize = CHUNK_PAGES / 64;
/// Looks of the background thread, half a second apart, at which an old chunk was dense.
const OLD_LOOKS: u8 = 4;
/// Upper bound on the mappings that revoked advice may split, of the 65 530 that Linux gives a
/// process: 8192.
const MAX_REVOKED: usize = 8192;

/// What [`Buddy::look_for_dense`] found.
pub struct Looked {
    /// Where the next look starts.
    pub cursor: usize,
    /// Chunks found.
    pub found: usize,
    /// Other chunks are dense, and not yet old.
    pub is_waiting: bool,
}

impl Buddy {
    /// Chooses what backs a wholly free chunk without memory, of which a run of `pages` pages is
    /// about to be taken.
    pub(super) fn choose_backing(&mut self, index: usize, chunk: &mut Chunk, pages: usize) {
        let is_wanted = self.wants_huge(pages);
        let is_advised = match chunk.advice {
            Advice::Small | Advice::Revoked => !is_wanted,
            Advice::Huge => is_wanted,
            Advice::Moved => false,
        };
        if !is_advised {
            let start = arena::address_of_chunk(index);
            // SAFETY: the chunk is mapped, and ours.
            let is_followed = unsafe { os::huge::advise(start, CHUNK_BYTES, is_wanted) };
            if !is_followed {
                return;
            }
            self.set_advice(chunk, if is_wanted { Advice::Huge } else { Advice::Small });
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
                self.used_pages >= MIN_HUGE_PAGES
                    && self.dirty_pages <= self.used_pages / 8
                    && self.has_room_for_huge()
                    && self.fills_chunks(pages)
            }
        }
    }

    /// Whether runs of `pages` pages fill chunks, and programs touch all of such runs.
    fn fills_chunks(&self, pages: usize) -> bool {
        if pages <= MAX_SLAB_PAGES {
            pages.is_power_of_two()
        } else {
            pages >= CHUNK_PAGES && pages <= self.used_pages / MAX_RUN_SHARE && touched::expects_dense()
        }
    }

    /// Whether another huge page is far enough from the limits.
    fn has_room_for_huge(&self) -> bool {
        let limit = self.soft_pages.min(self.hard_pages);
        self.held_pages() + CHUNK_PAGES <= limit - limit / 8
    }

    pub(super) fn set_advice(&mut self, chunk: &mut Chunk, advice: Advice) {
        let before = core::mem::replace(&mut chunk.advice, advice);
        self.revoked_chunks += usize::from(advice == Advice::Revoked);
        self.revoked_chunks -= usize::from(before == Advice::Revoked);
    }

    /// Part of the chunk is about to be purged, which splits its huge page. Returns whether the
    /// caller must tell the kernel, by [`revoke`], once it has let go of the lock; the caller holds
    /// a page of the chunk until then.
    pub fn split(&mut self, index: usize) -> bool {
        self.with_chunk(index, Chunk::break_huge);
        // SAFETY: committed, and `&mut self` is the lock.
        let chunk = unsafe { &mut *arena::chunk(index) };
        let must_revoke = chunk.advice == Advice::Huge && self.revoked_chunks < MAX_REVOKED;
        if must_revoke {
            self.set_advice(chunk, Advice::Revoked);
        }
        must_revoke
    }

    /// Notes that the kernel moved a mapping onto the chunks of a run, and its advice with it.
    pub fn note_moved(&mut self, first: PageIndex, pages: usize) {
        let (first, last) = (first.0 as usize, first.0 as usize + pages - 1);
        for index in first / CHUNK_PAGES..=last / CHUNK_PAGES {
            // SAFETY: committed, and `&mut self` is the lock.
            self.set_advice(unsafe { &mut *arena::chunk(index) }, Advice::Moved);
        }
    }

    /// The last chunk of a run, if the run fills it and small pages back it.
    pub fn last_small_chunk(&self, first: PageIndex, pages: usize) -> Option<usize> {
        let end = (first.0 as usize + pages) / CHUNK_PAGES;
        let index = end.checked_sub(1).filter(|index| index * CHUNK_PAGES >= first.0 as usize)?;
        // SAFETY: committed, and `&self` is the lock.
        let is_small = unsafe { !(*arena::chunk(index)).is_huge };
        is_small.then_some(index)
    }

    /// Looks at up to `most` chunks from `cursor` on; returns where it stopped, the chunks that have
    /// become old and dense, as many as fit `out`, and whether others are about to.
    pub fn look_for_dense(&mut self, cursor: usize, most: usize, out: &mut [usize]) -> Looked {
        let mut looked = Looked { cursor, found: 0, is_waiting: false };
        if !self.has_room_for_huge() || self.used_pages < MIN_HUGE_PAGES {
            return looked;
        }
        let committed = arena::chunks_committed();
        for _ in 0..most.min(committed) {
            if looked.found == out.len() {
                looked.is_waiting = true;
                break;
            }
            looked.cursor = if looked.cursor < committed { looked.cursor } else { 0 };
            // SAFETY: committed, and `&mut self` is the lock.
            let chunk = unsafe { &mut *arena::chunk(looked.cursor) };
            let is_dense = !chunk.is_huge && usize::from(chunk.free_pages) <= MAX_FREE_PAGES;
            chunk.dense_looks = if is_dense { chunk.dense_looks.saturating_add(1) } else { 0 };
            if chunk.dense_looks == OLD_LOOKS {
                out[looked.found] = looked.cursor;
                looked.found += 1;
            }
            looked.is_waiting |= is_dense && chunk.dense_looks < OLD_LOOKS;
            looked.cursor += 1;
        }
        looked
    }

    /// Keeps a dense chunk mapped while the caller asks for its huge page. False if it is not dense
    /// any more.
    pub fn begin_collapse(&mut self, index: usize) -> bool {
        // SAFETY: committed, and `&mut self` is the lock.
        let is_dense = unsafe {
            let chunk = &*arena::chunk(index);
            !chunk.is_huge && usize::from(chunk.free_pages) <= MAX_FREE_PAGES
        };
        if is_dense {
            self.with_chunk(index, |chunk| chunk.is_collapsing = true);
        }
        is_dense
    }

    /// Ends what [`Buddy::begin_collapse`] began. With `is_advised`, all pages of the chunk have
    /// memory now, or soon.
    pub fn end_collapse(&mut self, index: usize, is_advised: bool) {
        self.with_chunk(index, |chunk| {
            chunk.is_collapsing = false;
            if is_advised {
                chunk.back_with_huge();
            }
        });
        if is_advised {
            // SAFETY: committed, and `&mut self` is the lock.
            self.set_advice(unsafe { &mut *arena::chunk(index) }, Advice::Huge);
        }
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

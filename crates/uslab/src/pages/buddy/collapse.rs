//! Huge pages for chunks that were filled with small ones.
//!
//! The first chunks of a heap get small pages: half a huge page that stays empty would be much for
//! a small heap. Once the heap is large, the background thread has the kernel move some of them
//! into huge pages. It chooses chunks whose 512 pages are resident, mostly in dense runs, and all
//! counted by limits and figures. So the huge page holds no memory that was not held before.
//!
//! ```text
//!   choose()                advice, back_with_huge()            under the lock
//!   os::huge::collapse()    0.5 ms                              without it
//!   end_collapse()          refused? break_huge()               under the lock
//! ```
//!
//! From the advice on, the chunk counts as backed by a huge page. Until the end of the collapse, a
//! purge of any part of the chunk revokes the advice first, and the kernel refuses a collapse that
//! comes after the purge. While a purge is in flight, no chunk is chosen.
//!
//! Chunks that existed at a fork stay as they are: a copy would undo what parent and child share.

use super::huge::MAX_REVOKED;
use super::{Buddy, arena, lock};
use crate::os;
use crate::os::config::HugePages;
use crate::pages::chunk::{Advice, Chunk};
use crate::pages::{CHUNK_BYTES, CHUNK_PAGES, bound, huge};
use crate::sync::in_flight;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Chunks that a search walks over under the lock: some microseconds.
const MOST_WALKED: usize = 1024;
/// Chunks that a search asks the kernel about under the lock, some microseconds each.
const MOST_ASKED: usize = 4;
/// Chunks that one call of [`collapse_resident`] collapses.
const MOST_COLLAPSED: usize = 16;
/// A chunk with more free pages than a sixteenth is likely to be purged in part.
const MOST_FREE_PAGES: usize = CHUNK_PAGES / 16;

/// A chunk that served as many pages of other than dense runs is left alone: the program may only
/// have read them, so that they look resident, or the kernel may move a run of so many.
const MOST_SPARSE_PAGES: u16 = CHUNK_PAGES as u16 / 2;

/// The chunks below were in use at a fork.
static FIRST_OWN: AtomicUsize = AtomicUsize::new(0);

/// Notes that the process forks now. The caller holds the buddy's lock.
pub(super) fn note_fork() {
    FIRST_OWN.store(arena::chunks_committed(), Relaxed);
}

/// Moves resident chunks with small pages into huge pages. The background thread calls this while
/// the process grows.
pub fn collapse_resident() {
    for _ in 0..MOST_COLLAPSED {
        let Some(index) = lock().choose() else { return };
        let is_shared = index < FIRST_OWN.load(Relaxed);
        let start = arena::address_of_chunk(index);
        // SAFETY: the chunk is the library's. If the program freed all of it, it is still mapped:
        // chunks are unmapped where free memory is bounded, and there none is chosen.
        let is_done = !is_shared && unsafe { os::huge::collapse(start, CHUNK_BYTES) };
        lock().end_collapse(is_done);
        if !is_done {
            return;
        }
    }
}

impl Buddy {
    /// Chooses a chunk for a collapse, and advises it.
    fn choose(&mut self) -> Option<usize> {
        if !self.may_collapse() {
            return None;
        }
        let index = self.next_resident()?;
        // SAFETY: the chunk is committed, the library's, and has pages in use, so it is mapped.
        if !unsafe { os::huge::advise(arena::address_of_chunk(index), CHUNK_BYTES, true) } {
            return None;
        }
        // SAFETY: committed, and `&mut self` is the lock.
        self.set_advice(unsafe { &mut *arena::chunk(index) }, Advice::Huge);
        self.with_chunk(index, Chunk::back_with_huge);
        self.collapsing = Some(index);
        Some(index)
    }

    /// Ends the collapse of the chosen chunk. If the kernel refused it, the chunk keeps small
    /// pages, for good.
    fn end_collapse(&mut self, is_done: bool) {
        let Some(index) = self.collapsing.take().filter(|_| !is_done) else { return };
        // SAFETY: committed, and `&mut self` is the lock.
        let chunk = unsafe { &mut *arena::chunk(index) };
        // A purge has revoked the advice already, or the program allocated all of it anew.
        if chunk.is_huge && chunk.advice == Advice::Huge {
            self.with_chunk(index, Chunk::break_huge);
            // SAFETY: the chunk counts as huge, so it has a page in use, and is mapped.
            if unsafe { os::huge::advise(arena::address_of_chunk(index), CHUNK_BYTES, false) } {
                // SAFETY: as above.
                self.set_advice(unsafe { &mut *arena::chunk(index) }, Advice::Revoked);
            }
        }
    }

    /// A run lies in these chunks. If it is several, the kernel may have to move them as one, so
    /// they must have the same advice: none is collapsed alone.
    pub(super) fn note_long(&mut self, chunks: Range<usize>) {
        if chunks.len() > 1 {
            for index in chunks {
                // SAFETY: the run is in use, so its chunks are committed; `&mut self` is the lock.
                unsafe { (*arena::chunk(index)).sparse_pages = Some(u16::MAX) };
            }
        }
    }

    /// Whether a collapse of chunk `index` is to come or under way.
    pub fn is_collapsing(&self, index: usize) -> bool {
        self.collapsing == Some(index)
    }

    fn may_collapse(&self) -> bool {
        huge::mode() == HugePages::Auto
            && os::huge::can_collapse()
            && os::huge::is_available()
            && os::filter::may_ask_residence()
            && !arena::is_populated()
            && !bound::is_bounded()
            && self.used_pages >= huge::MIN_USED_PAGES
            && self.has_room_for_huge()
            && self.revoked_chunks < MAX_REVOKED / 2
            && !in_flight::is_any()
    }

    /// From where the last search ended, the next chunk that has small pages and is resident.
    /// `None` if this search finds none. Makes system calls.
    fn next_resident(&mut self) -> Option<usize> {
        let committed = arena::chunks_committed();
        let from = self.collapse_cursor.max(FIRST_OWN.load(Relaxed));
        let end = committed.min(from.saturating_add(MOST_WALKED));
        let mut asked = 0;
        let may_be = |&index: &usize| {
            // SAFETY: committed, and `&mut self` is the lock.
            let chunk = unsafe { &*arena::chunk(index) };
            chunk.sparse_pages.is_some_and(|pages| pages < MOST_SPARSE_PAGES)
                && chunk.advice == Advice::Small
                && !chunk.is_huge
                && chunk.uncharged_pages == 0
                && usize::from(chunk.free_pages) <= MOST_FREE_PAGES
                && chunk.dirty_pages == chunk.free_pages
                && chunk.refused_in == 0
                && !arena::home_of_chunk(index).has_policy()
        };
        let found = (from..end).filter(may_be).take(MOST_ASKED).find(|&index| {
            self.collapse_cursor = index + 1;
            asked += 1;
            os::memory::resident_bytes::<CHUNK_BYTES>(arena::address_of_chunk(index)) == CHUNK_BYTES
        });
        if found.is_none() && asked < MOST_ASKED {
            self.collapse_cursor = if end == committed { 0 } else { end };
        }
        found
    }
}

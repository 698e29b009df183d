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
//!   end_collapse()          not done? break_huge()              under the lock
//! ```
//!
//! A chunk of which the kernel uses pages keeps small ones for now: a later search may choose it
//! again, a few times. Where the kernel has no huge page to give, searches rest.
//!
//! From the advice on, the chunk counts as backed by a huge page. Until the end of the collapse, a
//! purge of any part of the chunk revokes the advice first, and the kernel refuses a collapse that
//! comes after the purge. While a purge is in flight, no chunk is chosen.
//!
//! **The chunk stays mapped** until the end of the collapse. It is mapped when it is chosen, since
//! it has pages in use. Only wholly free chunks are unmapped, and [`Buddy::may_be_unmapped`] keeps
//! this one mapped even if the program frees all of it and sets a limit on addresses meanwhile.
//!
//! Chunks that existed at a fork stay as they are: a copy would undo what parent and child share. A
//! fork between the test and the collapse makes one such copy, 2 MiB. A filter of the program's own
//! that comes in between may refuse the call, or end the program for it.

use super::{Buddy, arena, lock};
use crate::os;
use crate::os::config::HugePages;
use crate::os::huge::Collapse;
use crate::os::invariant::invariant;
use crate::pages::chunk::{Advice, Chunk};
use crate::pages::{CHUNK_BYTES, CHUNK_PAGES, bound, huge};
use crate::sync::in_flight;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Chunks that a search walks over under the lock: some microseconds.
const MAX_WALKED: usize = 1024;
/// Chunks that a search asks the kernel about under the lock, some microseconds each.
const MAX_ASKED: usize = 4;
/// Chunks that one call of [`collapse_resident`] collapses.
const MAX_COLLAPSED: usize = 16;
/// A chunk with more free pages than a sixteenth is likely to be purged in part.
const MAX_FREE_PAGES: usize = CHUNK_PAGES / 16;

/// A chunk that served as many pages of other than dense runs is left alone: the program may only
/// have read them, so that they look resident, or the kernel may move a run of so many.
const MAX_SPARSE_PAGES: u16 = CHUNK_PAGES as u16 / 2;

/// A chunk that the kernel found busy so often keeps small pages for good.
const MAX_BUSY: u8 = 8;

/// Searches that are left out where the kernel had no huge page to give: each attempt may make it
/// move other memory. Six seconds of growth or more.
const REST_SEARCHES: u32 = 64;

/// Searches to leave out from now on. Only the background thread uses it.
static REST: AtomicU32 = AtomicU32::new(0);

/// The chunks below were in use at a fork.
static FIRST_OWN: AtomicUsize = AtomicUsize::new(0);

/// Notes that the process forks now. The caller holds the buddy's lock, or no other thread works.
pub(super) fn note_fork() {
    FIRST_OWN.store(arena::chunks_committed(), Relaxed);
}

/// Moves resident chunks with small pages into huge pages. The background thread calls this while
/// the process grows.
pub fn collapse_resident() {
    if let Some(left) = REST.load(Relaxed).checked_sub(1) {
        return REST.store(left, Relaxed);
    }
    for _ in 0..MAX_COLLAPSED {
        let Some(index) = lock().choose() else { return };
        let is_shared = index < FIRST_OWN.load(Relaxed);
        let start = arena::address_of_chunk(index);
        // SAFETY: the chunk is the library's, and stays mapped until `end_collapse`: see above.
        let collapse = || unsafe { os::huge::collapse(start, CHUNK_BYTES) };
        let result = if is_shared { Collapse::Refused } else { collapse() };
        lock().end_collapse(index, result);
        match result {
            // The search goes on after this chunk, so it does not choose the chunk twice.
            Collapse::Done | Collapse::Busy => {}
            Collapse::NoMemory => return REST.store(REST_SEARCHES, Relaxed),
            Collapse::Refused => return,
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
        // SAFETY: the chunk is the library's, since it served a run. It has pages in use, and none
        // is in flight to a purge, so it is mapped.
        if !unsafe { os::huge::advise(arena::address_of_chunk(index), CHUNK_BYTES, true) } {
            return None;
        }
        self.set_advice(index, Advice::Huge);
        self.with_chunk(index, Chunk::back_with_huge);
        self.collapsing = Some(index);
        Some(index)
    }

    /// Ends the collapse of chunk `index`, which was chosen. Where it was not done, the chunk keeps
    /// small pages: for good if it was refused, or found busy too often.
    fn end_collapse(&mut self, index: usize, result: Collapse) {
        self.collapsing = None;
        // SAFETY: committed, and `&mut self` is the lock.
        let chunk = unsafe { &mut *arena::chunk(index) };
        invariant!(!chunk.is_unmapped, "a chunk stays mapped until its collapse ends", index);
        let advice = match result {
            Collapse::Done => return,
            Collapse::Busy if chunk.busy_collapses < MAX_BUSY => {
                chunk.busy_collapses += 1;
                Advice::Small
            }
            Collapse::NoMemory => Advice::Small,
            Collapse::Busy | Collapse::Refused => Advice::Revoked,
        };
        // If the chunk does not count as huge any more, a purge has broken the huge page and
        // revoked the advice. If it does, no purge came, or the chunk was freed, purged and chosen
        // for a huge page anew: it gets small ones then, too.
        if chunk.is_huge && chunk.advice == Advice::Huge {
            self.with_chunk(index, Chunk::break_huge);
            // SAFETY: the chunk has stayed mapped, and is the library's.
            if unsafe { os::huge::advise(arena::address_of_chunk(index), CHUNK_BYTES, false) } {
                self.set_advice(index, advice);
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

    /// Whether a collapse of chunk `index` is to come or under way: it must not be unmapped.
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
            && !in_flight::is_any()
    }

    /// From where the last search ended, the next chunk that has small pages and is resident.
    /// `None` if this search finds none. Makes system calls.
    fn next_resident(&mut self) -> Option<usize> {
        let committed = arena::chunks_committed();
        let from = self.collapse_cursor.max(FIRST_OWN.load(Relaxed));
        let end = committed.min(from.saturating_add(MAX_WALKED));
        let may_be = |&index: &usize| {
            // SAFETY: committed, and `&mut self` is the lock.
            let chunk = unsafe { &*arena::chunk(index) };
            chunk.sparse_pages.is_some_and(|pages| pages < MAX_SPARSE_PAGES)
                && chunk.advice == Advice::Small
                && !chunk.is_huge
                && chunk.uncharged_pages == 0
                && usize::from(chunk.free_pages) <= MAX_FREE_PAGES
                && chunk.dirty_pages == chunk.free_pages
                && chunk.refused_in == 0
                && !arena::home_of_chunk(index).has_policy()
                && self.may_advise(index, true)
        };
        let (mut asked, mut cursor) = (0, self.collapse_cursor);
        let found = (from..end).filter(may_be).take(MAX_ASKED).find(|&index| {
            (asked, cursor) = (asked + 1, index + 1);
            os::memory::resident_bytes::<CHUNK_BYTES>(arena::address_of_chunk(index)) == CHUNK_BYTES
        });
        if found.is_none() && asked < MAX_ASKED {
            cursor = if end == committed { 0 } else { end };
        }
        self.collapse_cursor = cursor;
        found
    }
}

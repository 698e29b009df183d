//! Huge pages for chunks that were filled with small ones.
//!
//! The first chunks of a heap get small pages: half a huge page that stays empty would be much for
//! a small heap. Once the heap is large, the background thread has the kernel move those of them
//! whose pages all have memory into huge pages. That costs a copy, and no memory.
//!
//! ```text
//!   under the lock, for each chunk                    without it, for adjacent chunks
//!   all resident? ─▶ advise, back_with_huge() ──────▶ collapse
//! ```
//!
//! From the advice on, the chunk counts as backed by a huge page, whether the kernel follows or
//! not. A purge that comes before the collapse splits the chunk and revokes the advice first, and
//! the kernel then refuses the collapse. A purge that is under way would not, so there must be
//! none when the chunk is chosen.
//!
//! Chunks that existed at a fork stay as they are: a copy would undo what parent and child share.
//! So do chunks of long runs: the kernel moves no run of which only some chunks are advised.

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
/// Chunks that [`collapse_resident`] asks the kernel about.
const MOST_ASKED: usize = 16;
/// A chunk with more free pages than a sixteenth is likely to be purged in part.
const MOST_FREE_PAGES: usize = CHUNK_PAGES / 16;

/// The first chunk that no fork has shared.
static FIRST_OWN: AtomicUsize = AtomicUsize::new(0);

/// Notes that the process forks now. The caller holds the buddy's lock.
pub(super) fn note_fork() {
    FIRST_OWN.store(arena::chunks_committed(), Relaxed);
}

/// Moves chunks with small pages into huge pages, 16 at a call at most. The background thread calls
/// this while the process grows.
pub fn collapse_resident() {
    let mut run = 0..0;
    for _ in 0..MOST_ASKED {
        let Some((index, is_chosen)) = lock().choose_resident() else { break };
        if is_chosen && index == run.end {
            run.end += 1;
        } else if is_chosen {
            collapse(run);
            run = index..index + 1;
        }
    }
    collapse(run);
}

/// One call for adjacent chunks: each call makes the kernel flush lists of all CPUs.
fn collapse(chunks: Range<usize>) {
    if !chunks.is_empty() {
        // SAFETY: the chunks are mapped, or were a moment ago. The kernel refuses what is not.
        unsafe { os::huge::collapse(arena::address_of_chunk(chunks.start), chunks.len() * CHUNK_BYTES) };
    }
}

impl Buddy {
    /// The next chunk that a huge page could back, and whether it does from now on: its pages are
    /// all resident. Makes system calls.
    fn choose_resident(&mut self) -> Option<(usize, bool)> {
        if !self.may_collapse() {
            return None;
        }
        let index = self.next_small()?;
        let start = arena::address_of_chunk(index);
        if os::memory::resident_bytes::<CHUNK_BYTES>(start) < CHUNK_BYTES {
            return Some((index, false));
        }
        // SAFETY: the chunk is committed and has pages in use, so it is mapped.
        let is_advised = unsafe { os::huge::advise(start, CHUNK_BYTES, true) };
        if is_advised {
            // SAFETY: as above, and `&mut self` is the lock.
            self.set_advice(unsafe { &mut *arena::chunk(index) }, Advice::Huge);
            self.with_chunk(index, Chunk::back_with_huge);
        }
        Some((index, is_advised))
    }

    fn may_collapse(&self) -> bool {
        huge::mode() == HugePages::Auto
            && os::huge::is_available()
            && os::filter::may_ask_residence()
            && !arena::is_populated()
            && !bound::is_bounded()
            && self.used_pages >= huge::MIN_USED_PAGES
            && self.has_room_for_huge()
            && self.revoked_chunks < MAX_REVOKED / 2
            && !in_flight::is_any()
    }

    /// From where the last search ended, the next chunk in use that has small pages, none of them
    /// known to be without memory. `None` if this search finds none.
    fn next_small(&mut self) -> Option<usize> {
        let committed = arena::chunks_committed();
        let from = self.collapse_cursor.max(FIRST_OWN.load(Relaxed));
        let end = committed.min(from.saturating_add(MOST_WALKED));
        let found = (from..end).find(|&index| {
            // SAFETY: committed, and `&mut self` is the lock.
            let chunk = unsafe { &*arena::chunk(index) };
            chunk.advice == Advice::Small
                && !chunk.is_huge
                && !chunk.serves_long_run
                && usize::from(chunk.free_pages) <= MOST_FREE_PAGES
                && chunk.dirty_pages == chunk.free_pages
                && !arena::home_of_chunk(index).has_policy()
                && !self.probes.has(index)
        });
        self.collapse_cursor = found.map_or(end, |index| index + 1);
        if self.collapse_cursor >= committed {
            self.collapse_cursor = 0;
        }
        found
    }
}

//! Runs in several chunks, and runs that grow where they stand: they take the pages behind them, if
//! all of these are free.

use super::{Buddy, MAX_GROW};
use crate::os::memory::Placed;
use crate::pages::arena::{self, PageIndex};
use crate::pages::home::Home;
use crate::pages::{CHUNK_PAGES, Fill, Run};

/// The parts of the pages `start` to `end` in each chunk: its index, the first page and how many.
fn parts(start: usize, end: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut at = start;
    core::iter::from_fn(move || {
        let first = at % CHUNK_PAGES;
        let count = end.saturating_sub(at).min(CHUNK_PAGES - first);
        let part = (at / CHUNK_PAGES, first, count);
        at += count;
        (count > 0).then_some(part)
    })
}

/// Whether the pages are free. They must be committed, and the caller holds the buddy's lock.
fn are_free(start: usize, end: usize) -> bool {
    // SAFETY: committed, and the caller holds the lock.
    parts(start, end).all(|(index, first, count)| unsafe { (*arena::chunk(index)).is_free(first, count) })
}

/// How a part of a run in several chunks is filled: of one that ends within its chunk nothing is
/// known, because the rest of the chunk may stay free.
fn fill_of_part(pages: usize) -> Fill {
    if pages == CHUNK_PAGES { Fill::Sparse } else { Fill::Unknown }
}

impl Buddy {
    /// Takes the pages `start` to `end`, which are free and mapped. Returns how many of them are
    /// known to be zero.
    pub(super) fn claim_parts(&mut self, start: usize, end: usize) -> usize {
        let mut zero = 0;
        self.probes.begin_run(start.div_ceil(CHUNK_PAGES)..end / CHUNK_PAGES);
        for (index, first, count) in parts(start, end) {
            zero += self.claim(index, first, count, fill_of_part(count), Home::here());
            // Whether the next chunk may get a huge page depends on what the limits leave then.
            self.claimed_pages += count;
        }
        self.claimed_pages = 0;
        self.probes.end_run();
        zero
    }

    /// Takes the `pages` pages from `first` on; returns whether it did. It fails if some are not
    /// free, cannot be mapped, or would exceed the hard limit. Where they reach beyond the arena,
    /// the arena grows.
    pub fn claim_at(&mut self, first: PageIndex, pages: usize) -> bool {
        let (start, end) = (first.0 as usize, first.0 as usize + pages);
        if !self.reaches(start, end) || !are_free(start, end) {
            return false;
        }
        let (low, high) = (start / CHUNK_PAGES, end.div_ceil(CHUNK_PAGES));
        if self.end_without_policy(low, high) < high {
            return false;
        }
        // An unmapped chunk is all free. It lies wholly within the claimed range, or at its end.
        if self.map_again(low, high - low) != Placed::Mapped {
            return false;
        }
        let zero = self.claim_parts(start, end);
        let is_taken = self.note_taken(Run { first, pages, zeroed: zero == pages }, pages);
        if is_taken {
            self.note_long((start - 1) / CHUNK_PAGES..high);
        }
        is_taken
    }

    /// Whether the pages are committed, after the arena grew if they are at its end.
    fn reaches(&mut self, start: usize, end: usize) -> bool {
        let committed = arena::chunks_committed();
        let missing = end.div_ceil(CHUNK_PAGES).saturating_sub(committed);
        if missing == 0 {
            return true;
        }
        let bound = committed * CHUNK_PAGES;
        start <= bound
            && are_free(start, bound)
            && self.is_possible(end - start, 0)
            && self.grow(missing.max((committed / 8).min(MAX_GROW)), missing).is_some()
    }
}

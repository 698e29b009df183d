//! Runs of more than a chunk: they take free pages in a row, wherever these begin and end.
//!
//! ```text
//!   chunk 3       4         5         6
//!   ▓▓▓▓░░░░░│░░░░░░░░░│░░░░░░░░░│░░░▓▓▓▓▓▓
//!       ◀─────── a stretch, known at chunk 4 ──────▶
//! ```
//!
//! The lowest stretch with room serves, so that the highest chunks become free. The index records a
//! stretch at the first chunk that begins within it. The chunk before has a page in use, or does
//! not exist. So each change of a chunk's ends changes two entries of the index at most. Longer
//! runs than [`MAX_PACKED_PAGES`] start at the start of a chunk: `realloc` moves them by page
//! tables, and huge pages back them from the start.

use super::lengths::{Class, Length};
use super::nodes;
use super::whole::{self, Index};
use super::{Buddy, MAX_ORDER, PINNED_LEVEL};
use crate::os::memory::Placed;
use crate::pages::arena::{self, PageIndex};
use crate::pages::chunk::{self, Chunk};
use crate::pages::home::Home;
use crate::pages::{CHUNK_PAGES, Fill, PAGE_BYTES, Run};
use core::ops::Range;

/// Runs of up to so many pages lie anywhere: 8 MiB.
const MAX_PACKED_PAGES: usize = 4 * CHUNK_PAGES;
/// Upper bound of the stretches that a search looks at.
const MAX_TRIED: usize = 64;

/// A chunk within the bound. The caller holds the buddy's lock, and changes no chunk meanwhile.
fn at<'a>(index: usize) -> &'a Chunk {
    // SAFETY: committed, and the caller holds the lock.
    unsafe { &*arena::chunk(index) }
}

/// The pages of the stretch across the start of chunk `index`: from the end of the chunk before, to
/// the start of the first chunk that is not wholly free.
fn stretch(index: usize) -> Range<usize> {
    let committed = arena::chunks_committed();
    let end = whole::row_end(index, committed);
    let before = if index == 0 { 0 } else { at(index - 1).free_ends[1] };
    let after = if end < committed { at(end).free_ends[0] } else { 0 };
    index * CHUNK_PAGES - usize::from(before)..end * CHUNK_PAGES + usize::from(after)
}

/// Records the lengths of a chunk that changed. Call it after the chunk is back in its list, or
/// belongs to none because it is full.
pub(super) fn note(index: usize) {
    Length::Extent.set(index, class_of(at(index)));
    let ends = at(index).count_ends();
    if at(index).free_ends != ends {
        // SAFETY: committed, and the caller holds the lock; no reference to the chunk lives.
        unsafe { (*arena::chunk(index)).free_ends = ends };
        note_stretch(whole::last_row(index));
        if index + 1 < arena::chunks_committed() {
            note_stretch(index + 1);
        }
    }
}

fn note_stretch(index: usize) {
    Length::Stretch.set(index, class_at(index));
}

/// The class of the stretch across the start of chunk `index`, if it is known there.
fn class_at(index: usize) -> Class {
    match index > 0 && Index::Whole.has(index - 1) {
        true => Class(0),
        false => Class::of_stretch(stretch(index).len()),
    }
}

fn class_of(chunk: &Chunk) -> Class {
    Class::of_extent(if chunk.is_all_free() { 0 } else { chunk.longest_extent() })
}

/// Whether the indices know the longest extent of a chunk, and the stretch across its start.
pub(super) fn is_known(index: usize, chunk: &Chunk) -> bool {
    Length::Extent.is(index, class_of(chunk)) && Length::Stretch.is(index, class_at(index))
}

/// Which stretches serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapped {
    Any,
    /// Those without a chunk that is unmapped: the system refuses to map one.
    All,
}

impl Buddy {
    /// Allocates and charges a run of more than a chunk.
    pub(super) fn alloc_long(&mut self, pages: usize, align_order: u32) -> Option<Run> {
        let mut mapped = Mapped::Any;
        let (first, chunks) = loop {
            let first = self.find_long(pages, align_order, mapped)?;
            let chunks = first / CHUNK_PAGES..(first + pages).div_ceil(CHUNK_PAGES);
            match self.map_again(chunks.start, chunks.len()) {
                Placed::Mapped => break (first, chunks),
                Placed::Taken => {}
                Placed::Refused if mapped == Mapped::Any => mapped = Mapped::All,
                Placed::Refused => return None,
            }
        };
        let zero = self.claim_parts(first, first + pages);
        let run = Run { first: PageIndex(first as u32), pages, zeroed: zero == pages };
        self.note_taken(run, pages).then(|| {
            self.note_long(chunks);
            run
        })
    }

    /// Finds `pages` free pages in a row, more than a chunk, of which the first lies on a boundary
    /// of `2^align_order` pages. If there are none, it grows the arena behind its free end.
    fn find_long(&mut self, pages: usize, align_order: u32, mapped: Mapped) -> Option<usize> {
        let order = if pages > MAX_PACKED_PAGES { align_order.max(MAX_ORDER) } else { align_order };
        let (base, align) = (arena::address_of(PageIndex(0)) as usize / PAGE_BYTES, 1 << order);
        let aligned = |page: usize| (base + page).next_multiple_of(align) - base;
        let fits = |stretch: Range<usize>| {
            let first = aligned(stretch.start);
            (first + pages <= stretch.end).then_some(first)
        };
        loop {
            let committed = arena::chunks_committed();
            let of_class = |class| Length::Stretch.with(class, usize::MAX).take(MAX_TRIED);
            let find = |class| of_class(class).find_map(|index| fits(self.clipped(index, pages, mapped)));
            // Stretches of the first class may be too short. Those of the second are long enough,
            // unless `clipped` takes a part of them away.
            let enough = Class::of_stretch(pages + align - 1).next();
            let class = Class::of_stretch(pages).max(Class(1));
            if let Some(first) = find(class).or_else(|| find(enough)) {
                return Some(first);
            }
            if mapped == Mapped::All {
                return None;
            }
            // The last stretch, if it reaches the end of the arena, is followed by new chunks,
            // unless another mapping lies between; then the search goes on behind it.
            let (last, bound) =
                (self.clipped(whole::last_row(committed), pages, mapped), committed * CHUNK_PAGES);
            let behind = aligned(if last.end == bound { last.start } else { bound });
            if let Some(first) = fits(last) {
                return Some(first);
            }
            let missing = behind.checked_add(pages)?.div_ceil(CHUNK_PAGES) - committed;
            self.grow(missing, missing)?;
        }
    }

    /// The part of a stretch that may serve a long run. It contains no memory with a policy, no
    /// pages of chunks in use on another node, and with [`Mapped::All`] no unmapped chunk. Of
    /// several parts it is the first with `pages` pages, or else the last.
    fn clipped(&self, index: usize, pages: usize, mapped: Mapped) -> Range<usize> {
        let Range { mut start, mut end } = stretch(index);
        let is_foreign = |chunk: usize| !self.share_lists(arena::home_of_chunk(chunk), Home::here());
        if start < index * CHUNK_PAGES && is_foreign(index - 1) {
            start = index * CHUNK_PAGES;
        }
        let last = end / CHUNK_PAGES;
        if end % CHUNK_PAGES > 0 && is_foreign(last) {
            end = last * CHUNK_PAGES;
        }
        if !self.has_policies() && mapped == Mapped::Any {
            return start..end;
        }
        let is_out =
            |&chunk: &usize| nodes::is_taken(chunk) || mapped == Mapped::All && at(chunk).is_unmapped;
        for chunk in (index..end / CHUNK_PAGES).filter(is_out) {
            if chunk * CHUNK_PAGES >= start + pages {
                return start..chunk * CHUNK_PAGES;
            }
            start = (chunk + 1) * CHUNK_PAGES;
        }
        start..end
    }

    /// Allocates a run of less than a chunk from any free pages in a row: no chunk has an aligned
    /// block, and there are no more addresses. Looks at some of the chunks in use.
    pub(super) fn alloc_anywhere(&mut self, pages: usize, fill: Fill, home: Home) -> Option<Run> {
        let (index, first) = self.any_pages(pages, home)?;
        Some(self.claim_run(index, first, pages, fill, home))
    }

    /// A chunk in use of `home` with `pages` free pages in a row, and the first of them.
    fn any_pages(&self, pages: usize, home: Home) -> Option<(usize, usize)> {
        // 2 · 2^k - 1 pages in a row contain an aligned block of 2^k.
        let least = (pages + 1).ilog2() as usize - 1;
        let lists = self.lists_of(home).heads.iter().take(PINNED_LEVEL);
        let heads = lists.flat_map(|heads| heads.iter().skip(least));
        heads.copied().find_map(|head| {
            let chunk = |index: u32| ((index as usize) < arena::chunks_committed()).then_some(index as usize);
            core::iter::successors(chunk(head), |&index| chunk(at(index).next))
                .take(MAX_TRIED)
                .find_map(|index| Some((index, chunk::find_row(&at(index).free, pages)?)))
        })
    }
}

//! Which chunks have free pages with memory in a row: extents, as jemalloc calls them.
//!
//! ```text
//!   chunks    0   24    0  255 │   0    3    0    0 │ …    the longest extent, in units of 2 pages
//!   groups             ≤ 255   │             ≤ 3    │ …    a bound on those of 64 chunks
//! ```
//!
//! A run takes the lowest extent that is long enough, and fresh pages only if there is none. So a
//! program that takes and frees runs of many sizes stays near the memory that it needs. Wholly free
//! chunks do not count here (see `whole`).
//!
//! The bound of a group rises when an extent exceeds it. A search that finds nothing in a group
//! lowers it. So a change of a chunk costs one comparison or two, and a search of a terabyte looks
//! at 8192 bounds at most. Guarded by the buddy's lock.

use crate::pages::layout::MAX_DATA_BYTES;
use crate::pages::{CHUNK_BYTES, CHUNK_PAGES};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

const GROUP: usize = 64;
const GROUPS: usize = (MAX_DATA_BYTES / CHUNK_BYTES).div_ceil(GROUP);
/// Pages of a unit. All medium classes are whole units.
const UNIT_PAGES: usize = 2;

/// Static memory of zeroes, in the section of large tables; see `rseq/layout.rs`.
#[unsafe(link_section = ".bss.uslab_tables")]
static EXTENTS: Extents = Extents {
    chunks: [const { [const { AtomicU8::new(0) }; GROUP] }; GROUPS],
    groups: [const { AtomicU8::new(0) }; GROUPS],
};

struct Extents {
    chunks: [[AtomicU8; GROUP]; GROUPS],
    groups: [AtomicU8; GROUPS],
}

const _: () = assert!((CHUNK_PAGES - 1) / UNIT_PAGES <= u8::MAX as usize);

/// Records the pages of the longest extent of chunk `index`, less than a chunk.
pub(super) fn set(index: usize, pages: usize) {
    let (chunk, group) = (&EXTENTS.chunks[index / GROUP][index % GROUP], &EXTENTS.groups[index / GROUP]);
    let units = (pages / UNIT_PAGES) as u8;
    if chunk.load(Relaxed) != units {
        chunk.store(units, Relaxed);
        if group.load(Relaxed) < units {
            group.store(units, Relaxed);
        }
    }
}

/// Whether `pages` is what [`set`] recorded for chunk `index`.
pub(super) fn is_set(index: usize, pages: usize) -> bool {
    let units = EXTENTS.chunks[index / GROUP][index % GROUP].load(Relaxed);
    usize::from(units) == pages / UNIT_PAGES && units <= EXTENTS.groups[index / GROUP].load(Relaxed)
}

/// The chunks below `end` with an extent of `pages` pages, less than a chunk, from the lowest on.
pub(super) fn with(pages: usize, end: usize) -> impl Iterator<Item = usize> {
    let units = pages.div_ceil(UNIT_PAGES);
    let has_group = move |group: &usize| usize::from(EXTENTS.groups[*group].load(Relaxed)) >= units;
    (0..end.div_ceil(GROUP))
        .filter(has_group)
        .flat_map(move |group| {
            let longest = move |at: usize| usize::from(EXTENTS.chunks[group][at].load(Relaxed));
            let first = (0..GROUP).find(|&at| longest(at) >= units);
            if first.is_none() {
                let most = (0..GROUP).map(longest).max().unwrap_or(0);
                EXTENTS.groups[group].store(most as u8, Relaxed);
            }
            (first.unwrap_or(GROUP)..GROUP)
                .filter(move |&at| longest(at) >= units)
                .map(move |at| group * GROUP + at)
        })
        .filter(move |&index| index < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks far beyond those that any test commits, which the test leaves as they were.
    #[test]
    fn the_lowest_chunk_with_a_long_extent_is_found_and_bounds_fall() {
        let end = GROUPS * GROUP;
        let (low, high) = (end - 2 * GROUP + 7, end - 3);
        let found = |pages| with(pages, end).find(|&index| index >= end - 2 * GROUP);
        set(low, 20);
        set(high, 301);
        assert_eq!([20, 21, 300, 301, 302].map(found), [Some(low), Some(high), Some(high), None, None]);
        assert_eq!(with(20, end).filter(|&index| index >= low).count(), 2);
        set(high, 0);
        assert!(is_set(high, 0) && is_set(low, 20));
        assert_eq!(usize::from(EXTENTS.groups[GROUPS - 1].load(Relaxed)), 300 / UNIT_PAGES);
        assert_eq!((found(21), found(20)), (None, Some(low)));
        assert_eq!(EXTENTS.groups[GROUPS - 1].load(Relaxed), 0, "the search lowered the bound");
        set(low, 0);
        assert_eq!(found(2), None);
    }
}

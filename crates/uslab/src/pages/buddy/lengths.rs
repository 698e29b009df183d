//! How many free pages lie in a row: two indices of chunks, with bounds for 8, 64 and 4096 chunks.
//!
//! ```text
//!   extents     0   24    0  255 │   0    3    0    0 │ …    the longest in the chunk, all with memory
//!   stretches   0    0   17    0 │   0    0    9    0 │ …    the one across the chunk's start
//!   bounds                ≤ 255  │             ≤ 3    │ …    of 8 chunks, of 8 of these, of 64 of these
//! ```
//!
//! The indices store classes of lengths, a byte each: pairs of pages for extents, and for stretches
//! eight classes to a doubling. A search returns the lowest chunks that may have enough pages. A
//! length that exceeds a bound raises it, and a search that finds nothing below a bound lowers it.
//! So a change costs a few comparisons, and a search of a terabyte looks at 128 bounds at first.
//! Guarded by the buddy's lock.

use super::whole::TABLES;
use crate::pages::{CHUNK_PAGES, arena};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Chunks below a bound, bounds below a bound of a group, and groups below a bound of an area.
pub(super) const FANOUT: [usize; 3] = [8, 8, 64];
/// Chunks below the bound of a group, and of an area.
const GROUP: usize = FANOUT[0] * FANOUT[1];
const AREA: usize = GROUP * FANOUT[2];

/// An index of lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    /// Of the longest extent in the chunk (see [`super::Chunk::longest_extent`]). Wholly free
    /// chunks have none.
    Extent,
    /// Of the free pages in a row across the chunk's start, where the chunk before is not wholly
    /// free (see `stretches`).
    Stretch,
}

/// A length as an index knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Class(pub u8);

impl Class {
    /// The class of an extent, less than a chunk: pairs of pages.
    pub fn of_extent(pages: usize) -> Class {
        const _: () = assert!((CHUNK_PAGES - 1) / 2 <= u8::MAX as usize);
        Class((pages / 2) as u8)
    }

    /// The class of a stretch: eight to a doubling from a chunk on, 0 below.
    pub fn of_stretch(pages: usize) -> Class {
        match pages.checked_ilog2() {
            Some(log) if pages >= CHUNK_PAGES => {
                let doublings = (log - CHUNK_PAGES.ilog2()) as usize;
                Class((1 + doublings * 8 + (pages >> (log - 3)) % 8) as u8)
            }
            _ => Class(0),
        }
    }

    /// The next class: all of its lengths are longer than those of this one.
    pub fn next(self) -> Class {
        Class(self.0.saturating_add(1))
    }
}

impl Length {
    /// The bound of eight chunks.
    fn bound(self, at: usize) -> &'static AtomicU8 {
        &TABLES.groups[at / FANOUT[1]].bounds[self as usize][at % FANOUT[1]]
    }

    /// The bound of a group.
    fn group_bound(self, at: usize) -> &'static AtomicU8 {
        &TABLES.areas[at / FANOUT[2]].bounds[self as usize][at % FANOUT[2]]
    }

    /// The bound of an area.
    fn area_bound(self, at: usize) -> &'static AtomicU8 {
        &TABLES.areas[at].most[self as usize]
    }

    fn bounds(self, chunk: usize) -> [&'static AtomicU8; 3] {
        [self.bound(chunk / FANOUT[0]), self.group_bound(chunk / GROUP), self.area_bound(chunk / AREA)]
    }

    /// The length of a chunk within the arena's bound.
    fn of(self, chunk: usize) -> u8 {
        // SAFETY: committed, and the caller holds the buddy's lock.
        unsafe { (*arena::chunk(chunk)).lengths[self as usize] }
    }

    /// Records the length of a chunk within the arena's bound.
    pub fn set(self, chunk: usize, class: Class) {
        // SAFETY: as above; no reference to the chunk lives.
        unsafe { (*arena::chunk(chunk)).lengths[self as usize] = class.0 };
        let lower = self.bounds(chunk).into_iter().filter(|bound| bound.load(Relaxed) < class.0);
        lower.for_each(|bound| bound.store(class.0, Relaxed));
    }

    /// Whether that is what [`Length::set`] recorded.
    pub fn is(self, chunk: usize, class: Class) -> bool {
        self.of(chunk) == class.0 && self.bounds(chunk).iter().all(|bound| bound.load(Relaxed) >= class.0)
    }

    /// The chunks of that class, not 0, or a higher one, from the lowest on. The search reads the
    /// chunks below `most` bounds of eight. It may miss some then, and a later one finds them.
    pub fn with(self, class: Class, most: usize) -> impl Iterator<Item = usize> {
        let end = arena::chunks_committed();
        let least = class.0;
        let chunk = move |at| if at < end { self.of(at) } else { 0 };
        let bound = move |at| self.bound(at).load(Relaxed);
        let group = move |at| self.group_bound(at).load(Relaxed);
        (0..end.div_ceil(AREA))
            .filter(move |&at| self.area_bound(at).load(Relaxed) >= least)
            .flat_map(move |at| above(at, FANOUT[2], least, group, self.area_bound(at)))
            .flat_map(move |at| above(at, FANOUT[1], least, bound, self.group_bound(at)))
            .take(most)
            .flat_map(move |at| above(at, FANOUT[0], least, chunk, self.bound(at)))
            .take_while(move |&chunk| chunk < end)
    }
}

/// Of the `fanout` entries that `bound` covers, which start at entry `at * fanout`, those that are
/// at least `least`. If there are none, lowers `bound` to the largest entry.
fn above(
    at: usize,
    fanout: usize,
    least: u8,
    length: impl Fn(usize) -> u8 + Copy,
    bound: &AtomicU8,
) -> impl Iterator<Item = usize> {
    let all = at * fanout..(at + 1) * fanout;
    let first = all.clone().find(|&at| length(at) >= least);
    if first.is_none() {
        bound.store(all.clone().map(length).max().unwrap_or(0), Relaxed);
    }
    (first.unwrap_or(all.end)..all.end).filter(move |&at| length(at) >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_long_enough_are_found_and_bounds_fall() {
        let lengths = [0, 9, 0, 3, 0, 7, 0, 0, 255, 1];
        let bound = AtomicU8::new(255);
        let found = |at, least| above(at, 8, least, |at| lengths.get(at).copied().unwrap_or(0), &bound);
        assert!(found(0, 4).eq([1, 5]) && found(0, 9).eq([1]) && found(1, 1).eq([8, 9]));
        assert_eq!(bound.load(Relaxed), 255);
        assert_eq!(found(0, 10).next(), None);
        assert_eq!(bound.load(Relaxed), 9, "the search lowered the bound");
    }

    #[test]
    fn classes_of_stretches_grow_with_their_length() {
        assert_eq!(
            [0, 511, 512, 575, 576, 1023, 1024].map(|pages| Class::of_stretch(pages).0),
            [0, 0, 1, 1, 2, 8, 9]
        );
        let most = Class::of_stretch(1 << 28);
        assert!(most.0 < u8::MAX && most.next() > most);
    }
}

//! How many free pages lie in a row: two indices by chunk, with bounds for 64 and 4096 chunks.
//!
//! ```text
//!   extents     0   24    0  255 │   0    3    0    0 │ …    the longest in the chunk, all with memory
//!   stretches   0    0   17    0 │   0    0    9    0 │ …    the one across the chunk's start
//!   bounds                ≤ 255  │             ≤ 3    │ …    of each group of 64, and of 64 groups
//! ```
//!
//! A length is a class, so that a byte holds it. A search returns the lowest chunks that may have
//! enough. A length that exceeds a bound raises it, and a search that finds nothing below a bound
//! lowers it. So a change costs a few comparisons, and a search of a terabyte looks at 128 bounds
//! at first. Guarded by the buddy's lock.

use super::whole::TABLES;
use crate::pages::CHUNK_PAGES;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

const GROUP: usize = 64;

/// An index of lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    /// Of the longest extent in the chunk (see [`super::Chunk::longest_extent`]). Wholly free chunks
    /// have none.
    Extent,
    /// Of the free pages in a row across the chunk's start, where the chunk before is not wholly
    /// free (see `stretches`).
    Stretch,
}

/// A length as an index knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Class(pub u8);

impl Class {
    /// The class of an extent, less than a chunk: pairs of pages. All medium classes have an even
    /// number of pages.
    pub fn of_extent(pages: usize) -> Class {
        const _: () = assert!((CHUNK_PAGES - 1) / 2 <= u8::MAX as usize);
        Class((pages / 2) as u8)
    }

    /// The least class of extents that all have `pages` pages.
    pub fn of_enough(pages: usize) -> Class {
        Class(pages.div_ceil(2) as u8)
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

    /// The next class, of which each stretch is longer than those of this one.
    pub fn next(self) -> Class {
        Class(self.0.saturating_add(1))
    }
}

impl Length {
    fn of(self, chunk: usize) -> &'static AtomicU8 {
        &TABLES.groups[chunk / GROUP].lengths[self as usize][chunk % GROUP]
    }

    /// The bound of a group.
    fn bound(self, group: usize) -> &'static AtomicU8 {
        &TABLES.areas[group / GROUP].bounds[self as usize][group % GROUP]
    }

    /// The bound of an area of 64 groups.
    fn area_bound(self, area: usize) -> &'static AtomicU8 {
        &TABLES.areas[area].most[self as usize]
    }

    /// Records the length of a chunk.
    pub fn set(self, chunk: usize, class: Class) {
        let [length, bound, area] =
            [self.of(chunk), self.bound(chunk / GROUP), self.area_bound(chunk / GROUP / GROUP)];
        if length.load(Relaxed) != class.0 {
            length.store(class.0, Relaxed);
            [bound, area].into_iter().filter(|bound| bound.load(Relaxed) < class.0).for_each(|bound| {
                bound.store(class.0, Relaxed);
            });
        }
    }

    /// Whether that is what [`Length::set`] recorded.
    pub fn is(self, chunk: usize, class: Class) -> bool {
        self.of(chunk).load(Relaxed) == class.0
            && self.bound(chunk / GROUP).load(Relaxed) >= class.0
            && self.area_bound(chunk / GROUP / GROUP).load(Relaxed) >= class.0
    }

    /// The chunks below `end` of that class, or a higher one, from the lowest on.
    pub fn with(self, class: Class, end: usize) -> impl Iterator<Item = usize> {
        (0..end.div_ceil(GROUP * GROUP))
            .filter(move |&area| self.area_bound(area).load(Relaxed) >= class.0)
            .flat_map(move |area| above(area, class, move |group| self.bound(group), self.area_bound(area)))
            .flat_map(move |group| above(group, class, move |chunk| self.of(chunk), self.bound(group)))
            .take_while(move |&chunk| chunk < end)
    }
}

/// Of the 64 entries below entry `at` of the next level, those of `class` or a higher one. If there
/// are none, lowers their bound.
fn above(
    at: usize,
    class: Class,
    entry: impl Fn(usize) -> &'static AtomicU8 + Copy,
    bound: &AtomicU8,
) -> impl Iterator<Item = usize> {
    let all = at * GROUP..(at + 1) * GROUP;
    let length = move |at: usize| entry(at).load(Relaxed);
    let first = all.clone().find(|&at| length(at) >= class.0);
    if first.is_none() {
        bound.store(all.clone().map(length).max().unwrap_or(0), Relaxed);
    }
    (first.unwrap_or(all.end)..all.end).filter(move |&at| length(at) >= class.0)
}

#[cfg(test)]
mod tests {
    use super::super::whole::TABLES;
    use super::*;

    /// Chunks far beyond those that any test commits, which the test leaves as they were.
    #[test]
    fn the_lowest_chunk_that_is_long_enough_is_found_and_bounds_fall() {
        let end = TABLES.groups.len() * GROUP;
        let (low, high) = (end - 2 * GROUP + 7, end - 3);
        let found =
            |pages| Length::Extent.with(Class::of_enough(pages), end).find(|&at| at >= end - 2 * GROUP);
        Length::Extent.set(low, Class::of_extent(20));
        Length::Extent.set(high, Class::of_extent(301));
        assert_eq!([20, 21, 300, 302].map(found), [Some(low), Some(high), Some(high), None]);
        assert_eq!(Length::Extent.with(Class::of_enough(20), end).filter(|&at| at >= low).count(), 2);
        assert_eq!(Length::Extent.with(Class::of_enough(20), high).filter(|&at| at >= low).count(), 1);
        Length::Extent.set(high, Class(0));
        assert!(Length::Extent.is(high, Class(0)) && Length::Extent.is(low, Class(10)));
        let (bound, area) = (Length::Extent.bound(high / GROUP), Length::Extent.area_bound(high / 4096));
        let bounds = || [bound, area].map(|bound| bound.load(Relaxed));
        assert_eq!(bounds(), [150, 150]);
        assert_eq!((found(21), found(20)), (None, Some(low)));
        assert_eq!(bounds(), [0, 150], "the search lowered the bound");
        assert_eq!(found(22), None);
        assert_eq!(bounds(), [0, 10], "and the next one that of the area");
        Length::Extent.set(low, Class(0));
        assert_eq!((found(2), found(2)), (None, None));
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

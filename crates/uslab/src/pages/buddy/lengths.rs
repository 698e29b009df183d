//! How many free pages lie in a row: two indices by chunk, with a bound for 64 chunks.
//!
//! ```text
//!   extents     0   24    0  255 │   0    3    0    0 │ …    the longest in the chunk, all with memory
//!   stretches   0    0   17    0 │   0    0    9    0 │ …    the one across the chunk's start
//!   bounds                ≤ 255  │             ≤ 3    │ …    one for each of the two
//! ```
//!
//! A length is a class, so that a byte holds it. A search returns the lowest chunks that may have
//! enough. The bound of a group rises when a length exceeds it, and a search that finds nothing in a
//! group lowers it. So a change costs one comparison or two, and a search of a terabyte looks at
//! 8192 bounds at most. Guarded by the buddy's lock.

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
        &TABLES.areas[group / 64].bounds[self as usize][group % 64]
    }

    /// Records the length of a chunk.
    pub fn set(self, chunk: usize, class: Class) {
        if self.of(chunk).load(Relaxed) != class.0 {
            self.of(chunk).store(class.0, Relaxed);
            if self.bound(chunk / GROUP).load(Relaxed) < class.0 {
                self.bound(chunk / GROUP).store(class.0, Relaxed);
            }
        }
    }

    /// Whether that is what [`Length::set`] recorded.
    pub fn is(self, chunk: usize, class: Class) -> bool {
        self.of(chunk).load(Relaxed) == class.0 && self.bound(chunk / GROUP).load(Relaxed) >= class.0
    }

    /// The chunks below `end` of that class, or a higher one, from the lowest on.
    pub fn with(self, class: Class, end: usize) -> impl Iterator<Item = usize> {
        let groups =
            (0..end.div_ceil(GROUP)).filter(move |&group| self.bound(group).load(Relaxed) >= class.0);
        let chunks = groups.flat_map(move |group| {
            let all = group * GROUP..(group + 1) * GROUP;
            let length = move |chunk: usize| self.of(chunk).load(Relaxed);
            let first = all.clone().find(|&chunk| length(chunk) >= class.0);
            if first.is_none() {
                let most = all.clone().map(length).max().unwrap_or(0);
                self.bound(group).store(most, Relaxed);
            }
            (first.unwrap_or(all.end)..all.end).filter(move |&chunk| length(chunk) >= class.0)
        });
        chunks.take_while(move |&chunk| chunk < end)
    }
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
        let bound = || Length::Extent.bound(high / GROUP).load(Relaxed);
        assert_eq!(bound(), 150);
        assert_eq!((found(21), found(20)), (None, Some(low)));
        assert_eq!(bound(), 0, "the search lowered the bound");
        Length::Extent.set(low, Class(0));
        assert_eq!(found(2), None);
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

//! Size classes: every 16 bytes up to 128, then four to a doubling, from 1 KiB on five, up to
//! 32 KiB.
//!
//! ```text
//!   1024   1152   1280   1536   1792   2048        four quarters of a doubling, and an eighth:
//!    │  └ a power of two and a header  │            a block of 4 KiB and its header take 4608
//! ```
//!
//! Above 128 bytes an object wastes less than a fifth of its bytes, 11 % on average. Programs ask
//! for powers of two and a few bytes more often than for other large sizes; from 1 KiB on these
//! waste no more than a ninth (ADR 0038). Powers of two are classes; their objects are naturally
//! aligned, because slabs are aligned to their size.

use crate::pages::PAGE_BYTES;

/// Largest size served by a class.
pub const MAX_SMALL_BYTES: usize = 32 << 10;
/// Largest size that the fast path looks up in a table of slots.
pub const MAX_DIRECT_BYTES: usize = 1024;
/// Order of the slabs of a class that serves the whole process.
pub const SLAB_ORDER: u32 = 5;
/// Number of classes.
pub const CLASSES: usize = 45;
/// Granularity of sizes in the table of classes, in bytes.
pub const STEP_BYTES: usize = 16;

/// A size class. The index is always below [`CLASSES`], so the fast path needs no check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class(u8);

/// From this power of two on, a doubling also has a class an eighth above its start.
const EIGHTHS_FROM_BYTES: u32 = 1024;

/// Bytes of each class.
const BYTES: [u32; CLASSES] = {
    let mut bytes = [STEP_BYTES as u32; CLASSES];
    let mut i = 1;
    while i < CLASSES {
        bytes[i] = next(bytes[i - 1]);
        i += 1;
    }
    bytes
};

/// Bytes of the class after the one of `bytes`.
const fn next(bytes: u32) -> u32 {
    let start = 1 << bytes.ilog2();
    if start < 128 {
        bytes + STEP_BYTES as u32
    } else if start >= EIGHTHS_FROM_BYTES && bytes < start + start / 4 {
        bytes + start / 8
    } else {
        bytes + start / 4
    }
}

/// The class of each size, in steps of 16 bytes.
static OF_SIZE: [u8; MAX_SMALL_BYTES / STEP_BYTES + 1] = {
    let mut table = [0; MAX_SMALL_BYTES / STEP_BYTES + 1];
    let (mut i, mut class) = (0, 0);
    while i < table.len() {
        if (BYTES[class] as usize) < i * STEP_BYTES {
            class += 1;
        }
        table[i] = class as u8;
        i += 1;
    }
    table
};

impl Class {
    /// The smallest class for `size` bytes; `None` beyond [`MAX_SMALL_BYTES`].
    #[inline(always)]
    pub fn of(size: usize) -> Option<Class> {
        if size <= MAX_SMALL_BYTES { Some(Class(OF_SIZE[size.div_ceil(STEP_BYTES)])) } else { None }
    }

    /// The smallest class for `size` bytes whose objects are all aligned to `align`, a power of
    /// two.
    #[inline(always)]
    pub fn of_aligned(size: usize, align: usize) -> Option<Class> {
        if align <= STEP_BYTES { Class::of(size) } else { Class::of_widely_aligned(size, align) }
    }

    fn of_widely_aligned(size: usize, align: usize) -> Option<Class> {
        // Slabs are aligned to at least a page; page runs serve larger alignments.
        if align > PAGE_BYTES {
            return None;
        }
        let first = Class::of(size.max(align))?.0;
        (first..CLASSES as u8).map(Class).find(|class| class.bytes() % align == 0)
    }

    /// Bytes of the class's objects.
    #[inline]
    pub fn bytes(self) -> usize {
        BYTES[self.index()] as usize
    }

    /// The alignment of the class's objects: the largest power of two in their size, and a page at
    /// most, to which slabs are aligned.
    pub fn align(self) -> usize {
        (1 << self.bytes().trailing_zeros()).min(PAGE_BYTES)
    }

    /// The class's index, from 0 to [`CLASSES`] - 1.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The class at `index`; `None` from [`CLASSES`] on.
    pub fn at(index: usize) -> Option<Class> {
        (index < CLASSES).then_some(Class(index as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for size in 0..=MAX_SMALL_BYTES {
            let class = Class::of(size).unwrap();
            assert!(class.bytes() >= size);
            assert!(class.index() == 0 || Class::at(class.index() - 1).unwrap().bytes() < size);
        }
        assert_eq!(Class::of(MAX_SMALL_BYTES + 1), None);
        assert_eq!(Class::of(usize::MAX), None);
    }

    #[test]
    fn powers_of_two_are_classes_and_all_are_multiples_of_16() {
        for shift in 4..=15 {
            assert_eq!(Class::of(1 << shift).unwrap().bytes(), 1 << shift);
        }
        assert!(BYTES.iter().all(|bytes| bytes % 16 == 0));
        assert_eq!(BYTES[CLASSES - 1] as usize, MAX_SMALL_BYTES);
    }

    #[test]
    fn mean_waste_is_at_most_an_eighth() {
        // Over all sizes, each equally likely: the share of allocated bytes that was not requested.
        let (mut asked, mut given) = (0, 0);
        for size in 1..=MAX_SMALL_BYTES {
            asked += size;
            given += Class::of(size).unwrap().bytes();
        }
        assert!((given - asked) * 8 <= given, "{} of {given}", given - asked);
        // And in every doubling by itself, from 128 bytes on.
        for shift in 7..15 {
            let (mut asked, mut given) = (0, 0);
            for size in (1 << shift) + 1..=2 << shift {
                asked += size;
                given += Class::of(size).unwrap().bytes();
            }
            assert!((given - asked) * 8 <= given);
        }
    }

    #[test]
    fn a_power_of_two_and_a_header_wastes_at_most_a_ninth() {
        for shift in 10..15 {
            let block = 1 << shift;
            for header in 1..=block / 8 {
                let bytes = Class::of(block + header).unwrap().bytes();
                assert!((bytes - block) * 9 <= bytes);
            }
        }
    }

    #[test]
    fn aligned_classes_keep_their_alignment() {
        for align in [32, 64, 128, 256, 512, 1024, 2048, 4096] {
            for size in [1, 31, 64, 100, 200, 1000, 5000, 32768] {
                let class = Class::of_aligned(size, align).unwrap();
                assert!(class.bytes().is_multiple_of(align) && class.bytes() >= size);
            }
        }
        assert_eq!(Class::of_aligned(64, 8192), None);
    }
}

//! The free objects that a purge has taken from a slab in use, for walks over the objects.
//!
//! A purge takes all objects of free pages, so that no other thread uses them, and lets go of the
//! lists' lock until the pages are gone. The bitmap shows these objects as taken meanwhile.

use super::geometry::Geometry;
use super::one::Slab;
use crate::os::invariant::invariant;
use crate::pages::PAGE_BYTES;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// No purge has objects.
const NONE: u32 = u32::MAX;

/// The slab and the pages of which a purge has the objects. At most one purge works in a cache: it
/// holds the registry's lock. The values change under the lock of the slab's lists.
pub(super) struct Claimed {
    /// The first page of the slab.
    slab: AtomicU32,
    /// The mask of its pages.
    pages: AtomicU64,
}

impl Claimed {
    pub const fn none() -> Claimed {
        Claimed { slab: AtomicU32::new(NONE), pages: AtomicU64::new(0) }
    }

    /// A purge takes the objects of `pages` of `slab`.
    pub fn begin(&self, slab: Slab, pages: u64) {
        invariant!(self.slab.load(Relaxed) == NONE, "one purge works in a cache", slab.0.0);
        self.pages.store(pages, Relaxed);
        self.slab.store(slab.0.0, Relaxed);
    }

    /// The purge has put its objects back.
    pub fn end(&self) {
        self.slab.store(NONE, Relaxed);
    }

    /// The objects of one word of the slab's bitmap that a purge has: free ones. The caller holds
    /// the lock of the slab's lists.
    pub fn in_word(&self, geometry: &Geometry, slab: Slab, word: usize) -> u64 {
        let mut claimed = 0;
        if self.slab.load(Relaxed) == slab.0.0 {
            for_each_object_word(geometry, self.pages.load(Relaxed), |at, bits| {
                claimed |= if at == word { bits } else { 0 };
            });
        }
        claimed
    }
}

/// The bits of `range` in word `word` of a bitmap.
pub(super) fn bits_in(word: usize, range: &Range<usize>) -> u64 {
    let low = range.start.saturating_sub(word * 64).min(64);
    let high = range.end.saturating_sub(word * 64).min(64);
    if low >= high { 0 } else { (u64::MAX >> (64 - (high - low))) << low }
}

/// Each run of set bits of `mask`, as a range.
pub(super) fn runs(mut mask: u64) -> impl Iterator<Item = Range<usize>> {
    core::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let first = mask.trailing_zeros();
        let count = (mask >> first).trailing_ones();
        mask &= !((u64::MAX >> (64 - count)) << first);
        Some(first as usize..(first + count) as usize)
    })
}

/// Calls `visit` with the words of the bitmap in which objects lie in the mask `pages`, and with
/// their bits; each object once.
pub(super) fn for_each_object_word(geometry: &Geometry, pages: u64, mut visit: impl FnMut(usize, u64)) {
    let mut next = 0;
    for run in runs(pages) {
        let objects = geometry.objects_of(run.start * PAGE_BYTES..run.end * PAGE_BYTES);
        // An object of several pages may lie in two runs.
        let objects = objects.start.max(next)..objects.end;
        next = objects.end.max(next);
        if objects.is_empty() {
            continue;
        }
        for word in objects.start / 64..=(objects.end - 1) / 64 {
            visit(word, bits_in(word, &objects));
        }
    }
}

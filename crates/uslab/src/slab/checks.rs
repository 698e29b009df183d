//! Checks a slab before a take or a release: code outside of the library may have overwritten its
//! descriptor.
//!
//! ```text
//!   count = bits     serves
//!   count < bits     a freeing thread is between its two steps, or a bit was set by a wild write:
//!                    the slab is put aside, as a full one, until that free or another is counted
//!   count > bits     never right: reported
//! ```
//!
//! A free sets a bit before it counts it, so more bits than the count are no proof of a fault. Put
//! aside, the slab cannot serve an object that is in use. The check misses a write that sets as
//! many bits as it clears.

use super::lists::{End, List, Lists, list_for};
use super::one::Slab;
use super::pool::Slabs;
use crate::os::corruption::verify;
use crate::pages;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::fence;

/// Words of a bitmap that are counted at each visit. Longer ones, of slabs with more than 4096
/// objects, are counted only when their slab begins to serve: refills of 128 objects visit it 32
/// times in a row, or more.
const MAX_WORDS: usize = 64;
/// Comparisons before a slab is put aside: longer than a freeing thread takes between its steps,
/// unless that thread is off its CPU.
const COMPARISONS: usize = 64;

/// Bits that are set. Most words of a slab are empty or full.
fn population(words: &[AtomicU64]) -> i64 {
    words.iter().fold(0, |sum, word| match word.load(Acquire) {
        0 => sum,
        u64::MAX => sum + 64,
        bits => sum + i64::from(bits.count_ones()),
    })
}

impl Slabs {
    /// Whether the bitmap of `slab`, which is to serve, has as many bits as the slab counts free
    /// objects. Otherwise puts the slab aside. The caller holds the lists' lock.
    #[inline]
    pub(super) fn is_counted(&self, lists: &mut Lists, slab: Slab) -> bool {
        if slab.words(&self.geometry).len() > MAX_WORDS && lists.served == slab.0.0 {
            return true;
        }
        if !self.has_its_count(slab) {
            lists.place(slab, List::Full, End::Last);
            self.serve_if_counted(lists, slab);
            return false;
        }
        lists.served = slab.0.0;
        true
    }

    /// Undoes that a take has just put a slab aside as full, if its bitmap and its count agree by
    /// now: lists it by its count. A freeing thread, which sets the bit and then counts, may have
    /// read the slab's list before the take changed it. The caller holds the lists' lock.
    #[cold]
    pub(super) fn serve_if_counted(&self, lists: &mut Lists, slab: Slab) {
        // See `Slab::is_listed_as_full`.
        fence(SeqCst);
        if self.agrees(slab) {
            let list = list_for(slab.count().load(Acquire), self.geometry.objects);
            lists.place(slab, list, End::First);
        }
    }

    /// Whether the bitmap of `slab` has as many bits as the slab counts free objects, now or soon.
    /// The caller holds the lists' lock, or has the slab in the taking list.
    #[inline]
    pub(super) fn has_its_count(&self, slab: Slab) -> bool {
        self.agrees(slab) || self.is_counted_soon(slab)
    }

    /// Whether the bitmap of `slab` has as many bits as the slab counts free objects, now.
    #[inline]
    pub(super) fn agrees(&self, slab: Slab) -> bool {
        // The count first: a free sets its bits before it counts them.
        let count = i64::from(slab.count().load(Acquire));
        population(slab.words(&self.geometry)) == count
    }

    #[cold]
    fn is_counted_soon(&self, slab: Slab) -> bool {
        let words = slab.words(&self.geometry);
        (0..COMPARISONS).any(|_| {
            core::hint::spin_loop();
            let count = i64::from(slab.count().load(Acquire));
            let bits = population(words);
            let is_possible = bits >= count;
            verify(is_possible, "slab", slab.address(), "a bitmap has the bits that its slab counts");
            bits == count
        })
    }

    /// Whether a slab that a list leads to is one of this cache. The caller holds the lists' lock.
    #[inline]
    pub(super) fn is_own(&self, slab: Slab) -> bool {
        let is_own =
            pages::contains(slab.0) && slab.0.0.is_multiple_of(1 << self.geometry.order) && self.owns(slab.0);
        verify(is_own, "slab lists", self.groups().as_ptr(), "a list leads to slabs of its cache")
    }

    /// Whether the bitmap of a slab of this cache has no bit behind the last object, and its count
    /// is one of its objects. The caller holds the lists' lock, or has the slab in the taking list.
    #[inline]
    pub(super) fn is_servable(&self, slab: Slab) -> bool {
        let geometry = &self.geometry;
        let words = slab.words(geometry);
        let behind = geometry.objects % 64;
        let last = words[words.len() - 1].load(Relaxed);
        let count = slab.count().load(Acquire);
        let is_counted = count <= geometry.objects as i32 && count >= -(geometry.objects as i32);
        let is_sound = is_counted && (behind == 0 || last >> behind == 0);
        verify(is_sound, "slab", slab.address(), "its bitmap and its count are those of its objects")
    }

    /// Whether a slab of the lists is one of this cache that may serve or be released. The caller
    /// holds the lists' lock.
    pub(super) fn is_sound(&self, slab: Slab) -> bool {
        self.is_own(slab) && self.is_servable(slab)
    }

    /// Whether every object of a slab that is about to be released is free.
    pub(super) fn is_all_free(&self, slab: Slab) -> bool {
        let objects = self.geometry.objects;
        let words = slab.words(&self.geometry);
        let (last, whole) =
            words.split_last().map_or((0, words), |(last, whole)| (last.load(Acquire), whole));
        whole.iter().all(|word| word.load(Acquire) == u64::MAX)
            && last == u64::MAX >> (words.len() * 64 - objects)
    }
}

//! Frees: objects go back to their slabs, and slabs move to the lists that fit their counts.

use super::delayed::report_misuse;
use super::lists::list_for;
use super::misuse::{Misuse, classify};
use super::one::{NONE, Slab};
use super::pool::Slabs;
use super::take::VISITS;
use super::words;
use crate::os::invariant::invariant;
use crate::pages::{self, PAGE_SHIFT, PageIndex};
use crate::sync::prefetch_for_write;
use core::sync::atomic::Ordering::Relaxed;

/// Slabs that one hold of the lists' lock moves to other lists.
const TOGETHER: usize = 8;
/// A place for a slab.
const NO_SLAB: Slab = Slab(PageIndex(NONE));

/// Distance, in objects, at which a free of many objects prefetches the slab of a later one.
const AHEAD: usize = 8;

impl Slabs {
    /// Frees objects into their slabs. It reports each pointer that is no object of this cache, and
    /// leaves it alone.
    ///
    /// Takes the lists' lock only if a slab changes lists. May release pages to the system. Never
    /// fails.
    ///
    /// # Safety
    /// Each object must have been taken from these slabs, and must not be used any more. The free
    /// reports violations that the page map or the bitmap shows.
    pub unsafe fn free(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.flush_to_slabs(objects, usize::MAX, Self::relist) };
    }

    /// As [`Slabs::free`], but stops after `VISITS` slabs. Both go from the end of `objects`.
    /// Returns how many objects are left at the start of `objects`.
    ///
    /// # Safety
    /// As [`Slabs::free`], for the objects that it frees.
    pub unsafe fn free_last(&self, objects: &[*mut u8]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.flush_to_slabs(objects, VISITS, Self::relist) }
    }

    /// As [`Slabs::free`], but keeps slabs that become empty: the target rises to their number. The
    /// target halves each second, and [`Slabs::shrink_to_target`] releases slabs beyond it.
    ///
    /// # Safety
    /// As [`Slabs::free`].
    pub unsafe fn free_and_keep(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.flush_to_slabs(objects, usize::MAX, Self::relist_and_keep) };
    }

    /// # Safety
    /// As [`Slabs::free`].
    #[inline]
    unsafe fn flush_to_slabs(
        &self,
        objects: &[*mut u8],
        most_slabs: usize,
        relist: impl Fn(&Self, &[Slab]),
    ) -> usize {
        let bytes = self.slab_bytes();
        let (mut given, mut visits) = (0, 0);
        let (mut moved, mut moves) = ([NO_SLAB; TOGETHER], 0);
        let mut rest = objects;
        while let Some(&first) = rest.last()
            && visits < most_slabs
        {
            visits += 1;
            if let Some(later) = rest.len().checked_sub(AHEAD) {
                self.prefetch_slab_of(rest[later]);
            }
            let Some(slab) = self.slab_of(first) else {
                report_misuse(classify(first, |owner| self.is_owned_by(owner)), first, self.name);
                rest = &rest[..rest.len() - 1];
                continue;
            };
            let start = slab.address() as usize;
            let words = slab.words(&self.geometry);
            let mut run = 0;
            // Adjacent entries of `objects` whose bits share a word are set in one step.
            let (mut word, mut mask) = (usize::MAX, 0u64);
            while let Some((&object, others)) = rest.split_last() {
                let offset = (object as usize).wrapping_sub(start);
                if offset >= bytes {
                    break;
                }
                rest = others;
                let Some(index) = self.geometry.index_of(offset) else {
                    report_misuse(self.misuse_at(start, offset), object, self.name);
                    continue;
                };
                if index / 64 != word {
                    run += self.free_word(words, word, mask, start);
                    (word, mask) = (index / 64, 0);
                }
                let bit = 1u64 << (index % 64);
                if mask & bit != 0 {
                    report_misuse(Misuse::DoubleFree, object, self.name);
                    continue;
                }
                mask |= bit;
                let (count, bits) = self.neighbours_of(rest, object, index);
                if mask & bits == 0 {
                    mask |= bits;
                    rest = &rest[..rest.len() - count];
                }
            }
            run += self.free_word(words, word, mask, start);
            if run > 0 {
                let before = words::add(slab.count(), run);
                let objects = self.geometry.objects;
                invariant!(
                    before + run as i32 <= objects as i32,
                    "a slab counts no more free objects than it has",
                    slab.address()
                );
                let is_moved = list_for(before, objects) != list_for(before + run as i32, objects);
                if is_moved || slab.is_listed_as_full() && !moved[..moves].contains(&slab) {
                    moved[moves] = slab;
                    moves += 1;
                }
            }
            if moves == TOGETHER {
                relist(self, &moved);
                moves = 0;
            }
            given += run;
        }
        if moves > 0 {
            relist(self, &moved[..moves]);
        }
        self.note_free();
        self.count_taken(-(given as i64));
        rest.len()
    }

    /// Looks for neighbours of `object`, the object at `index` of its slab, at the end of `rest`,
    /// in falling or rising order. Returns how many there are, and their bits in the word of
    /// `object`. A batch that was allocated in order needs no division for these.
    #[inline(always)]
    fn neighbours_of(&self, rest: &[*mut u8], object: *mut u8, index: usize) -> (usize, u64) {
        let (stride, bit) = (self.geometry.object_bytes, index % 64);
        let count = |most: usize, step: usize| neighbours(rest, most, object, step);
        let ones = |count: usize| !(u64::MAX << count);
        match count(bit, stride.wrapping_neg()) {
            0 => {
                let count = count((63 - bit).min(self.geometry.objects - 1 - index), stride);
                // In two steps: `bit` may be 63.
                (count, ones(count) << bit << 1)
            }
            count => (count, ones(count) << (bit - count)),
        }
    }

    /// Prefetches the cache line that a free of `object` will write: its slab's descriptor.
    #[inline]
    fn prefetch_slab_of(&self, object: *const u8) {
        if let Some(page) = pages::page_of(object) {
            let first = PageIndex(page.0 & !((1 << self.geometry.order) - 1));
            prefetch_for_write(pages::descriptor(first));
        }
    }

    /// Sets the bits of one word, and reports a bit that was set already as a double free. Returns
    /// how many objects became free.
    fn free_word(
        &self,
        words: &[crate::sync::atomic::AtomicU64],
        word: usize,
        mask: u64,
        start: usize,
    ) -> usize {
        if mask == 0 {
            return 0;
        }
        let twice = words::free(&words[word], mask);
        if twice != 0 {
            let index = word * 64 + twice.trailing_zeros() as usize;
            report_misuse(
                Misuse::DoubleFree,
                (start + index * self.geometry.object_bytes) as *const u8,
                self.name,
            );
        }
        (mask & !twice).count_ones() as usize
    }

    /// Returns what is wrong with a free of `object` into these slabs; `None` if it is an object of
    /// theirs that is in use or in a sheaf.
    pub fn misuse_of(&self, object: *const u8) -> Option<Misuse> {
        let Some(slab) = self.slab_of(object) else {
            return Some(classify(object, |owner| self.is_owned_by(owner)));
        };
        let start = slab.address() as usize;
        let offset = object as usize - start;
        let Some(index) = self.geometry.index_of(offset) else { return Some(self.misuse_at(start, offset)) };
        // No other thread can set the bit of an object that the caller owns.
        let word = slab.words(&self.geometry)[index / 64].load(Relaxed);
        (word >> (index % 64) & 1 != 0).then_some(Misuse::DoubleFree)
    }

    /// The slab of `page`, which belongs to these slabs, and the index of the object that starts at
    /// `object` on that page; `None` if no object starts there.
    #[inline]
    fn index_at(&self, page: PageIndex, object: *const u8) -> Option<(Slab, usize)> {
        let slab = Slab(PageIndex(page.0 & !((1 << self.geometry.order) - 1)));
        let index = self.geometry.index_of(object as usize - slab.address() as usize)?;
        Some((slab, index))
    }

    /// Whether an object starts at `object` that is in use or in a sheaf. `page` is the object's,
    /// and belongs to these slabs.
    #[inline]
    pub fn is_taken_at(&self, page: PageIndex, object: *const u8) -> bool {
        self.index_at(page, object).is_some_and(|(slab, index)| {
            slab.words(&self.geometry)[index / 64].load(Relaxed) >> (index % 64) & 1 == 0
        })
    }

    /// Whether an object starts at `object`. `page` is its page, and belongs to these slabs.
    #[inline]
    pub fn is_start_at(&self, page: PageIndex, object: *const u8) -> bool {
        self.index_at(page, object).is_some()
    }

    /// Whether `objects` may all be objects of these slabs: they lie in the arena, and are aligned
    /// as objects are.
    #[inline]
    pub fn may_have(&self, objects: &[*mut u8]) -> bool {
        pages::may_contain(objects, 1 << self.geometry.object_bytes.trailing_zeros().min(PAGE_SHIFT))
    }

    /// Whether an object of these slabs starts at `pointer`.
    #[inline]
    pub fn has_object_at(&self, pointer: *const u8) -> bool {
        let offset = |slab: Slab| pointer.addr() - slab.address().addr();
        self.slab_of(pointer).is_some_and(|slab| self.geometry.index_of(offset(slab)).is_some())
    }

    /// The object of these slabs that contains the byte at `pointer`, and whether it is free in its
    /// slab.
    pub fn object_around(&self, pointer: *const u8) -> Option<(*mut u8, bool)> {
        let slab = self.slab_of(pointer)?;
        let index = self.geometry.index_around(pointer as usize - slab.address() as usize)?;
        let word = slab.words(&self.geometry)[index / 64].load(Relaxed);
        let start = slab.address().wrapping_add(index * self.geometry.object_bytes);
        Some((start, word >> (index % 64) & 1 != 0))
    }

    /// Classifies a pointer to the byte at `offset` of the slab at `start`, where no object starts.
    #[cold]
    fn misuse_at(&self, start: usize, offset: usize) -> Misuse {
        self.geometry
            .index_around(offset)
            .map_or(Misuse::NotAnObject, |index| Misuse::Inside(start + index * self.geometry.object_bytes))
    }

    /// The slab that `object` lies in, if it is one of these slabs.
    #[inline]
    pub(super) fn slab_of(&self, object: *const u8) -> Option<Slab> {
        let page = pages::page_of(object)?;
        let first = PageIndex(page.0 & !((1 << self.geometry.order) - 1));
        self.owns(page).then_some(Slab(first))
    }

    /// Moves slabs to the lists that their counts call for; releases empty slabs beyond the target.
    #[cold]
    fn relist(&self, slabs: &[Slab]) {
        let (mut released, mut count) = ([None; 2 * TOGETHER], 0);
        let warm = self.warm_slabs();
        self.place_all(slabs, |lists, placed| {
            lists.target = lists.target.max(lists.empty().min(warm));
            // Up to two for each: a single one would never catch up with a target that fell.
            for place in &mut released[count..count + 2 * placed] {
                if lists.empty() > lists.target {
                    lists.note_shrink();
                    *place = self.take_empty_slab(lists);
                }
            }
            count += 2 * placed;
        });
        for slab in released.into_iter().flatten() {
            self.free_slab(slab, self.temperature);
        }
    }

    /// As [`Slabs::relist`], but raises the target instead of releasing slabs.
    #[cold]
    fn relist_and_keep(&self, slabs: &[Slab]) {
        self.place_all(slabs, |lists, _| lists.target = lists.target.max(lists.empty()));
    }
}

/// [`neighbours`] compares this many pointers one by one, and then blocks of this many: where
/// objects were freed at random, most rows are shorter than a block.
const BLOCK: usize = 8;

/// Returns how many of the last `most` pointers of `rest`, from its last on, are `object` plus
/// multiples of `step` in order.
#[inline(always)]
pub(super) fn neighbours(rest: &[*mut u8], most: usize, object: *mut u8, step: usize) -> usize {
    let mut next = object.addr().wrapping_add(step);
    let mut count = 0;
    while count < most && count < rest.len() && rest[rest.len() - 1 - count].addr() == next {
        next = next.wrapping_add(step);
        count += 1;
        if count == BLOCK {
            let start = rest.len().saturating_sub(most);
            return count + row_of(&rest[start..rest.len() - count], next, step);
        }
    }
    count
}

/// The part of [`neighbours`] behind the first block. The last pointer of `rest` should be `next`.
#[inline(never)]
fn row_of(rest: &[*mut u8], mut next: usize, step: usize) -> usize {
    let mut left = rest;
    while let Some((before, block)) = left.split_last_chunk::<BLOCK>() {
        let end = next.wrapping_add(step.wrapping_mul(BLOCK));
        let mut expected = end;
        let differences = block.iter().fold(0, |differences, pointer| {
            expected = expected.wrapping_sub(step);
            differences | (pointer.addr() ^ expected)
        });
        if differences != 0 {
            break;
        }
        (left, next) = (before, end);
    }
    while let Some((&last, before)) = left.split_last()
        && last.addr() == next
    {
        (left, next) = (before, next.wrapping_add(step));
    }
    rest.len() - left.len()
}

//! A chunk: 512 pages, and two bitmaps that mark the free pages and those that read as zero.
//!
//! A free buddy of order k is an aligned block of 2^k set bits, which [`find`] finds by folding the
//! map onto itself. So there are no free lists to merge: freeing coalesces by itself, and the chunk
//! can allocate and free runs of any length.

use super::CHUNK_PAGES;
use crate::os::invariant::invariant;

/// Words of a bitmap.
pub const WORDS: usize = CHUNK_PAGES / 64;
/// Largest order: the whole chunk.
pub const MAX_ORDER: u32 = 9;
/// "No chunk", in links and heads of lists.
pub const NONE: u32 = u32::MAX;

/// One bit a page.
pub type Map = [u64; WORDS];

/// The metadata of one chunk. Zeroed memory is a valid chunk, all in use.
#[repr(C)]
pub struct Chunk {
    /// Free pages.
    pub free: Map,
    /// Pages that were untouched since the system provided them, so that they read as zero. Exact
    /// for free pages; an allocation leaves its bits unchanged, for runs that come back untouched.
    pub zero: Map,
    /// Set bits of `free`.
    pub free_pages: u16,
    /// Free pages with memory behind them: those that are not known to read as zero, and in a huge
    /// page all of them.
    pub dirty_pages: u16,
    /// The level of the list that the chunk stands in (see `buddy`), valid while `free_pages > 0`.
    pub level: u8,
    /// The largest order that fits, which names the list together with `level`.
    pub order: u8,
    /// How often the kernel refused the chunk a huge page because some of its pages were busy; see
    /// `buddy/collapse.rs`.
    pub busy_collapses: u8,
    /// The next chunk of that list.
    pub next: u32,
    /// The chunk before this one.
    pub prev: u32,
    /// The period of the purge policy in which the system refused to purge the chunk, because its
    /// memory is locked; 0 for none. See `purge`.
    pub refused_in: u32,
    /// The chunk is unmapped: its memory and its addresses went back to the system. All of its
    /// pages are free.
    pub is_unmapped: bool,
    /// A huge page backs the chunk, or will at the first touch: every page has memory.
    pub is_huge: bool,
    /// The library's advice to the kernel for the chunk's addresses.
    pub advice: Advice,
    /// The pages of all runs but dense ones ([`super::Fill::Dense`]) that came from the chunk since
    /// it was wholly free. `None` before its first run, and of a chunk that is not the library's.
    pub sparse_pages: Option<u16>,
    /// The free pages in a row at the start and at the end, noted when the chunk last stood in its
    /// list; see `buddy/stretches.rs`.
    pub free_ends: [u16; 2],
    /// See `buddy/lengths.rs`.
    pub lengths: [u8; 2],
    /// Pages of sparse runs that are not charged; see `buddy/sparse.rs`.
    pub uncharged_pages: i16,
}

/// The library's advice to the kernel about huge pages for a chunk. Zeroed memory is
/// [`Advice::Small`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Advice {
    /// Back it with small pages, as all fresh mappings.
    Small,
    /// Back it with a huge page.
    Huge,
    /// As `Small`, after `Huge`: its huge page was split.
    Revoked,
    /// Unknown: the kernel moved another mapping there, or refused to change the advice.
    Unknown,
}

/// The bits `[first, first + count)` of word `word`, both clipped to it.
fn mask(word: usize, first: usize, count: usize) -> u64 {
    let low = first.max(word * 64);
    let high = (first + count).min((word + 1) * 64);
    if low >= high {
        return 0;
    }
    let ones = high - low;
    (u64::MAX >> (64 - ones)) << (low - word * 64)
}

/// The shortest extent that [`Chunk::extent`] finds.
pub const MIN_EXTENT_PAGES: usize = 8;

/// The bits of which the next 7 are set, too.
fn starts_of_eight(mut map: Map) -> Map {
    for shift in [1, 2, 4] {
        for word in 0..WORDS {
            let above = map.get(word + 1).map_or(0, |next| next << (64 - shift));
            map[word] &= map[word] >> shift | above;
        }
    }
    map
}

/// Folds a word so that a bit is set where an aligned block of `2^order` set bits starts; order up
/// to 6.
fn blocks(mut word: u64, order: u32) -> u64 {
    /// Bits at multiples of 1, 2, 4 … 64.
    const STARTS: [u64; 7] = [
        u64::MAX,
        0x5555_5555_5555_5555,
        0x1111_1111_1111_1111,
        0x0101_0101_0101_0101,
        0x0001_0001_0001_0001,
        0x0000_0001_0000_0001,
        1,
    ];
    for step in 0..order {
        word &= word >> (1 << step);
    }
    word & STARTS[order as usize]
}

/// The start of the first aligned block of `2^order` set bits.
pub fn find(map: &Map, order: u32) -> Option<usize> {
    if order <= 6 {
        map.iter().enumerate().find_map(|(i, &word)| {
            let starts = blocks(word, order);
            (starts != 0).then(|| i * 64 + starts.trailing_zeros() as usize)
        })
    } else {
        let words = 1 << (order - 6);
        map.chunks_exact(words).position(|part| part.iter().all(|&w| w == u64::MAX)).map(|i| i * words * 64)
    }
}

/// The start of the first `pages` set bits in a row, or more.
pub fn find_row(map: &Map, pages: usize) -> Option<usize> {
    let mut found = None;
    for_each_run(map, |first, count| found = found.or((count >= pages).then_some(first)));
    found
}

/// The largest order for which [`find`] finds a block; `None` if no bit is set.
pub fn largest_order(map: &Map) -> Option<u32> {
    // Most chunks are full or nearly empty: test for a full one, then from the largest order down.
    if map.iter().all(|&w| w == 0) {
        return None;
    }
    (0..=MAX_ORDER).rev().find(|&order| find(map, order).is_some())
}

impl Chunk {
    /// A fresh chunk: all free, all zero.
    pub fn reset_free(&mut self) {
        self.free = [u64::MAX; WORDS];
        self.zero = [u64::MAX; WORDS];
        self.free_pages = CHUNK_PAGES as u16;
        self.dirty_pages = 0;
        self.order = MAX_ORDER as u8;
        (self.is_huge, self.advice) = (false, Advice::Small);
    }

    /// Of the free pages `pages` of word `word`, those with memory behind them.
    fn dirty(&self, word: usize, pages: u64) -> u64 {
        if self.is_huge { pages } else { pages & !self.zero[word] }
    }

    /// The free pages in a row at the start, and at the end.
    pub fn count_ends(&self) -> [u16; 2] {
        let first_used = (0..WORDS).find(|&word| self.free[word] != u64::MAX);
        let last_used = (0..WORDS).rev().find(|&word| self.free[word] != u64::MAX);
        let start =
            first_used.map_or(CHUNK_PAGES, |word| word * 64 + self.free[word].trailing_ones() as usize);
        let end = last_used
            .map_or(CHUNK_PAGES, |word| (WORDS - 1 - word) * 64 + self.free[word].leading_ones() as usize);
        [start as u16, end as u16]
    }

    /// Calls `visit(first, count)` for each extent: free pages in a row that all have memory, at
    /// least [`MIN_EXTENT_PAGES`].
    fn for_each_extent(&self, mut visit: impl FnMut(usize, usize)) {
        if usize::from(self.dirty_pages) >= MIN_EXTENT_PAGES {
            let starts = starts_of_eight(core::array::from_fn(|word| self.dirty(word, self.free[word])));
            for_each_run(&starts, |first, count| visit(first, count + MIN_EXTENT_PAGES - 1));
        }
    }

    /// The pages of the longest extent, or 0.
    pub fn longest_extent(&self) -> usize {
        let mut longest = 0;
        self.for_each_extent(|_, count| longest = longest.max(count));
        longest
    }

    /// The first page of the lowest extent of at least `pages` pages, which are no fewer than
    /// [`MIN_EXTENT_PAGES`].
    pub fn extent(&self, pages: usize) -> Option<usize> {
        let mut found = None;
        self.for_each_extent(|first, count| found = found.or((count >= pages).then_some(first)));
        found
    }

    /// A huge page will back the chunk from the first touch on, or backs it now.
    pub fn back_with_huge(&mut self) {
        self.is_huge = true;
        self.dirty_pages = self.free_pages;
    }

    /// The chunk's huge page is about to be split. All of its pages have memory, so none counts as
    /// known to be zero any more: neither free ones, nor those that come back untouched later.
    pub fn break_huge(&mut self) {
        if core::mem::take(&mut self.is_huge) {
            self.zero = [0; WORDS];
        }
    }

    /// Whether a purge would split the chunk's huge page.
    pub fn keeps_huge(&self) -> bool {
        self.is_huge && !self.is_all_free()
    }

    /// Whether all pages of the chunk are free.
    pub fn is_all_free(&self) -> bool {
        usize::from(self.free_pages) == CHUNK_PAGES
    }

    /// Takes all pages of a chunk that is all free; returns them for [`Chunk::restore`].
    pub fn claim_whole(&mut self) -> Map {
        invariant!(self.is_all_free(), "a chunk that goes as a whole is all free", self.free_pages);
        self.break_huge();
        (self.free, self.free_pages, self.dirty_pages) = ([0; WORDS], 0, 0);
        [u64::MAX; WORDS]
    }

    /// Whether pages `[first, first + count)` are all free.
    pub fn is_free(&self, first: usize, count: usize) -> bool {
        (first / 64..=(first + count - 1) / 64).all(|word| !self.free[word] & mask(word, first, count) == 0)
    }

    /// Takes free pages `[first, first + count)`; returns how many of them are known to be zero.
    pub fn claim(&mut self, first: usize, count: usize) -> usize {
        invariant!(count > 0 && first + count <= CHUNK_PAGES, "a claim ends within its chunk", first);
        invariant!(usize::from(self.free_pages) >= count, "claimed pages are counted as free", count);
        let (mut zero, mut dirty) = (0, 0);
        for word in first / 64..=(first + count - 1) / 64 {
            let mask = mask(word, first, count);
            invariant!(self.free[word] & mask == mask, "claimed pages are free", self.free[word]);
            self.free[word] &= !mask;
            zero += (self.zero[word] & mask).count_ones() as usize;
            dirty += self.dirty(word, mask).count_ones();
        }
        self.free_pages -= count as u16;
        self.dirty_pages -= dirty as u16;
        zero
    }

    /// Whether one of the pages `[first, first + count)` is free.
    fn has_free(&self, first: usize, count: usize) -> bool {
        (first / 64..=(first + count - 1) / 64).any(|word| self.free[word] & mask(word, first, count) != 0)
    }

    /// As [`Chunk::unclaim`]. Returns false, with nothing changed, if one of the pages is free
    /// already.
    pub fn free_untouched(&mut self, first: usize, count: usize) -> bool {
        let were_taken = !self.has_free(first, count);
        if were_taken {
            self.unclaim(first, count);
        }
        were_taken
    }

    /// Undoes [`Chunk::claim`] for pages that were not touched since: `zero` still has their bits,
    /// unless the chunk had a huge page meanwhile, which gave them memory.
    pub fn unclaim(&mut self, first: usize, count: usize) {
        let mut dirty = 0;
        for word in first / 64..=(first + count - 1) / 64 {
            let mask = mask(word, first, count);
            invariant!(self.free[word] & mask == 0, "pages that were not taken cannot come back", first);
            self.free[word] |= mask;
            dirty += self.dirty(word, mask).count_ones();
        }
        self.free_pages += count as u16;
        self.dirty_pages += dirty as u16;
        if self.is_all_free() && self.zero == [u64::MAX; WORDS] {
            // No page was touched, so that no huge page came.
            (self.is_huge, self.dirty_pages) = (false, 0);
        }
    }

    /// Frees pages `[first, first + count)`. They count as dirty, or with `zero` as pages without
    /// memory: no huge page backs them. Returns false, with nothing changed, if one of them is free
    /// already.
    pub fn free(&mut self, first: usize, count: usize, zero: bool) -> bool {
        if self.has_free(first, count) {
            return false;
        }
        if zero {
            self.break_huge();
        }
        for word in first / 64..=(first + count - 1) / 64 {
            let mask = mask(word, first, count);
            self.free[word] |= mask;
            if zero {
                self.zero[word] |= mask;
            } else {
                self.zero[word] &= !mask;
            }
        }
        self.free_pages += count as u16;
        if !zero {
            self.dirty_pages += count as u16;
        }
        true
    }

    /// The pages `[first, first + count)` of one word that have memory, as a mask from `first` on.
    pub fn memory_mask(&self, first: usize, count: usize) -> u64 {
        self.dirty(first / 64, mask(first / 64, first, count)) >> (first % 64)
    }

    /// Frees pages `[first, first + count)` of one word. Those in the mask `dirty` count as dirty,
    /// the others as known to be zero. Returns false, with nothing changed, if one of them is free
    /// already.
    pub fn free_sparse(&mut self, first: usize, count: usize, dirty: u64) -> bool {
        let (word, all) = (first / 64, mask(first / 64, first, count));
        let dirty = (dirty << (first % 64)) & all;
        if self.free[word] & all != 0 {
            return false;
        }
        self.free[word] |= all;
        self.zero[word] = self.zero[word] & !all | all & !dirty;
        self.free_pages += count as u16;
        self.dirty_pages += self.dirty(word, all).count_ones() as u16;
        true
    }

    /// The free pages that a purge takes: each aligned block of `block` free pages with a dirty one
    /// among them, and a word of 64 free pages as a whole if any of them is dirty.
    pub fn dirty_blocks(&self, block: usize) -> Map {
        let order = block.trailing_zeros();
        core::array::from_fn(|word| {
            let free = self.free[word];
            let dirty = self.dirty(word, free);
            if free == u64::MAX && dirty != 0 {
                return u64::MAX;
            }
            let (mut starts, mut taken) = (blocks(free, order), 0);
            while starts != 0 {
                let whole = (u64::MAX >> (64 - block)) << starts.trailing_zeros();
                starts &= starts - 1;
                taken |= if dirty & whole != 0 { whole } else { 0 };
            }
            taken
        })
    }

    /// Takes [`Chunk::dirty_blocks`] for a purge, and returns them. It breaks a huge page.
    pub fn claim_dirty(&mut self, block: usize) -> Map {
        self.break_huge();
        let taken = self.dirty_blocks(block);
        for (word, &pages) in taken.iter().enumerate() {
            self.dirty_pages -= self.dirty(word, pages).count_ones() as u16;
            self.free_pages -= pages.count_ones() as u16;
            self.free[word] &= !pages;
        }
        taken
    }

    /// Frees the pages that [`Chunk::claim_dirty`] or [`Chunk::claim_whole`] took. `zero` is true
    /// if the purge succeeded.
    pub fn restore(&mut self, taken: &Map, zero: bool) {
        for (i, &mask) in taken.iter().enumerate() {
            invariant!(self.free[i] & mask == 0, "no page was freed while it was being purged", i);
            self.free[i] |= mask;
            self.free_pages += mask.count_ones() as u16;
            if zero {
                self.zero[i] |= mask;
            } else {
                // Pages that were clean are still clean.
                self.dirty_pages += (mask & !self.zero[i]).count_ones() as u16;
            }
        }
    }
}

/// Calls `visit(first, count)` for each run of set bits.
pub fn for_each_run(map: &Map, mut visit: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < CHUNK_PAGES {
        let word = map[at / 64] >> (at % 64);
        if word == 0 {
            at = (at / 64 + 1) * 64;
            continue;
        }
        at += word.trailing_zeros() as usize;
        let first = at;
        while at < CHUNK_PAGES {
            let ones = (!(map[at / 64] >> (at % 64))).trailing_zeros() as usize;
            let ones = ones.min(64 - at % 64);
            at += ones;
            if ones == 0 || at % 64 != 0 {
                break;
            }
        }
        visit(first, at - first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_any_length_are_seen_across_words() {
        for (first, count) in [(0, 512), (0, 1), (511, 1), (60, 8), (63, 130), (100, 28), (64, 64)] {
            let mut map = [0u64; WORDS];
            for (word, place) in map.iter_mut().enumerate() {
                *place = mask(word, first, count);
            }
            let mut seen = [(0, 0); 4];
            let mut n = 0;
            for_each_run(&map, |f, c| {
                seen[n] = (f, c);
                n += 1;
            });
            assert_eq!((n, seen[0]), (1, (first, count)));
        }
    }

    #[test]
    fn found_groups_are_aligned_and_largest() {
        let mut map = [0u64; WORDS];
        assert_eq!(largest_order(&map), None);
        map[1] = 0b1110;
        assert_eq!((find(&map, 0), find(&map, 1), find(&map, 2)), (Some(65), Some(66), None));
        map[6] = u64::MAX;
        map[7] = u64::MAX;
        assert_eq!((largest_order(&map), find(&map, 7)), (Some(7), Some(384)));
        assert_eq!(largest_order(&[u64::MAX; WORDS]), Some(9));
    }

    #[test]
    fn extents_are_free_pages_with_memory_in_a_row() {
        // SAFETY: all-zero is a valid chunk (plain integers).
        let mut chunk: Chunk = unsafe { core::mem::zeroed() };
        chunk.reset_free();
        assert_eq!((chunk.longest_extent(), chunk.extent(8)), (0, None));
        assert_eq!(chunk.claim(0, 512), 512);
        for (first, count) in [(3, 7), (20, 8), (60, 70), (300, 212)] {
            assert!(chunk.free(first, count, false));
        }
        assert!(chunk.free(130, 20, true), "without memory, behind pages with memory");
        assert_eq!([8, 9, 70, 71, 212, 213].map(|pages| chunk.extent(pages)), {
            [Some(20), Some(60), Some(60), Some(300), Some(300), None]
        });
        assert_eq!(chunk.longest_extent(), 212);
    }

    #[test]
    fn zero_pages_are_counted_and_double_frees_refused() {
        // SAFETY: all-zero is a valid chunk (plain integers).
        let mut chunk: Chunk = unsafe { core::mem::zeroed() };
        chunk.reset_free();
        assert_eq!(chunk.claim(10, 100), 100);
        assert!(chunk.free(10, 50, false));
        assert!(!chunk.free(59, 2, false));
        assert_eq!((chunk.dirty_pages, chunk.free_pages), (50, 462));
        assert_eq!(chunk.claim(0, 20), 10);
        let taken = chunk.claim_dirty(1);
        assert_eq!((chunk.dirty_pages, taken[0].count_ones()), (0, 40));
        chunk.restore(&taken, true);
        assert_eq!(chunk.claim(20, 40), 40);
    }

    #[test]
    fn purge_takes_only_whole_system_pages() {
        // SAFETY: as above.
        let mut chunk: Chunk = unsafe { core::mem::zeroed() };
        chunk.reset_free();
        chunk.claim(0, 64);
        assert!(chunk.free(3, 40, false));
        let taken = chunk.claim_dirty(16);
        assert_eq!(taken[0], 0xffff_0000);
    }
}

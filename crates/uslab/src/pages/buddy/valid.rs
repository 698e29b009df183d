//! Invariants of chunks and of the buddy, and the functions that check them under its lock.
//!
//! ```text
//!   chunk   set bits of `free` = free_pages; of these, not in `zero` = dirty_pages
//!   lists   a chunk with free pages stands in the list of its level and largest order
//!   sums    dirty_pages, locked_pages = sums over chunks; used + free ≤ pages within the bound
//!   map     a free page has no owner
//! ```

use super::{Buddy, EMPTY_CHUNKS, EMPTY_LEVEL, LEVELS, ORDERS, PINNED_LEVEL};
use super::{level_of, lock, stretches, whole::Index};
use crate::counters;
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use crate::pages::arena::{self, PageIndex};
use crate::pages::chunk::{self, Advice, Chunk, NONE};
use crate::pages::{CHUNK_PAGES, PAGE_BYTES};
use crate::rseq::Owner;
use core::sync::atomic::Ordering::Relaxed;

/// Upper bound on the chunks of one list that a sampled walk visits.
const MAX_WALKED: usize = 32;

/// The totals of a walk of the page layer.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Chunks within the bound.
    pub chunks: usize,
    /// Pages that are free in the buddy.
    pub free_pages: usize,
    /// Runs in CPU page lists.
    pub listed_runs: usize,
}

/// The chunk `index`. The caller holds the buddy's lock.
fn at<'a>(index: u32) -> &'a Chunk {
    // SAFETY: callers pass indices within the bound, and hold the buddy's lock.
    unsafe { &*arena::chunk(index as usize) }
}

/// The chunk that a link leads to, if any.
fn linked(link: u32) -> Option<u32> {
    (link != NONE).then_some(link)
}

impl Chunk {
    fn subject(&self) -> Subject {
        Subject::new("chunk", self)
    }

    /// Checks the maps against their counts.
    pub(in crate::pages) fn check(&self) -> Checked {
        let subject = self.subject();
        let free: u32 = self.free.iter().map(|word| word.count_ones()).sum();
        let dirty = |(free, zero): (&u64, &u64)| if self.is_huge { *free } else { free & !zero };
        let dirty: u32 = self.free.iter().zip(&self.zero).map(|pages| dirty(pages).count_ones()).sum();
        subject.equal(u32::from(self.free_pages), free, "free pages are counted")?;
        subject.equal(u32::from(self.dirty_pages), dirty, "free pages with memory are counted")?;
        subject
            .holds(free == 0 || !self.is_unmapped || self.is_all_free(), "an unmapped chunk is all free")?;
        subject.holds(!self.is_unmapped || dirty == 0, "an unmapped chunk has no memory to purge")
    }

    /// Checks that a chunk with free pages knows the list that the buddy looks for it in.
    fn check_listed(&self, index: usize) -> Checked {
        let subject = self.subject();
        subject.holds(self.free_ends == self.count_ends(), "free pages at the ends are noted")?;
        subject.holds(stretches::is_known(index, self), "free pages in a row are indexed")?;
        let (is_dirty, is_huge) = (self.dirty_pages > 0, self.keeps_huge());
        let indexed = [Index::Dirty, Index::Huge].map(|of| of.has(index));
        let expected = [is_dirty && !is_huge, is_dirty && is_huge];
        subject.holds(indexed == expected, "chunks with pages to purge are indexed")?;
        let Some(order) = chunk::largest_order(&self.free) else {
            return subject.equal(Index::Whole.has(index), false, "wholly free chunks are indexed");
        };
        subject.equal(u32::from(self.order), order, "a chunk is listed by its largest free order")?;
        subject.equal(Index::Whole.has(index), self.is_all_free(), "wholly free chunks are indexed")?;
        let is_backed = self.is_all_free() && self.dirty_pages > 0;
        subject.equal(Index::Backed.has(index), is_backed, "wholly free chunks with memory are indexed")?;
        subject.equal(usize::from(self.level), level_of(index, self), "a chunk is listed by how full it is")
    }
}

impl Buddy {
    fn subject(&self) -> Subject {
        Subject::new("buddy", self)
    }

    /// Asserts, in debug builds, what holds after chunk `index` was linked.
    #[inline(always)]
    pub(super) fn assert_linked(&self, index: usize) {
        assert_valid(|| {
            let chunk = at(index as u32);
            chunk.check()?;
            chunk.check_listed(index)?;
            self.check_links(index as u32)?;
            self.check_sums()
        });
        if is_sampled() {
            assert_valid(|| self.check_lists(MAX_WALKED).map(drop));
        }
    }

    fn check_sums(&self) -> Checked {
        let subject = self.subject();
        subject.at_most(self.locked_pages, self.dirty_pages, "locked pages are dirty ones")?;
        subject.at_most(self.huge_pages, self.dirty_pages, "free pages of huge pages have memory")?;
        let within_bound = arena::chunks_committed() * CHUNK_PAGES;
        subject.at_most(self.used_pages, within_bound, "pages in use lie within the bound")?;
        subject.at_most(self.dirty_pages, within_bound, "dirty pages lie within the bound")
    }

    /// Checks the neighbours of a chunk that has free pages.
    pub(super) fn check_links(&self, index: u32) -> Checked {
        let chunk = at(index);
        if chunk.free_pages == 0 {
            return Ok(());
        }
        let subject = chunk.subject();
        let committed = arena::chunks_committed() as u32;
        for link in [chunk.next, chunk.prev].into_iter().filter_map(linked) {
            subject.at_most(link, committed - 1, "a link leads to a chunk within the bound")?;
        }
        if let Some(next) = linked(chunk.next) {
            subject.equal(at(next).prev, index, "the next chunk links back")?;
        }
        match linked(chunk.prev) {
            Some(prev) => subject.equal(at(prev).next, index, "the chunk before links here"),
            None => {
                let lists = self.lists_of(arena::home_of_chunk(index as usize));
                let head = lists.heads[usize::from(chunk.level)][usize::from(chunk.order)];
                subject.equal(head, index, "a first chunk is the head of its list")
            }
        }
    }

    /// Checks up to `most` chunks of each list; returns how many it checked.
    pub(super) fn check_lists(&self, most: usize) -> Checked<usize> {
        let subject = self.subject();
        let mut all = 0;
        let lists =
            |node| (0..LEVELS).flat_map(move |level| (0..ORDERS).map(move |order| (node, level, order)));
        for (node, level, order) in self.all_lists().flat_map(lists) {
            let head = node.heads[level][order];
            let bit = node.not_empty[level] >> order & 1 != 0;
            subject.equal(bit, head != NONE, "the word of a level says which lists have chunks")?;
            let whole = level >= PINNED_LEVEL;
            subject.holds(
                head == NONE || !whole || order == ORDERS - 1,
                "a wholly free chunk has the largest order",
            )?;
            let (mut seen, mut link) = (0, head);
            while let Some(index) = linked(link).filter(|_| seen < most) {
                subject.at_most(
                    index as usize,
                    arena::chunks_committed().wrapping_sub(1),
                    "a list leads to chunks within the bound",
                )?;
                let chunk = at(index);
                let list = (usize::from(chunk.level), usize::from(chunk.order));
                let home = arena::home_of_chunk(index as usize);
                let is_here = list == (level, order) && core::ptr::eq(self.lists_of(home), node);
                chunk.subject().holds(is_here, "a chunk knows the list that it stands in")?;
                chunk.subject().at_least(chunk.free_pages, 1, "a listed chunk has a free page")?;
                self.check_links(index)?;
                seen += 1;
                subject.at_most(seen, arena::chunks_committed(), "a list has an end")?;
                link = chunk.next;
            }
            all += seen;
        }
        Ok(all)
    }

    /// Checks all chunks and lists. The cost grows with the arena.
    pub(super) fn check(&self) -> Checked<Walked> {
        let mut walked = Walked { chunks: arena::chunks_committed(), ..Walked::default() };
        let (mut listed, mut dirty, mut locked, mut empty) = (0, 0, 0, 0);
        let (mut huge, mut rows, mut was_advised) = (0, 0, false);
        for index in 0..walked.chunks as u32 {
            let chunk = at(index);
            chunk.check()?;
            chunk.check_listed(index as usize)?;
            self.check_links(index)?;
            listed += usize::from(chunk.free_pages > 0);
            empty += usize::from(chunk.free_pages > 0 && usize::from(chunk.level) == EMPTY_LEVEL);
            walked.free_pages += usize::from(chunk.free_pages);
            dirty += usize::from(chunk.dirty_pages);
            huge += if chunk.keeps_huge() { usize::from(chunk.dirty_pages) } else { 0 };
            let is_advised = chunk.advice == Advice::Huge;
            rows += usize::from(is_advised && !was_advised);
            was_advised = is_advised;
            locked += if self.policy.is_locked(chunk) { usize::from(chunk.dirty_pages) } else { 0 };
        }
        let subject = self.subject();
        subject.equal(
            self.check_lists(usize::MAX)?,
            listed,
            "each chunk with free pages stands in a list",
        )?;
        subject.equal(self.dirty_pages, dirty, "dirty pages are summed up")?;
        subject.equal(self.locked_pages, locked, "locked pages are summed up")?;
        subject.equal(self.huge_pages, huge, "free pages of huge pages in use are summed up")?;
        subject.equal(self.advised_rows, rows, "rows of chunks advised to be huge are counted")?;
        subject.equal(EMPTY_CHUNKS.load(Relaxed), empty, "chunks that can be unmapped are counted")?;
        let within_bound = walked.chunks * CHUNK_PAGES;
        subject.at_most(self.used_pages + walked.free_pages, within_bound, "no page is in use and free")?;
        let shown = counters::header().used_bytes.load(Relaxed) as usize;
        subject.equal(shown, self.used_pages * PAGE_BYTES, "the figures show the pages in use")?;
        self.check_sums()?;
        Ok(walked)
    }

    /// Checks the page map for one chunk: its free pages have no owner.
    pub(super) fn check_map(&self, index: usize) -> Checked {
        let mut result = Ok(());
        chunk::for_each_run(&at(index as u32).free, |first, count| {
            for page in first..first + count {
                let page = PageIndex((index * CHUNK_PAGES + page) as u32);
                let subject = Subject::new("page", arena::address_of(page));
                let owner = arena::owner(page).slots();
                result = result.and(subject.equal(owner, Owner::NONE.slots(), "a free page has no owner"));
            }
        });
        result
    }

    /// Checks that none of the `pages` pages from `first` on is free in a chunk.
    pub(in crate::pages) fn check_used(&self, first: PageIndex, pages: usize) -> Checked {
        let subject = Subject::new("page", arena::address_of(first));
        for page in (first.0 as usize)..(first.0 as usize + pages) {
            let is_free = at((page / CHUNK_PAGES) as u32).is_free(page % CHUNK_PAGES, 1);
            subject.equal(is_free, false, "a page in a CPU's list is not free in the buddy")?;
        }
        Ok(())
    }
}

/// Checks the heads of the lists and the sums.
pub(in crate::pages) fn check_sums() -> Checked {
    let buddy = lock();
    buddy.check_lists(1)?;
    buddy.check_sums()
}

/// Checks chunks, lists and sums under one lock, and then the page map, chunk by chunk.
pub(in crate::pages) fn check_all() -> Checked<Walked> {
    let walked = lock().check()?;
    for index in 0..walked.chunks {
        lock().check_map(index)?;
    }
    Ok(walked)
}

//! The buddy allocates runs of pages from the chunks, fullest chunk first.
//!
//! The fullest chunk is the one with the most memory, behind pages in use or free; of those that
//! huge pages back, the one with the most pages in use. So free memory serves again before the
//! program touches fresh pages. Chunks that purges left little memory serve last, and become free.
//! A run of 9 to 511 pages without alignment first takes the lowest free pages in a row that all
//! have memory (see `search`). A run of more than a chunk takes the lowest free pages in a row (see
//! `stretches`).
//!
//! A chunk with free pages stands in one of 11 × 10 lists of its node: by its level, and by the
//! largest order that fits. Levels 0 (fullest) to 7 hold chunks with pages in use. Chunks of levels
//! 8 and 9 are wholly free; those of level 10 are unmapped too. One word a level has a bit for each
//! list that is not empty, so a scan of 11 words finds the fullest chunk with room.
//!
//! ```text
//!  level 0  ▓▓▓▒▓▓▓▒   order 0 ▶ chunk ▶ chunk    order 1 ▶ chunk   …
//!  …
//!  level 8  ░░░░░░░░   order 9 ▶ chunk            pinned: never unmapped
//!  level 9  ░░░░░░░░   order 9 ▶ chunk
//!  level 10 ┄┄┄┄┄┄┄┄   order 9 ▶ chunk            mapped again only if nothing else fits
//! ```
//!
//! The node of a chunk is that of the CPU that took its first page while it had no memory: the
//! kernel takes memory from the node where it is touched first. A thread takes pages of its own
//! node's chunks, then chunks without memory of any node, then new ones, and only if there are none
//! another node's. A cache with a policy of its own takes pages of that policy's chunks alone, and
//! no other cache does (see `nodes`).
//!
//! Of wholly free chunks the lowest serves first (see `search`).

use super::arena::{self, PageIndex};
use super::chunk::{self, Advice, Chunk, MAX_ORDER, NONE};
use super::home::Home;
use super::policy::{Locked, Policy};
use super::{CHUNK_PAGES, Fill, PAGE_BYTES, Run, boot, bound};
use crate::counters;
use crate::os::corruption::verify;
use crate::os::invariant::invariant;
use crate::os::memory::Placed;
use crate::os::{self, Guard, Lock};
use crate::sync::{CachePadded, Rank};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use density::Probes;
pub(super) use huge::revoke;
pub(super) use nodes::make_policies;
use nodes::{NODES, NodeLists};
pub(super) use search::note_unmapped;
use whole::Index;

mod batch;
pub(super) mod collapse;
mod density;
mod extend;
mod huge;
mod lengths;
pub(super) mod limits;
mod nodes;
mod search;
mod sparse;
mod stretches;
#[cfg(test)]
mod tests;
pub(super) mod valid;
mod whole;

const LEVELS: usize = 11;
/// The level of wholly free chunks that are pinned: [`arena::keep_mapped`] keeps them mapped for
/// ever. It pins only chunks with a page in use, so it never changes the level of a wholly free
/// chunk.
const PINNED_LEVEL: usize = LEVELS - 3;
/// The level of wholly free chunks that may be unmapped.
const EMPTY_LEVEL: usize = LEVELS - 2;
/// The level of wholly free chunks that are unmapped.
const UNMAPPED_LEVEL: usize = LEVELS - 1;
const ORDERS: usize = MAX_ORDER as usize + 1;

/// Upper bound of a growth step, in chunks: 64 MiB of address space, without memory.
const MAX_GROW: usize = 32;

/// Largest alignment: 1 GiB, the largest page of x86-64. Larger ones are refused, because the arena
/// and its page map would have to grow up to the boundary.
const MAX_ALIGN_ORDER: u32 = 18;

const NO_LIMIT: usize = usize::MAX;

pub(super) struct Buddy {
    /// By the node of the chunks.
    lists: [NodeLists; NODES],
    /// The lists of chunks with a policy, by the policy's number; none before a cache has a policy.
    policies: &'static mut [NodeLists],
    /// Free pages with memory behind them.
    pub dirty_pages: usize,
    /// The part of `dirty_pages` in chunks that the system refused to purge in this period.
    pub locked_pages: usize,
    /// The part of `dirty_pages` in chunks that huge pages back and that are in use in part.
    pub huge_pages: usize,
    /// Finds out whether memory beyond small objects is touched.
    probes: Probes,
    /// The chunk where the next search for chunks to collapse starts; see `collapse`.
    collapse_cursor: usize,
    /// The chunk whose collapse is to come or under way.
    collapsing: Option<usize>,
    /// Rows of chunks with [`chunk::Advice::Huge`]: each is a mapping of its own.
    pub advised_rows: usize,
    /// Pages in use.
    used_pages: usize,
    /// Pages that were claimed of a run in several chunks; `used_pages` counts the run at its end.
    claimed_pages: usize,
    /// Limits on the pages held, or [`NO_LIMIT`]. An allocation beyond `soft_pages` wakes the
    /// background thread; one beyond `hard_pages` fails.
    soft_pages: usize,
    hard_pages: usize,
    /// The background thread was woken for the soft limit, and has not read the limit since.
    is_soft_notified: bool,
    /// Runs taken and freed since the background thread's last purge.
    pub operations: u32,
    /// Purge policy; see `purge`.
    pub policy: Policy,
}

/// Padded: every `malloc` reads the data beside it.
static BUDDY: CachePadded<Lock<Buddy>> = CachePadded(Lock::new(
    Rank::Pages,
    Buddy {
        lists: [const { NodeLists::EMPTY }; NODES],
        policies: &mut [],
        dirty_pages: 0,
        locked_pages: 0,
        huge_pages: 0,
        probes: Probes::new(),
        collapse_cursor: 0,
        collapsing: None,
        advised_rows: 0,
        used_pages: 0,
        claimed_pages: 0,
        soft_pages: NO_LIMIT,
        hard_pages: NO_LIMIT,
        is_soft_notified: false,
        operations: 0,
        policy: Policy::new(),
    },
));

/// Chunks in [`EMPTY_LEVEL`], for a reader without the lock.
static EMPTY_CHUNKS: AtomicUsize = AtomicUsize::new(0);

/// Whether a wholly free chunk is mapped that could be unmapped. Takes no lock.
pub(super) fn has_empty_chunk() -> bool {
    EMPTY_CHUNKS.load(Relaxed) > 0
}

/// The level of a chunk with free pages: the lower, the fuller.
fn level_of(index: usize, chunk: &Chunk) -> usize {
    match chunk.free_pages as usize {
        CHUNK_PAGES if chunk.is_unmapped => UNMAPPED_LEVEL,
        CHUNK_PAGES if !arena::may_be_unmapped(index) => PINNED_LEVEL,
        CHUNK_PAGES => EMPTY_LEVEL,
        // A huge page backs all pages, in use or free. An emptier one is the better to split, so it
        // serves later: its level follows the pages in use.
        free if chunk.is_huge => (free - 1) / 64,
        free => free.saturating_sub(usize::from(chunk.dirty_pages)).saturating_sub(1) / 64,
    }
}

pub(super) fn lock() -> Guard<'static, Buddy> {
    BUDDY.lock()
}

pub(super) fn lock_for_fork() {
    BUDDY.acquire_for_fork();
    note_fork();
    boot::lock_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    boot::unlock_after_fork(child);
    if child {
        BUDDY.reset_in_child();
        reset_in_child();
    } else {
        BUDDY.release_after_fork();
    }
}

/// In a fork child: the thread that was at a collapse is not here, and free memory is shared with
/// the parent. Does nothing if the forking thread was interrupted with the lock.
pub(super) fn reset_in_child() {
    if let Some(mut buddy) = BUDDY.try_lock() {
        buddy.collapsing = None;
        let dirty_pages = buddy.dirty_pages;
        buddy.policy.keep(dirty_pages);
    }
}

/// Notes a fork.
pub(super) fn note_fork() {
    collapse::note_fork();
}

impl Buddy {
    /// Whether such a run could be allocated if all other pages were free.
    pub fn is_possible(&self, pages: usize, align_order: u32) -> bool {
        pages <= self.hard_pages && pages <= arena::reserved_pages() && align_order <= MAX_ALIGN_ORDER
    }

    /// Allocates a run of `pages` pages of `home` on a boundary of `2^align_order` pages. Returns
    /// `None` if the arena is used up, the hard limit forbids it, or the system refuses to map a
    /// chunk again. A run of more than a chunk has no policy.
    pub fn alloc(&mut self, pages: usize, align_order: u32, fill: Fill, home: Home) -> Option<Run> {
        // `note_taken` checks the hard limit exactly, once the run is known: its dirty pages are
        // held already and cost nothing.
        if !self.is_possible(pages, align_order) {
            self.note_impossible(pages);
            return None;
        }
        if pages > CHUNK_PAGES || align_order > MAX_ORDER {
            invariant!(!home.has_policy(), "a run with a policy fits a chunk", pages);
            return self.alloc_long(pages, align_order);
        }
        let run = self.alloc_in_chunk(pages, align_order, fill, home)?;
        self.note_taken(run, pages).then_some(run)
    }

    /// Whether all pages of chunk `index` are free.
    pub fn is_all_free(&self, index: usize) -> bool {
        Index::Whole.has(index)
    }

    fn alloc_in_chunk(&mut self, pages: usize, align_order: u32, fill: Fill, home: Home) -> Option<Run> {
        if let Some((index, first)) = self.lowest_extent(pages, align_order, home) {
            return Some(self.claim_run(index, first, pages, fill, home));
        }
        let order = pages.next_power_of_two().trailing_zeros().max(align_order);
        let index = loop {
            let wanted = (arena::chunks_committed() / 8).clamp(1, MAX_GROW);
            let index = match self.fullest_with(order, home) {
                Some(index) => index,
                None if self.grow(wanted, 1).is_some() => continue,
                None => match self.fullest_anywhere(order, home) {
                    Some(index) => index,
                    None if align_order == 0 => return self.alloc_anywhere(pages, fill, home),
                    None => return None,
                },
            };
            match self.map_again(index, 1) {
                Placed::Mapped => break index,
                Placed::Taken => {}
                Placed::Refused if align_order == 0 => return self.alloc_anywhere(pages, fill, home),
                Placed::Refused => return None,
            }
        };
        // SAFETY: the index comes from a list, so the chunk is committed, and `&mut self` is the
        // lock.
        let chunk = unsafe { &mut *arena::chunk(index) };
        invariant!(!chunk.is_unmapped, "pages come from chunks that are mapped", index);
        let first = chunk::find(&chunk.free, order)?;
        invariant!(first % (1 << align_order) == 0, "a run lies on the boundary asked for", first);
        Some(self.claim_run(index, first, pages, fill, home))
    }

    /// Takes free pages of one chunk as a run; see [`Buddy::claim`].
    fn claim_run(&mut self, index: usize, first: usize, pages: usize, fill: Fill, home: Home) -> Run {
        let zero = self.claim(index, first, pages, fill, home);
        Run { first: PageIndex((index * CHUNK_PAGES + first) as u32), pages, zeroed: zero == pages }
    }

    /// Whether a chunk, which is within the bound, counts its free pages right, and its neighbours
    /// link to it.
    fn is_chunk_whole(&self, index: usize) -> bool {
        // SAFETY: committed, and `&self` is the lock.
        let chunk = unsafe { &*arena::chunk(index) };
        let free: u32 = chunk.free.iter().map(|word| word.count_ones()).sum();
        let is_listed = usize::from(chunk.level) < LEVELS && usize::from(chunk.order) < ORDERS;
        verify(u32::from(chunk.free_pages) == free, "chunk", chunk, "free pages are counted")
            && verify(
                is_listed && self.check_links(index as u32).is_ok(),
                "chunk",
                chunk,
                "a chunk's neighbours link to it",
            )
    }

    fn grow(&mut self, wanted: usize, least: usize) -> Option<()> {
        let grown = arena::grow(wanted, least)?;
        for index in grown.first..grown.first + grown.count {
            // SAFETY: just committed, and `&mut self` is the lock.
            unsafe { (*arena::chunk(index)).reset_free() };
            arena::set_home_of_chunk(index, Home::here());
            self.link(index);
        }
        Some(())
    }

    /// Maps those of `count` wholly free chunks from `first` on that are unmapped. If another
    /// mapping has taken the place of one, that chunk becomes absent. If a limit forbids it, unmaps
    /// them all.
    fn map_again(&mut self, first: usize, count: usize) -> Placed {
        // SAFETY: callers pass committed indices; `&mut self` is the lock.
        let is_unmapped = |index: usize| unsafe { (*arena::chunk(index)).is_unmapped };
        let (mut at, end) = (first, first + count);
        while at < end {
            let run = (at..end).take_while(|&index| is_unmapped(index)).count();
            if run == 0 {
                at += 1;
                continue;
            }
            let mut placed = arena::map_chunks(at, run);
            let mut done = run;
            if placed == Placed::Taken && run > 1 {
                // One at a time: seldom is the place of all of them taken.
                (placed, done) = (arena::map_chunks(at, 1), 1);
            }
            match placed {
                Placed::Refused => {
                    self.unmap_clean(first, count);
                    return placed;
                }
                Placed::Mapped => (at..at + done).for_each(|index| {
                    self.set_advice(index, Advice::Small);
                    self.with_chunk(index, |chunk| chunk.is_unmapped = false);
                }),
                Placed::Taken => {
                    self.with_chunk(at, |chunk| {
                        chunk.sparse_pages = None;
                        chunk.claim_whole()
                    });
                    return placed;
                }
            }
            at += done;
        }
        Placed::Mapped
    }

    /// Takes pages of one chunk, for `home` if the chunk has no memory yet. Returns how many of
    /// them are known to be zero.
    fn claim(&mut self, index: usize, first: usize, pages: usize, fill: Fill, home: Home) -> usize {
        invariant!(first + pages <= CHUNK_PAGES, "a claim ends within its chunk", first);
        self.unlink(index);
        // SAFETY: the chunk is committed, and `&mut self` is the lock.
        let is_untouched = unsafe { nodes::is_untouched(&*arena::chunk(index)) };
        if is_untouched {
            // The kernel takes the memory from the node of the CPU that touches it first, or as the
            // policy has it.
            self.settle(index, home);
            self.choose_backing(index, fill);
        }
        // SAFETY: as above; no other reference to the chunk lives.
        let chunk = unsafe { &mut *arena::chunk(index) };
        invariant!(
            home.policy() == arena::home_of_chunk(index).policy(),
            "pages of a policy's chunk serve that policy alone",
            index
        );
        if chunk.is_all_free() {
            chunk.sparse_pages = Some(0);
        }
        if fill != Fill::Dense {
            chunk.sparse_pages = chunk.sparse_pages.map(|sum| sum.saturating_add(pages as u16));
        }
        let zero = chunk.claim(first, pages);
        if !chunk.is_huge {
            self.policy.note_fresh(zero);
        }
        self.link(index);
        zero
    }

    /// Frees a run. Returns false if part of it is free already, and leaves the chunk of that part
    /// unchanged.
    pub fn free(&mut self, first: PageIndex, pages: usize, zero: bool) -> bool {
        let mut at = first.0 as usize;
        let end = at + pages;
        while at < end {
            let index = at / CHUNK_PAGES;
            let n = (end - at).min(CHUNK_PAGES - at % CHUNK_PAGES);
            self.unlink(index);
            // SAFETY: the run was handed out, so its chunks are committed; `&mut self` is the lock.
            let ok = unsafe { (*arena::chunk(index)).free(at % CHUNK_PAGES, n, zero) };
            self.link(index);
            if !ok {
                return false;
            }
            at += n;
        }
        invariant!(self.used_pages >= pages, "no more pages come back than are in use", first.0);
        self.used_pages -= pages;
        self.operations = self.operations.saturating_add(1);
        self.publish();
        true
    }

    /// Takes a chunk out of its list, runs `change` on it, and puts it into the list that it then
    /// belongs to.
    pub fn with_chunk<R>(&mut self, index: usize, change: impl FnOnce(&mut Chunk) -> R) -> R {
        self.unlink(index);
        // SAFETY: callers pass committed indices; `&mut self` is the lock.
        let result = change(unsafe { &mut *arena::chunk(index) });
        self.link(index);
        result
    }

    /// Dirty pages that a purge may take.
    pub fn purgeable_pages(&self, locked: Locked) -> usize {
        self.dirty_pages - if locked == Locked::Stay { self.locked_pages } else { 0 }
    }

    /// Forgets refusals of the system that are long ago, so that purges try those chunks again.
    pub fn forget_refusals(&mut self, now_ms: u64) {
        if self.policy.forget_refusals(now_ms) {
            self.locked_pages = 0;
        }
    }

    /// Pages that limits count.
    pub fn held_pages(&self) -> usize {
        self.used_pages + self.dirty_pages
    }

    /// Whether `chunk` has dirty pages that a purge may take.
    fn is_purgeable(&self, chunk: &Chunk, locked: Locked) -> bool {
        chunk.dirty_pages > 0 && (locked == Locked::Go || !self.policy.is_locked(chunk))
    }

    /// Whether a purge of blocks of `block` pages finds one in chunk `index`, which is committed.
    pub fn has_to_purge(&self, index: usize, block: usize) -> bool {
        // SAFETY: committed, and `&self` is the lock.
        unsafe { &*arena::chunk(index) }.dirty_blocks(block).iter().any(|&pages| pages != 0)
    }

    /// Returns the first chunk with dirty free pages, from `cursor` on and around the end. It skips
    /// chunks that huge pages back.
    pub fn next_dirty(&self, cursor: usize, locked: Locked) -> Option<usize> {
        // SAFETY: committed, and `&self` is the lock.
        let is_purgeable = |&index: &usize| self.is_purgeable(unsafe { &*arena::chunk(index) }, locked);
        Index::Dirty.around(cursor, arena::chunks_committed()).find(is_purgeable)
    }

    /// Charges `charged` pages of a run that was claimed. If the hard limit forbids it, frees the
    /// run again and returns false.
    fn note_taken(&mut self, run: Run, charged: usize) -> bool {
        let is_charged = self.charge(charged);
        if !is_charged {
            self.untake(run);
        }
        is_charged
    }

    /// Counts `pages` more pages as used. False, with nothing counted, if the hard limit forbids
    /// it.
    pub fn charge(&mut self, pages: usize) -> bool {
        self.operations = self.operations.saturating_add(1);
        let held = self.used_pages + pages + self.dirty_pages;
        if held > self.hard_pages {
            os::probe::limit_hit(|| [pages * PAGE_BYTES, (held - pages) * PAGE_BYTES]);
            return false;
        }
        self.used_pages += pages;
        self.publish();
        if core::mem::take(&mut self.policy.has_grown)
            && self.policy.window.is_too_large(held - self.locked_pages)
        {
            bound::note_too_large();
        }
        if self.policy.fresh_pages >= bound::GROWTH_PAGES {
            self.policy.fresh_pages = 0;
            bound::note_growth();
        }
        if held > self.soft_pages && !self.is_soft_notified {
            self.is_soft_notified = true;
            os::sleep::wake();
        }
        true
    }

    /// Undoes [`Buddy::charge`].
    pub fn uncharge(&mut self, pages: usize) {
        invariant!(self.used_pages >= pages, "no more pages are uncharged than are in use", pages);
        self.used_pages -= pages;
        self.publish();
    }

    /// Frees an untouched run. Clean pages stay clean: as dirty ones they would count as held, and
    /// a failed allocation would make the next one fail.
    fn untake(&mut self, run: Run) {
        let (mut at, end) = (run.first.0 as usize, run.first.0 as usize + run.pages);
        while at < end {
            let count = (end - at).min(CHUNK_PAGES - at % CHUNK_PAGES);
            self.with_chunk(at / CHUNK_PAGES, |chunk| chunk.unclaim(at % CHUNK_PAGES, count));
            self.leave_policy(at / CHUNK_PAGES);
            at += count;
        }
        self.publish();
    }

    /// Adds a chunk's dirty pages to the sums, or subtracts them. A chunk changes only between
    /// [`Buddy::unlink`], which subtracts, and [`Buddy::link`], which adds.
    fn count_dirty(&mut self, chunk: &Chunk, change: fn(usize, usize) -> usize) {
        let pages = usize::from(chunk.dirty_pages);
        self.dirty_pages = change(self.dirty_pages, pages);
        if chunk.keeps_huge() {
            self.huge_pages = change(self.huge_pages, pages);
        }
        if self.policy.is_locked(chunk) {
            self.locked_pages = change(self.locked_pages, pages);
        }
    }

    fn link(&mut self, index: usize) {
        // SAFETY: the chunk and its neighbour are committed, and `&mut self` is the lock.
        unsafe {
            let chunk = &mut *arena::chunk(index);
            let Some(order) = chunk::largest_order(&chunk.free) else {
                stretches::note(index);
                return;
            };
            self.count_dirty(chunk, usize::wrapping_add);
            let level = level_of(index, chunk);
            (chunk.level, chunk.order) = (level as u8, order as u8);
            let lists = self.lists_of_mut(arena::home_of_chunk(index));
            let head = &mut lists.heads[level][order as usize];
            (chunk.next, chunk.prev) = (*head, NONE);
            if *head != NONE {
                (*arena::chunk(*head as usize)).prev = index as u32;
            }
            *head = index as u32;
            lists.not_empty[level] |= 1 << order;
            if level == EMPTY_LEVEL {
                EMPTY_CHUNKS.store(EMPTY_CHUNKS.load(Relaxed) + 1, Relaxed);
            }
            if level >= PINNED_LEVEL {
                Index::Whole.set(index, true);
                Index::Backed.set(index, chunk.dirty_pages > 0);
            }
            if chunk.dirty_pages > 0 {
                if chunk.keeps_huge() { Index::Huge } else { Index::Dirty }.set(index, true);
            }
            stretches::note(index);
        }
        self.assert_linked(index);
    }

    fn unlink(&mut self, index: usize) {
        // SAFETY: as in `link`.
        unsafe {
            let chunk = &mut *arena::chunk(index);
            if chunk.free_pages == 0 || !self.is_chunk_whole(index) {
                return;
            }
            invariant!(self.check_links(index as u32).is_ok(), "a chunk's neighbours link to it", index);
            invariant!(
                self.dirty_pages >= usize::from(chunk.dirty_pages),
                "dirty pages are summed up",
                self.dirty_pages
            );
            self.count_dirty(chunk, usize::wrapping_sub);
            let (level, order) = (chunk.level as usize, chunk.order as usize);
            if level == EMPTY_LEVEL {
                EMPTY_CHUNKS.store(EMPTY_CHUNKS.load(Relaxed) - 1, Relaxed);
            }
            if level >= PINNED_LEVEL {
                Index::Whole.set(index, false);
                Index::Backed.set(index, false);
            }
            for with_dirty in [Index::Dirty, Index::Huge].into_iter().filter(|of| of.has(index)) {
                with_dirty.set(index, false);
            }
            if chunk.next != NONE {
                (*arena::chunk(chunk.next as usize)).prev = chunk.prev;
            }
            if chunk.prev != NONE {
                (*arena::chunk(chunk.prev as usize)).next = chunk.next;
            } else {
                let lists = self.lists_of_mut(arena::home_of_chunk(index));
                lists.heads[level][order] = chunk.next;
                if chunk.next == NONE {
                    lists.not_empty[level] &= !(1 << order);
                }
            }
        }
    }

    /// Notes and publishes the sums; each change of them ends with it.
    pub fn publish(&mut self) {
        self.policy.window.note(self.dirty_pages, self.used_pages);
        let header = counters::header();
        header.used_bytes.store((self.used_pages * PAGE_BYTES) as u64, Relaxed);
        header.dirty_bytes.store((self.dirty_pages * PAGE_BYTES) as u64, Relaxed);
    }
}

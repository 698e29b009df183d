//! Purge: giving the memory behind free pages back to the system.
//!
//! Policy (the reclaim layer adds time and pressure): free dirty pages may add up to a limit.
//! Beyond it the oldest chunks are purged down to half, in the background if there is a thread for
//! it. The limit starts small, and learns: a page that is touched again soon after it was purged
//! was purged too early, and raises the limit by itself, so that a loop that needs 40 MB over and
//! over stops paying for page faults after its second round. What was learnt halves each second
//! that purges happen.
//!
//! Pages under purge are taken out of the maps, so that the system call runs without the lock.
//!
//! **Locked memory** (`mlock`, `mlockall`) is not purged behind the program's back: a program that
//! locks its memory wants no page faults. The kernel's refusal is what tells. A chunk that was
//! refused is left alone for [`REFUSAL_MS`], and its pages do not count as too many meanwhile; so
//! frees make no system call in vain. What the program asks for itself, and pressure, purges locked
//! pages too.
//!
//! **Addresses go back as well** where a limit counts what is mapped (see
//! [`os::memory::is_mapping_limited`]): wholly free chunks are unmapped, and mapped again when no
//! other chunk has room. Elsewhere that would only cost: a mapping more for each hole, and the
//! process's lock on its mappings.

use super::arena::{self, PageIndex};
use super::chunk::{Chunk, Map, for_each_run};
use super::{CHUNK_PAGES, PAGE_BYTES, buddy};
use crate::sync::in_flight::InFlight;
use crate::{os, stats};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Dirty pages that are kept whatever happens: 512 KiB.
const BASE_PAGES: usize = (512 << 10) / PAGE_BYTES;
/// What [`purge_some`] prefers: 64 KiB.
const TOGETHER_PAGES: usize = 16;
/// Chunks without such a group that are looked at.
const MAX_MISSES: usize = 64;
/// A chunk whose purge was refused is tried again after so long.
const REFUSAL_MS: u64 = 10_000;
/// Most that the limit can learn: 512 MiB.
const MAX_LEARNT_PAGES: usize = (512 << 20) / PAGE_BYTES;

pub(super) struct Policy {
    learnt_pages: usize,
    /// Purged pages that have not been asked for again.
    regret_pages: usize,
    last_ms: u64,
    cursor: usize,
    /// The current period of [`REFUSAL_MS`], and when it began. Never 0.
    period: u32,
    period_ms: u64,
}

impl Policy {
    pub const fn new() -> Policy {
        Policy { learnt_pages: 0, regret_pages: 0, last_ms: 0, cursor: 0, period: 1, period_ms: 0 }
    }

    /// Whether the system refused to purge the chunk in this period.
    pub fn is_locked(&self, chunk: &Chunk) -> bool {
        chunk.refused_in == self.period
    }

    /// `pages` pages without memory were handed out.
    pub fn note_fresh(&mut self, pages: usize) {
        let regretted = pages.min(self.regret_pages);
        self.regret_pages -= regretted;
        // Half, so that a single wave of frees, in which some pages come and go by chance, teaches little.
        self.learnt_pages = (self.learnt_pages + regretted / 2).min(MAX_LEARNT_PAGES);
    }

    fn limit_pages(&self) -> usize {
        BASE_PAGES + self.learnt_pages
    }

    /// Begins a new period if this one is over: refusals are forgotten. Says whether.
    fn forget_refusals(&mut self, now_ms: u64) -> bool {
        let is_over = now_ms.saturating_sub(self.period_ms) >= REFUSAL_MS;
        if is_over {
            (self.period, self.period_ms) = (self.period.wrapping_add(1).max(1), now_ms);
        }
        is_over
    }

    fn decay(&mut self, now_ms: u64) {
        let seconds = now_ms.saturating_sub(self.last_ms) / 1000;
        if seconds > 0 {
            let shift = seconds.min(31) as u32;
            self.learnt_pages >>= shift;
            self.regret_pages >>= shift;
            self.last_ms = now_ms;
        }
    }
}

/// Beyond the limit by so much, the freeing thread purges, although there is a background thread: that
/// one cannot keep up.
const MAX_LEFT_PAGES: usize = (32 << 20) / PAGE_BYTES;
/// The background thread knows that there is something to purge.
static IS_NOTIFIED: AtomicBool = AtomicBool::new(false);

/// Called after pages were freed, without locks: if there are too many dirty ones, has them purged
/// in the background, or does it.
pub(super) fn after_free(dirty_pages: usize) {
    if dirty_pages <= BASE_PAGES {
        return;
    }
    let Some(beyond) = beyond_limit() else { return };
    if os::sleep::has_background_thread() && beyond <= MAX_LEFT_PAGES {
        // A look first: what stands on its line is read by every slow path.
        if !IS_NOTIFIED.load(Relaxed) && !IS_NOTIFIED.swap(true, Relaxed) {
            os::sleep::wake();
        }
    } else {
        purge_excess();
    }
}

/// Dirty pages beyond the limit as it is now.
fn beyond_limit() -> Option<usize> {
    let mut buddy = buddy::lock();
    let now_ms = os::clock::coarse_ms();
    buddy.policy.decay(now_ms);
    if buddy.policy.forget_refusals(now_ms) {
        buddy.locked_pages = 0;
    }
    let purgeable_pages = buddy.purgeable_pages(Locked::Stay);
    purgeable_pages.checked_sub(buddy.policy.limit_pages()).filter(|&beyond| beyond > 0)
}

/// Purges down to half of the limit, if it is exceeded; says how many bytes went back.
pub fn purge_excess() -> usize {
    IS_NOTIFIED.store(false, Relaxed);
    if beyond_limit().is_none() {
        return 0;
    }
    let target = buddy::lock().policy.limit_pages() / 2;
    purge_to(target * PAGE_BYTES, Locked::Stay)
}

/// Purges until at most `target_bytes` of free memory stay resident; says how many bytes went back.
///
/// No lock is held during the system calls; pages freed meanwhile may or may not be seen.
fn purge_to(target_bytes: usize, locked: Locked) -> usize {
    purge_groups(target_bytes, 1, locked)
}

/// What becomes of locked pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// They stay; the first refusal ends the purge.
    Stay,
    /// They go like others, where the kernel can.
    Go,
}

/// The same for what lies together, in groups of `least_pages`, a power of two up to 64, or of
/// whole system pages.
fn purge_groups(target_bytes: usize, least_pages: usize, locked: Locked) -> usize {
    let group = (os::memory::page_bytes() / PAGE_BYTES).max(least_pages);
    let mut unmap = os::memory::is_mapping_limited();
    let mut unmap_clean = unmap && target_bytes == 0;
    let (mut purged, mut in_vain) = (0, 0);
    // Each chunk once around at most: with large system pages some dirty pages cannot be purged.
    for _ in 0..arena::chunks_committed() {
        let mut buddy = buddy::lock();
        if buddy.purgeable_pages(locked) * PAGE_BYTES <= target_bytes && !unmap_clean {
            break;
        }
        let cursor = buddy.policy.cursor;
        // Whole chunks first: what they hold is not about to be used, and the kernel gets its memory back in
        // one piece.
        let next = buddy.next_whole(locked, unmap_clean).or_else(|| buddy.next_dirty(cursor, locked));
        let Some(index) = next else { break };
        buddy.policy.cursor = index + 1;
        let _in_flight = InFlight::begin();
        let (taken, dirty, is_whole) = buddy.with_chunk(index, |chunk| {
            let before = chunk.dirty_pages;
            let is_whole = unmap && chunk.is_whole() && arena::may_be_unmapped(index);
            let taken = if is_whole { chunk.claim_whole() } else { chunk.claim_dirty(group) };
            (taken, before - chunk.dirty_pages, is_whole)
        });
        if dirty == 0 && !is_whole {
            in_vain += 1;
            if in_vain >= MAX_MISSES && least_pages > 1 {
                break;
            }
            continue;
        }
        drop(buddy);

        let is_purged = purge_runs(index, &taken, locked);
        // SAFETY: all pages of the chunk are out of the maps, so that no code uses them; the chunk is
        // mapped.
        let is_unmapped = is_purged && is_whole && unsafe { arena::unmap_memory(index, 1) };

        let mut buddy = buddy::lock();
        let period = buddy.policy.period;
        buddy.with_chunk(index, |chunk| {
            chunk.restore(&taken, is_purged);
            chunk.is_unmapped = is_unmapped;
            chunk.refused_in = if is_purged { 0 } else { period };
        });
        if is_unmapped {
            arena::note_unmapped(1);
        }
        if is_purged {
            buddy.policy.regret_pages += usize::from(dirty);
            purged += usize::from(dirty) * PAGE_BYTES;
        }
        buddy.publish();
        if is_whole && !is_unmapped {
            // What is refused for one chunk (too many mappings) is refused for the others: these are purged.
            (unmap, unmap_clean) = (false, false);
        }
        if !is_purged && dirty > 0 && locked == Locked::Stay {
            break;
        }
    }
    stats::header().purged_bytes.fetch_add(purged as u64, Relaxed);
    purged
}

/// Purges the runs of pages that were `taken` out of the maps of chunk `index`, and their
/// descriptors; false, with some or none of it done, if the system refuses.
fn purge_runs(index: usize, taken: &Map, locked: Locked) -> bool {
    let page = |first: usize| PageIndex((index * CHUNK_PAGES + first) as u32);
    let mut is_purged = true;
    for_each_run(taken, |first, count| {
        let (start, bytes) = (arena::address_of(page(first)), count * PAGE_BYTES);
        // SAFETY: the pages were free and are now out of the maps, so that no code uses them; runs are
        // whole system pages.
        is_purged &= unsafe {
            match locked {
                Locked::Stay => os::memory::purge(start, bytes),
                Locked::Go => os::memory::purge_locked(start, bytes),
            }
        };
    });
    // The descriptors of these groups are no owner's; zeroes are what a late reader may see (see
    // `slab`). A slab here and there must not keep a chunk's 32 KiB of descriptors.
    let words = taken.map(|pages| if pages == u64::MAX { pages } else { 0 });
    if is_purged {
        for_each_run(&words, |first, count| arena::purge_descriptors(page(first), count));
    }
    is_purged
}

/// True if no thread took or freed pages since the last [`purge_rested`], which the background thread is
/// about to do.
pub fn rested() -> bool {
    super::cpu_pages::rested() && buddy::lock().operations == 0
}

/// Called twice a second by the background thread: dirty pages beyond what has been learnt go back;
/// all of them, where the pages `rested`. Says how many bytes went.
pub fn purge_rested(rested: bool) -> usize {
    let purged = if rested { purge_free(0, Locked::Stay) } else { purge_excess() };
    super::cpu_pages::begin_period();
    buddy::lock().operations = 0;
    purged
}

/// Whether [`purge_all`] would find anything. Takes no lock.
pub fn has_free_memory() -> bool {
    let header = stats::header();
    let is_free_mapped = || header.committed_bytes.load(Relaxed) > header.used_bytes.load(Relaxed);
    header.dirty_bytes.load(Relaxed) > 0
        || super::cpu_pages::runs() > 0
        || (is_free_mapped() && os::memory::is_mapping_limited())
}

/// What becomes of dirty pages that stand alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scattered {
    /// Those that are kept whatever happens stay: most lie together a little later.
    Stay,
    /// They go like others: somebody is in want.
    Go,
}

/// Purges about `bytes` of what is free, but for the CPU page lists, which are what is used next;
/// says how many bytes went back.
///
/// Each system call interrupts every CPU that runs a thread of the process. So what lies together
/// goes first.
pub fn purge_some(bytes: usize, scattered: Scattered) -> usize {
    let dirty_bytes = stats::header().dirty_bytes.load(Relaxed) as usize;
    if dirty_bytes == 0 {
        return 0;
    }
    let target_bytes = dirty_bytes.saturating_sub(bytes);
    let kept_bytes = if scattered == Scattered::Stay { BASE_PAGES * PAGE_BYTES } else { 0 };
    purge_groups(target_bytes, TOGETHER_PAGES, Locked::Go)
        + purge_to(target_bytes.max(kept_bytes), Locked::Go)
}

/// Empties the CPU page lists and purges everything that is free, locked or not; says how many
/// bytes went back.
pub fn purge_all() -> usize {
    purge_all_beyond(0)
}

/// The same until at most `kept_bytes` of free memory stay resident: whole chunks go at a time.
pub fn purge_all_beyond(kept_bytes: usize) -> usize {
    purge_free(kept_bytes, Locked::Go)
}

fn purge_free(kept_bytes: usize, locked: Locked) -> usize {
    super::cpu_pages::drain_all();
    purge_to(kept_bytes, locked)
}

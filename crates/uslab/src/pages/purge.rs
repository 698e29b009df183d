//! Purge: giving the memory behind free pages back to the system.
//!
//! Policy (the reclaim layer adds time and pressure): free dirty pages may add up to a limit.
//! Beyond it a purge goes down to half of the limit: wholly free chunks first, then the others in
//! turn from a cursor. The background thread does it, if there is one. The limit starts at 512 KiB
//! and learns. Each purged page that is handed out again raises it by half a page. So a loop that
//! needs 40 MB over and over soon stops paying for page faults. What was learnt halves each
//! second; frees and purges apply that late.
//!
//! Pages under purge are taken out of the maps, so that the system call runs without the lock.
//!
//! **Locked memory** (`mlock`, `mlockall`) is not purged behind the program's back: a program that
//! locks its memory wants no page faults. The kernel's refusal is what tells. A chunk that was
//! refused is left alone for [`super::policy::REFUSAL_MS`], and its pages do not count as too many
//! meanwhile; so frees make no system call in vain. What the program asks for itself, and pressure,
//! purges locked pages too.
//!
//! **Addresses go back as well** where a limit counts what is mapped (see
//! [`os::memory::is_mapping_limited`]): wholly free chunks are unmapped, and mapped again when no
//! other chunk has room. Elsewhere that would only cost: a mapping more for each hole, and the
//! process's lock on its mappings.

use super::arena::{self, PageIndex};
use super::chunk::{Map, for_each_run};
use super::policy::{BASE_PAGES, Locked};
use super::{CHUNK_PAGES, PAGE_BYTES, buddy};
use crate::sync::in_flight::InFlight;
use crate::{counters, os};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What [`purge_some`] prefers: 64 KiB.
const TOGETHER_PAGES: usize = 16;
/// Chunks without such a group that are looked at.
const MAX_MISSES: usize = 64;
/// Beyond the limit by so much, the freeing thread purges, although there is a background thread:
/// that one cannot keep up.
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
        // A load first, so that `swap` writes rarely: every slow path reads this cache line.
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
pub(super) fn purge_to(target_bytes: usize, locked: Locked) -> usize {
    purge_groups(target_bytes, 1, locked)
}

/// As [`purge_to`], but purges only whole groups of dirty pages. A group has `least_pages` pages, a
/// power of two up to 64, or one system page if that is larger.
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
        // Whole chunks first: what they hold is not about to be used, and the kernel gets its
        // memory back in one piece.
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
        // SAFETY: all pages of the chunk are out of the maps, so that no code uses them; the chunk
        // is mapped.
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
            // What is refused for one chunk (too many mappings) is refused for the others: these
            // are purged.
            (unmap, unmap_clean) = (false, false);
        }
        if !is_purged && dirty > 0 && locked == Locked::Stay {
            break;
        }
    }
    counters::header().purged_bytes.fetch_add(purged as u64, Relaxed);
    purged
}

/// Purges the runs of pages that were `taken` out of the maps of chunk `index`, and their
/// descriptors; false, with some or none of it done, if the system refuses.
fn purge_runs(index: usize, taken: &Map, locked: Locked) -> bool {
    let page = |first: usize| PageIndex((index * CHUNK_PAGES + first) as u32);
    let mut is_purged = true;
    for_each_run(taken, |first, count| {
        let (start, bytes) = (arena::address_of(page(first)), count * PAGE_BYTES);
        // SAFETY: the pages were free and are now out of the maps, so that no code uses them; runs
        // are whole system pages.
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

/// What becomes of dirty pages that stand alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scattered {
    /// Up to 512 KiB of dirty pages stay: most lie in whole groups a little later.
    Stay,
    /// They go like others: memory is wanted now.
    Go,
}

/// Purges about `bytes` of what is free, but for the CPU page lists, which are what is used next;
/// says how many bytes went back.
///
/// Each system call interrupts every CPU that runs a thread of the process. So what lies together
/// goes first.
pub fn purge_some(bytes: usize, scattered: Scattered) -> usize {
    let dirty_bytes = counters::header().dirty_bytes.load(Relaxed) as usize;
    if dirty_bytes == 0 {
        return 0;
    }
    let target_bytes = dirty_bytes.saturating_sub(bytes);
    let kept_bytes = if scattered == Scattered::Stay { BASE_PAGES * PAGE_BYTES } else { 0 };
    purge_groups(target_bytes, TOGETHER_PAGES, Locked::Go)
        + purge_to(target_bytes.max(kept_bytes), Locked::Go)
}

//! Purge: gives the memory behind free pages back to the system.
//!
//! The policy, to which the reclaim layer adds time and pressure, is a limit on free dirty pages.
//! When they exceed it, a purge reduces them to half of the limit. It takes wholly free chunks
//! first, then the other chunks in turn from a cursor. The background thread runs it, if there is
//! one.
//!
//! The limit starts at 512 KiB and learns. Each purged page that an allocation takes again raises
//! it by half a page. So a loop that needs 40 MB over and over soon stops paying for page faults.
//! The learnt part halves each second; the next free or purge applies the halving.
//!
//! A purge takes its pages out of the maps, so that the system call runs without the lock.
//!
//! **Locked memory** (`mlock`, `mlockall`) stays: a program that locks its memory wants no page
//! faults. A purge recognises it by the kernel's refusal. After a refusal, purges leave the chunk
//! alone for [`super::policy::REFUSAL_MS`], and its pages do not count against the limit meanwhile.
//! So frees make no system calls in vain. A purge that the program requests, or that pressure
//! causes, takes locked pages too.
//!
//! **Addresses** go back too where a limit counts mapped bytes (see
//! [`os::memory::is_mapping_limited`]). The purge unmaps wholly free chunks, and the buddy maps
//! them again when no other chunk has room. Without such a limit this would only cost: one mapping
//! more for each hole, and the process's lock on its mappings.

use super::arena::{self, PageIndex};
use super::chunk::{Map, for_each_run};
use super::policy::{BASE_PAGES, Locked};
use super::{CHUNK_PAGES, PAGE_BYTES, buddy};
use crate::sync::in_flight::InFlight;
use crate::{counters, os};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Pages of the groups that [`purge_some`] takes first: 64 KiB.
const TOGETHER_PAGES: usize = 16;
/// A purge of groups gives up after this many chunks without a group.
const MAX_MISSES: usize = 64;
/// Dirty pages beyond the limit that are left to the background thread. Beyond that the background
/// thread cannot keep up, and the freeing thread purges.
const MAX_LEFT_PAGES: usize = (32 << 20) / PAGE_BYTES;
/// The background thread was woken to purge, and has not started.
static IS_NOTIFIED: AtomicBool = AtomicBool::new(false);

/// If there are too many dirty pages, wakes the background thread to purge them, or purges them.
/// Called after a free of pages; the caller holds no lock.
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

/// Dirty pages beyond the limit, after its decay; `None` if there are none.
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

/// If dirty pages exceed the limit, purges them down to half of it. Returns the bytes purged.
pub fn purge_excess() -> usize {
    IS_NOTIFIED.store(false, Relaxed);
    if beyond_limit().is_none() {
        return 0;
    }
    let target = buddy::lock().policy.limit_pages() / 2;
    purge_to(target * PAGE_BYTES, Locked::Stay)
}

/// Purges until at most `target_bytes` of free memory stay resident. Returns the bytes purged.
///
/// Holds no lock during the system calls. May miss pages that are freed meanwhile.
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
    // At most one round over the chunks: with large system pages some dirty pages cannot be purged.
    for _ in 0..arena::chunks_committed() {
        let mut buddy = buddy::lock();
        if buddy.purgeable_pages(locked) * PAGE_BYTES <= target_bytes && !unmap_clean {
            break;
        }
        let cursor = buddy.policy.cursor;
        // Wholly free chunks first: allocations use them last, and the kernel gets its memory back
        // in one piece.
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
            // A refusal to unmap (too many mappings) holds for the other chunks too: purge those,
            // and leave them mapped.
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
/// descriptors. Returns false if the system refuses; then some of the runs may be purged.
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
    // No owner uses the descriptors of 64 free pages in a row, and a late reader may see zeroes
    // there (see `slab`). So a few scattered slabs do not keep a chunk's 32 KiB of descriptors.
    let words = taken.map(|pages| if pages == u64::MAX { pages } else { 0 });
    if is_purged {
        for_each_run(&words, |first, count| arena::purge_descriptors(page(first), count));
    }
    is_purged
}

/// How [`purge_some`] treats dirty pages outside whole groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scattered {
    /// Leaves up to 512 KiB of dirty pages: most of them lie in whole groups a little later.
    Stay,
    /// Purges them like other pages: memory is needed now.
    Go,
}

/// Purges about `bytes` of free memory. Returns the bytes purged. It leaves the CPU page lists
/// alone, because the next allocations use their pages.
///
/// Each system call interrupts every CPU that runs a thread of the process. So the purge takes
/// groups of adjacent pages first.
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

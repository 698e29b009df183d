//! Purge: gives the memory behind free pages back to the system.
//!
//! Free memory stays for about a second. The background thread purges what was idle meanwhile (see
//! [`super::decay`]). A purge takes wholly free chunks first, then the other chunks in turn from a
//! cursor.
//!
//! Free memory is **bounded** if it cannot wait: there is no background thread, a limit counts
//! mapped bytes, or the decay is 0. When dirty pages then exceed an allowance, a purge reduces them
//! to half of it; with a decay of 0 each free purges. The background thread does it if there is
//! one, the decay is not 0, and no more than 32 MiB are beyond the allowance; otherwise the freeing
//! thread does. A freeing thread also purges if the background thread is late. A fork child starts
//! with an allowance of what it found free.
//!
//! The allowance starts at 512 KiB and learns. Each purged page that an allocation takes again
//! raises it by half a page. So a loop that needs 40 MB over and over soon stops paying for page
//! faults. The learnt part halves each second; the next free or purge applies the halving.
//!
//! A purge takes its pages out of the maps, so that the system call runs without the lock.
//!
//! **Locked memory** (`mlock`, `mlockall`) stays: a program that locks its memory wants no page
//! faults. A purge recognises it by the kernel's refusal. After a refusal, purges leave the chunk
//! alone for [`super::policy::REFUSAL_MS`], and its pages do not count against the allowance
//! meanwhile. So frees do not repeat system calls that the kernel refuses. A purge that the program
//! requests, or that pressure causes, takes locked pages too, since Linux 5.18.
//!
//! **Addresses** go back too where a limit counts mapped bytes (see
//! [`os::memory::is_mapping_limited`]). The purge unmaps wholly free chunks, and the buddy maps
//! them again when no other chunk has room. Without such a limit this would only cost: one mapping
//! more for each hole, and the process's lock on its mappings.

use super::arena::{self, PageIndex};
use super::bound::{self, is_bounded, notify};
use super::chunk::{Map, for_each_run};
use super::policy::{BASE_PAGES, Locked};
use super::{CHUNK_PAGES, PAGE_BYTES, buddy, decay};
use crate::sync::in_flight::InFlight;
use crate::{counters, os};
use core::sync::atomic::Ordering::Relaxed;

/// Pages of the blocks that [`purge_some`] takes first: 64 KiB.
const TOGETHER_PAGES: usize = 16;
/// A purge of blocks gives up after this many chunks without a block.
const MAX_MISSES: usize = 64;
/// 32 MiB. With more dirty memory than this, a freeing thread looks whether the background thread
/// is late, and if so purges up to as much itself. Where free memory is bounded, an excess of up to
/// as much is left to the background thread.
const LATE_PAGES: usize = (32 << 20) / PAGE_BYTES;

/// If free memory is bounded and there are too many dirty pages, wakes the background thread to
/// purge them, or purges them. Called after a free of pages; the caller holds no lock.
pub(super) fn after_free(dirty_pages: usize) {
    if !is_bounded() {
        if dirty_pages > LATE_PAGES && decay::is_late(os::clock::coarse_ms()) {
            purge_idle(LATE_PAGES, BASE_PAGES);
        }
        return;
    }
    if dirty_pages <= BASE_PAGES && !decay::is_at_once() {
        return;
    }
    let Some(beyond) = beyond_allowance() else { return };
    if os::sleep::has_background_thread() && beyond <= LATE_PAGES && !decay::is_at_once() {
        notify();
    } else {
        purge_excess();
    }
}

/// Dirty pages beyond the allowance, after its halving; `None` if there are none.
fn beyond_allowance() -> Option<usize> {
    let mut buddy = buddy::lock();
    let now_ms = os::clock::coarse_ms();
    buddy.policy.halve_allowance(now_ms);
    buddy.forget_refusals(now_ms);
    let purgeable_pages = buddy.purgeable_pages(Locked::Stay);
    purgeable_pages.checked_sub(buddy.policy.allowance_pages()).filter(|&beyond| beyond > 0)
}

/// If dirty pages exceed the allowance, purges them down to half of it. Returns the bytes purged.
fn purge_excess() -> usize {
    bound::take_notice();
    if beyond_allowance().is_none() {
        return 0;
    }
    let target = buddy::lock().policy.allowance_pages() / 2;
    purge_to(target * PAGE_BYTES, Locked::Stay)
}

/// Purges what cannot wait for the next tick. The background thread calls this when it is woken
/// before its time, and at the end of a short period. `rested`: no thread took or freed pages since
/// the last tick.
pub fn purge_due(rested: bool) {
    let is_notified = bound::take_notice();
    if is_bounded() {
        purge_excess();
    } else if is_notified {
        purge_unfit();
    }
    purge_idle(usize::MAX, if rested { 0 } else { BASE_PAGES });
}

/// Purges free pages that did not fit, where a process that grew holds more than it needs.
fn purge_unfit() {
    let buddy = buddy::lock();
    let too_many = buddy.held_pages().saturating_sub(buddy.policy.window.goal_pages());
    let target_pages = buddy.dirty_pages.saturating_sub(too_many);
    drop(buddy);
    purge_to(target_pages.max(BASE_PAGES) * PAGE_BYTES, Locked::Stay);
}

/// The purge of the background thread at each tick. True if pages rested, none went, and none is
/// left that could go.
pub(super) fn purge_at_tick(rested: bool) -> bool {
    bound::check_limits();
    let is_notified = bound::take_notice();
    let excess = if is_bounded() { purge_excess() } else { 0 };
    if is_notified && !is_bounded() {
        purge_unfit();
    }
    let is_settled = purge_idle(usize::MAX, if rested { 0 } else { BASE_PAGES });
    rested && is_settled && excess == 0
}

/// At the end of a period, purges the pages that were idle: at most `most_pages`, and none of the
/// last `kept_pages`. Returns whether it tried all free pages and purged none, now or at the end of
/// the period before.
fn purge_idle(most_pages: usize, kept_pages: usize) -> bool {
    let mut buddy = buddy::lock();
    let now_ms = os::clock::coarse_ms();
    let Some(period_ms) = decay::period_ms() else { return true };
    if !decay::is_over(now_ms, period_ms) {
        return buddy.policy.settled_pages == buddy.dirty_pages;
    }
    buddy.forget_refusals(now_ms);
    let dirty_pages = buddy.dirty_pages;
    let step_pages = buddy.policy.window.step_pages().min(most_pages);
    let target_pages = (dirty_pages - step_pages).max(kept_pages);
    decay::begin_period(now_ms);
    let used_pages = buddy.held_pages() - dirty_pages;
    buddy.policy.window.begin_period(dirty_pages, used_pages);
    buddy.policy.settled_pages = usize::MAX;
    drop(buddy);
    // With a target of zero, clean chunks may be unmapped.
    let is_tried = step_pages > 0 || target_pages == 0;
    let is_vain = is_tried && purge_to(target_pages * PAGE_BYTES, Locked::Stay) == 0;
    if is_vain && target_pages == 0 {
        let mut buddy = buddy::lock();
        buddy.policy.settled_pages = buddy.dirty_pages;
    }
    is_vain && target_pages == 0
}

/// Purges until at most `target_bytes` of free memory stay resident. Returns the bytes purged.
///
/// Holds no lock during the system calls. May miss pages that are freed meanwhile.
pub(super) fn purge_to(target_bytes: usize, locked: Locked) -> usize {
    purge_blocks(target_bytes, 1, locked)
}

/// As [`purge_to`], but purges only whole blocks of dirty pages. A block has `least_pages` pages, a
/// power of two up to 64, or one system page if that is larger.
fn purge_blocks(target_bytes: usize, least_pages: usize, locked: Locked) -> usize {
    let block = (os::memory::page_bytes() / PAGE_BYTES).max(least_pages);
    let mut unmap = os::memory::is_mapping_limited();
    let mut unmap_clean = unmap && target_bytes == 0;
    let (mut purged, mut in_vain) = (0, 0);
    // The chunks to choose from: after a refusal no more those that the system refused.
    let mut chosen = locked;
    // A walk of all chunks finds no others once it found none.
    let mut has_dirty = true;
    // At most one round over the chunks: with large system pages some dirty pages cannot be purged.
    for _ in 0..arena::chunks_committed() {
        let mut buddy = buddy::lock();
        if buddy.purgeable_pages(chosen) * PAGE_BYTES <= target_bytes && !unmap_clean {
            break;
        }
        let cursor = buddy.policy.cursor;
        // Wholly free chunks first: allocations use them last, and the kernel gets its memory back
        // in one piece. Huge pages are split last.
        let next = buddy.next_whole(chosen, unmap_clean).or_else(|| {
            let next = has_dirty.then(|| buddy.next_dirty(cursor, chosen)).flatten();
            has_dirty = next.is_some();
            next
        });
        let may_split = buddy.huge_pages > buddy.kept_huge_pages(chosen);
        let next = next.or_else(|| may_split.then(|| buddy.next_huge(cursor, chosen, block)).flatten());
        let Some(index) = next else { break };
        buddy.policy.cursor = index + 1;
        let _in_flight = InFlight::begin();
        let may_unmap = unmap && buddy.may_be_unmapped(index);
        let is_whole = may_unmap && buddy.is_all_free(index);
        if !is_whole && !buddy.has_to_purge(index, block) {
            in_vain += 1;
            if in_vain >= MAX_MISSES && least_pages > 1 {
                break;
            }
            continue;
        }
        let stays_advised = buddy.is_all_free(index) && !buddy.is_collapsing(index);
        let must_revoke = !stays_advised && buddy.split(index);
        let (taken, dirty) = buddy.with_chunk(index, |chunk| {
            let before = chunk.dirty_pages;
            let taken = if is_whole { chunk.claim_whole() } else { chunk.claim_dirty(block) };
            (taken, before - chunk.dirty_pages)
        });
        buddy.policy.window.note_purged(usize::from(dirty));
        drop(buddy);

        if must_revoke {
            buddy::revoke(index);
        }
        let is_purged = purge_runs(index, &taken, locked);
        // SAFETY: all pages of the chunk are out of the maps, so that no code uses them; the chunk
        // is mapped.
        let is_unmapped = is_purged && is_whole && unsafe { arena::unmap_memory(index, 1) };

        let mut buddy = buddy::lock();
        let period = buddy.policy.period;
        buddy.with_chunk(index, |chunk| {
            chunk.restore(&taken, is_purged);
            if is_unmapped {
                buddy::note_unmapped(index, chunk);
            }
            chunk.refused_in = if is_purged { 0 } else { period };
        });
        if is_unmapped {
            arena::note_unmapped(1);
        } else {
            buddy.leave_policy(index);
        }
        if is_purged {
            buddy.policy.purged_pages += usize::from(dirty);
            purged += usize::from(dirty) * PAGE_BYTES;
        }
        buddy.publish();
        if is_whole && !is_unmapped {
            // A refusal to unmap (too many mappings) holds for the other chunks too: purge those,
            // and leave them mapped.
            (unmap, unmap_clean) = (false, false);
        }
        if !is_purged && dirty > 0 {
            if locked == Locked::Stay {
                break;
            }
            chosen = Locked::Stay;
        }
    }
    counters::header().purged_bytes.fetch_add(purged as u64, Relaxed);
    if purged > 0 {
        os::probe::purge(|| [purged, counters::header().dirty_bytes.load(Relaxed) as usize]);
    }
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

/// How [`purge_some`] treats dirty pages outside whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scattered {
    /// Leaves up to 512 KiB of dirty pages: most of them lie in whole blocks a little later.
    Stay,
    /// Purges them like other pages: memory is needed now.
    Go,
}

/// Purges about `bytes` of free memory. Returns the bytes purged. It leaves the CPU page lists
/// alone, because the next allocations use their pages.
///
/// Each system call interrupts every CPU that runs a thread of the process. So the purge takes
/// blocks of adjacent pages first.
pub fn purge_some(bytes: usize, scattered: Scattered) -> usize {
    let dirty_bytes = counters::header().dirty_bytes.load(Relaxed) as usize;
    if dirty_bytes == 0 {
        return 0;
    }
    let target_bytes = dirty_bytes.saturating_sub(bytes);
    let kept_bytes = if scattered == Scattered::Stay { BASE_PAGES * PAGE_BYTES } else { 0 };
    purge_blocks(target_bytes, TOGETHER_PAGES, Locked::Go)
        + purge_to(target_bytes.max(kept_bytes), Locked::Go)
}

#[cfg(test)]
mod tests {
    use super::super::chunk::Chunk;
    use super::super::{Fill, Temperature, alloc, free, purge_all, purge_rested, rested};
    use super::*;

    /// Periods that end between two ticks must not keep the last pages for ever.
    #[test]
    fn the_last_pages_go_between_two_looks_once_they_rested() {
        set_up!();
        // In a child, which has one thread.
        assert!(os::fork::holds_in_child(|| {
            purge_all();
            let run = alloc(BASE_PAGES / 2, 0, Temperature::Cold, Fill::Sparse).expect("there is room");
            // SAFETY: the run is the test's.
            unsafe { arena::address_of(run.first).write_bytes(1, BASE_PAGES / 2 * PAGE_BYTES) };
            free(run.first, BASE_PAGES / 2, Temperature::Cold);
            let dirty_pages = || buddy::lock().dirty_pages;
            let freed_pages = dirty_pages();
            // The period of the free ends at a tick; the next two end between ticks.
            decay::begin_period(0);
            purge_rested(false);
            for _ in 0..2 {
                decay::begin_period(0);
                purge_due(rested());
            }
            freed_pages >= BASE_PAGES / 2 && dirty_pages() == 0
        }));
    }

    #[test]
    fn a_purge_of_groups_that_finds_none_leaves_the_huge_page() {
        set_up!();
        // In a child, which has one thread.
        assert!(os::fork::holds_in_child(|| {
            purge_all();
            let run = alloc(CHUNK_PAGES, 9, Temperature::Cold, Fill::Sparse).expect("there is room");
            let index = run.first.0 as usize / CHUNK_PAGES;
            let is_huge = || {
                let _buddy = buddy::lock();
                // SAFETY: committed, under the lock.
                unsafe { (*arena::chunk(index)).is_huge }
            };
            buddy::lock().with_chunk(index, Chunk::back_with_huge);
            // So few that the frees purge none of them.
            let freed = (0..BASE_PAGES).step_by(2);
            freed.clone().for_each(|page| free(run.first.plus(page), 1, Temperature::Cold));
            let in_vain = purge_blocks(0, TOGETHER_PAGES, Locked::Go) == 0 && is_huge();
            in_vain && purge_to(0, Locked::Go) == freed.len() * PAGE_BYTES && !is_huge()
        }));
    }
}

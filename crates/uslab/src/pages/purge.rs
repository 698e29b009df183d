//! Purge: giving the memory behind free pages back to the system.
//!
//! Free memory stays for about a second, and the background thread purges what was idle meanwhile
//! (see [`super::decay`]). The thread that frees purges nothing, unless the background thread is
//! late. A purge takes wholly free chunks first, then the others in turn from a cursor.
//!
//! **Bounded** is free memory where it cannot wait: no background thread will come by, or a limit
//! counts what is mapped. Then dirty pages may add up to a limit, and a purge goes down to half of
//! it. The limit starts at 512 KiB and learns. Each purged page that is handed out again raises it
//! by half a page. So a loop that needs 40 MB over and over soon stops paying for page faults. What
//! was learnt halves each second; frees and purges apply that late. A fork child begins with a
//! limit of what it found free.
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
use super::policy::{self, BASE_PAGES, Locked, is_bounded};
use super::{CHUNK_PAGES, PAGE_BYTES, buddy, decay};
use crate::sync::in_flight::InFlight;
use crate::{counters, os};
use core::sync::atomic::Ordering::Relaxed;

/// What [`purge_some`] prefers: 64 KiB.
const TOGETHER_PAGES: usize = 16;
/// Chunks without such a group that are looked at.
const MAX_MISSES: usize = 64;
/// Free memory that the freeing thread leaves to a background thread that is late: 32 MiB. The
/// freeing thread purges no more than that at a time.
const LATE_PAGES: usize = (32 << 20) / PAGE_BYTES;
/// Called after pages were freed, without locks: where free memory is bounded, purges what is too
/// much, or has the background thread do it.
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
    let Some(beyond) = beyond_limit() else { return };
    if os::sleep::has_background_thread() && beyond <= LATE_PAGES && !decay::is_at_once() {
        policy::notify();
    } else {
        purge_excess();
    }
}

/// Dirty pages beyond the limit as it is now.
fn beyond_limit() -> Option<usize> {
    let mut buddy = buddy::lock();
    let now_ms = os::clock::coarse_ms();
    buddy.policy.decay(now_ms);
    buddy.forget_refusals(now_ms);
    let purgeable_pages = buddy.purgeable_pages(Locked::Stay);
    purgeable_pages.checked_sub(buddy.policy.limit_pages()).filter(|&beyond| beyond > 0)
}

/// Purges down to half of the limit, if it is exceeded; returns the bytes that went.
fn purge_excess() -> usize {
    if beyond_limit().is_none() {
        return 0;
    }
    let target = buddy::lock().policy.limit_pages() / 2;
    purge_to(target * PAGE_BYTES, Locked::Stay)
}

/// What the background thread purges when it is woken before its time, and at the end of a short
/// period.
pub fn purge_due() {
    let is_notified = policy::take_notice();
    if is_bounded() {
        purge_excess();
    } else if is_notified {
        purge_unfit();
    }
    purge_idle(usize::MAX, BASE_PAGES);
}

/// Purges free pages that did not fit, where a process that grew holds more than it needs.
fn purge_unfit() {
    let buddy = buddy::lock();
    let too_many = buddy.held_pages().saturating_sub(buddy.policy.window.goal_pages());
    let target_pages = buddy.dirty_pages.saturating_sub(too_many);
    drop(buddy);
    purge_to(target_pages.max(BASE_PAGES) * PAGE_BYTES, Locked::Stay);
}

/// What it purges at each look. True if pages rested, none went, and none is left that could go.
pub(super) fn purge_at_look(rested: bool) -> bool {
    policy::set_mapping_limited(os::memory::is_mapping_limited());
    let is_notified = policy::take_notice();
    let excess = if is_bounded() { purge_excess() } else { 0 };
    if is_notified && !is_bounded() {
        purge_unfit();
    }
    let is_settled = purge_idle(usize::MAX, if rested { 0 } else { BASE_PAGES });
    rested && is_settled && excess == 0
}

/// At the end of a period, purges the pages whose turn it is: at most `most_pages`, and none of the
/// last `kept_pages`. True if all free pages were tried in vain, now or at the end before.
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
        buddy.policy.window.note_purged(usize::from(dirty));
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

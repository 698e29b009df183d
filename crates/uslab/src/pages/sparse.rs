//! Sparse runs: runs of which only some pages are charged.
//!
//! A large slab takes the addresses of all its pages at once, but is charged for a page only when
//! an object on it is about to be used. The owner of the run keeps a mask of the charged pages,
//! which are the only ones that can have memory. Limits and figures count these pages alone.

use super::arena::{self, PageIndex};
use super::home::Home;
use super::policy::{Locked, REFUSAL_MS};
use super::{CHUNK_BYTES, CHUNK_PAGES, Fill, PAGE_BYTES, buddy, cpu_pages, decay, purge};
use crate::os::invariant::invariant;
use crate::os::numa::NumaPolicy;
use crate::sync::in_flight::InFlight;
use crate::{counters, os};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A run of `2^order` pages with `policy` on a boundary of as many, up to 64 of them. Returns its
/// first page, and the mask of charged pages: those in `needed`, and those that have memory
/// already. `None` if memory or address space is used up.
pub fn alloc_sparse(policy: NumaPolicy, order: u32, needed: u64, fill: Fill) -> Option<(PageIndex, u64)> {
    let run = buddy::lock().alloc_sparse(order, needed, fill, Home::of(policy));
    run.filter(|&(first, _)| cpu_pages::is_free_run(first, 1 << order, 1 << order))
}

/// Charges `pages` more pages of the sparse run at `first`. False, and nothing done, if the hard
/// limit forbids it.
pub fn charge(first: PageIndex, pages: usize) -> bool {
    buddy::lock().charge_of(first, pages)
}

/// Undoes [`charge`], for pages that were purged.
pub fn uncharge(first: PageIndex, pages: usize) {
    if pages > 0 {
        buddy::lock().uncharge_of(first, pages);
    }
}

/// Gives back a run that [`alloc_sparse`] returned, of which the pages in the mask `charged` are
/// charged now. No page of it may have an owner in the page map.
pub fn free_sparse(first: PageIndex, order: u32, charged: u64) {
    let dirty_pages = buddy::lock().free_sparse(first, order, charged);
    os::sleep::note_activity();
    purge::after_free(dirty_pages);
}

/// When the system last refused to purge pages in use.
static REFUSED_MS: AtomicU64 = AtomicU64::new(0);

/// Whether pages that rest may go, and it is worth while to purge them: the system has not refused
/// lately.
pub fn may_purge_rested() -> bool {
    let refused_ms = REFUSED_MS.load(Relaxed);
    decay::ms().is_some()
        && (refused_ms == 0 || os::clock::coarse_ms().saturating_sub(refused_ms) >= REFUSAL_MS)
}

/// Whether `pages` free pages of a slab in use at `first`, which rest, should go although memory is
/// not wanted. Where that would split a huge page, a single page stays.
pub fn should_purge_rested(first: PageIndex, pages: usize) -> bool {
    buddy::lock().should_purge_rested(first, pages)
}

/// Purges `pages` charged pages from `first` on, which read as zero afterwards. False, with some or
/// none of them purged, if the system refuses, as it does for locked memory.
///
/// # Safety
/// The pages must be whole system pages of the caller's run, and no thread may use them.
pub unsafe fn purge_used(first: PageIndex, pages: usize, locked: Locked) -> bool {
    let (start, bytes) = (arena::address_of(first), pages * PAGE_BYTES);
    let index = first.0 as usize / CHUNK_PAGES;
    let page_bytes = os::memory::page_bytes();
    invariant!(
        start.addr().is_multiple_of(page_bytes) && bytes.is_multiple_of(page_bytes),
        "a purge takes whole system pages",
        start
    );
    // Until the pages are gone, the chunk must not get a huge page (see `buddy/collapse.rs`).
    let _in_flight = InFlight::begin();
    let must_revoke = buddy::lock().split(index);
    if must_revoke {
        buddy::revoke(index);
    }
    // SAFETY: the caller's promise.
    let is_purged = unsafe {
        match locked {
            Locked::Stay => os::memory::purge(start, bytes),
            Locked::Go => os::memory::purge_locked(start, bytes),
        }
    };
    if is_purged {
        counters::header().purged_bytes.fetch_add(bytes as u64, Relaxed);
        os::probe::purge(|| [bytes, counters::header().dirty_bytes.load(Relaxed) as usize]);
    } else {
        REFUSED_MS.store(os::clock::coarse_ms(), Relaxed);
    }
    is_purged
}

/// Purges a chunk in use, unless more than half of it is resident; returns whether it did. Where
/// the library may not ask what is resident, `unasked` decides.
///
/// # Safety
/// The chunk that begins at `first` must be part of the caller's run, and no thread may use it.
pub unsafe fn purge_sparse_chunk(first: PageIndex, unasked: bool) -> bool {
    let start = arena::address_of(first);
    let resident = || os::memory::resident_bytes::<CHUNK_BYTES>(start.addr());
    match os::filter::may_ask_residence().then(resident) {
        // Perhaps swapped out. A chunk that was never touched keeps the advice to get a huge page.
        // SAFETY: the caller's promise.
        Some(0) => unsafe { os::memory::purge(start, CHUNK_BYTES) },
        Some(bytes) if bytes > CHUNK_BYTES / 2 => false,
        None if !unasked => false,
        // SAFETY: the caller's promise.
        _ => unsafe { purge_used(first, CHUNK_PAGES, Locked::Stay) },
    }
}

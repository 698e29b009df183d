//! Giving back: what is free in caches and pages goes to the system.
//!
//! ```text
//!   pages with memory behind them ── pages::purge_some: as many as are wanted
//!   sheaves of this CPU, barns    ── trim_some: where they hold much
//!   empty slabs                   ── trim_some: of each cache in proportion, but its last
//!   what rested half a second     ── trim_idle
//!   everything                    ── trim
//! ```
//!
//! What is taken from a cache in use it will ask for again: a slot that is drained costs its thread a slow path and, if the slab went with it, a page fault.

use super::{registry, start};
use crate::pages;
use crate::percpu::{Drain, Keep, adapt, sheaf};
use crate::sync::in_flight::Search;

/// Gives free memory of the whole process back to the system, now: flushes all sheaves, shrinks all
/// caches and purges all pages. About `kept_bytes` of it stay with the process, as free pages. Returns
/// the bytes that went.
///
/// Caches that are in use fetch what they need again, at the price of a page fault for each page:
/// for programs that go idle, or change their phase. Blocks for the system calls, and while other
/// threads create or destroy caches. It calls no shrinker; see [`crate::reclaim()`]. Not for signal
/// handlers.
///
/// ```
/// let gone_bytes = uslab::trim(0);
/// assert_eq!(gone_bytes % 4096, 0);
/// ```
pub fn trim(kept_bytes: usize) -> usize {
    if !start::is_ready() {
        return 0;
    }
    // Keeps caches from being destroyed meanwhile.
    let registry = registry::lock();
    let mut drain = Drain::of_all();
    registry::for_each(|core| core.cpu.drain_slots(&mut drain));
    drop(drain);
    registry::for_each(|core| {
        core.cpu.drain_barns();
        core.cpu.slabs().shrink();
    });
    drop(registry);
    sheaf::slabs().iter().for_each(|slabs| {
        slabs.shrink();
    });
    pages::purge_all_beyond(kept_bytes)
}

/// Turns about `bytes` of what nobody will miss soon into free pages: sheaves of this CPU and of barns, where they hold enough to matter; then empty slabs beyond
/// each cache's last, of all caches in proportion to what they have.
pub(crate) fn trim_some(bytes: usize) {
    if !start::is_ready() {
        return;
    }
    adapt::note_pressure();
    // Keeps caches from being destroyed meanwhile.
    let _registry = registry::lock();
    let enough_bytes = (bytes / ENOUGH_PART).max(ENOUGH_BYTES);
    let (mut spare_bytes, mut drained_bytes) = (0, 0);
    registry::for_each(|core| {
        if drained_bytes < bytes {
            drained_bytes += core.cpu.drain_this_cpu(enough_bytes);
        }
        spare_bytes += core.cpu.slabs().spare_bytes();
    });
    let wanted = bytes.min(spare_bytes) as u128;
    let mut owed = 0;
    registry::for_each(|core| {
        let slabs = core.cpu.slabs();
        // What does not come to a whole slab is the next one's to give.
        owed += (slabs.spare_bytes() as u128 * wanted).div_ceil(spare_bytes.max(1) as u128) as usize;
        owed = owed.saturating_sub(slabs.shrink_by(owed));
    });
}

/// Sheaves matter that hold such a part of what is missing, and so much: those that are at work elsewhere are spared.
const ENOUGH_PART: usize = 16;
const ENOUGH_BYTES: usize = 64 << 10;

/// Whether [`trim`] would find anything. Takes no lock.
pub(crate) fn has_free_memory() -> bool {
    pages::has_free_memory() || registry::any(|core| core.cpu.has_free())
}

/// The same, or would once others have put down what they have in hand.
pub(crate) fn will_have_free_memory() -> bool {
    let search = Search::begin();
    // Twice at pages, where all that is on its way arrives.
    has_free_memory() || pages::has_free_memory() || search.missed()
}

/// Caches that are looked at under one lock and drained by one barrier, which takes longer than all the rest.
const TOGETHER: usize = 32;
/// But no more than have so many slots: who makes a cache meanwhile waits.
const SLOTS_TOGETHER: usize = 1024;

/// What the background thread does twice a second: sheaves that nobody touched since the last time are emptied, empty slabs above their
/// targets and pages above theirs go back; of caches and pages that rested altogether, all of them. True if there was nothing to do, and
/// nothing is left to.
pub(crate) fn trim_idle() -> bool {
    let mut idle = true;
    let rested = pages::rested();
    let together = (SLOTS_TOGETHER / start::cpus().max(1)).clamp(1, TOGETHER);
    let mut ids = registry::ids().peekable();
    while ids.peek().is_some() {
        // Keeps them from being destroyed.
        let _registry = registry::lock();
        let mut drain = Drain::of_idle(Keep::Pages);
        for core in ids.by_ref().take(together).filter_map(registry::cache) {
            let slabs = core.cpu.slabs();
            if core.cpu.flush_idle(&mut drain) {
                idle &= slabs.shrink() == 0;
            } else {
                slabs.shrink_to_target();
                idle = false;
            }
        }
    }
    adapt::begin_period();
    for slabs in sheaf::slabs() {
        if idle {
            slabs.shrink()
        } else {
            slabs.shrink_to_target()
        };
    }
    pages::purge_rested(rested) == 0 && rested && idle
}

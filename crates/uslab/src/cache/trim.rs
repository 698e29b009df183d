//! Giving back: what is free in caches and pages goes to the system.
//!
//! ```text
//!   pages with memory behind them ── pages::purge_some: as many as are wanted
//!   sheaves of this CPU, barns    ── trim_some: where they hold much
//!   empty slabs                   ── trim_some: of each cache in proportion, but its last
//!   what idles                    ── trim_idle
//!   everything                    ── trim, trim_all
//! ```
//!
//! A cache in use asks again for what is taken from it: a slot that is drained costs its thread a
//! slow path and, if the slab went with it, a page fault.
//!
//! [`short`] is all that an allocation needs of this while no layer above has installed hooks: it
//! takes the same, the gentle part first, and then fails.

use super::{registry, state};
use crate::os;
use crate::pages::{self, Scattered};
use crate::percpu::{Drain, Keep, adapt, sheaf};
use crate::sync::CachePadded;
use crate::sync::in_flight::{self, Search};
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use core::time::Duration;

/// Gives free memory of the whole process back to the system, now: flushes all sheaves, shrinks all
/// caches and purges all pages. About `kept_bytes` of it stay with the process, as free pages.
/// Returns the bytes that went.
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
    if !state::is_ready() {
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

/// Chooses how long free memory stays before it returns to the system, from now on: 1 s, unless the
/// environment (`USLAB_DECAY_MS`) or an earlier call says otherwise. `None` is for ever.
///
/// Memory that the program frees and takes again within that time stays, and costs no page fault.
/// What was not needed for so long returns in the background, within another half of the time; of
/// more than 512 MiB a half at a time. With zero, the freeing thread returns it, at the price of a
/// system call for each free that empties a page. Under pressure, at limits, and by [`trim`] memory
/// returns whatever was chosen.
///
/// Without a background thread (`USLAB_REAPER=0`, or less than 16 MiB of memory), the freeing
/// thread bounds free memory instead: to 512 KiB, and as much as the program took again lately.
/// Times below 20 ms count as 20. Any thread may call it; it neither allocates nor blocks.
///
/// ```
/// use std::time::Duration;
/// uslab::set_decay(Some(Duration::from_millis(200)));
/// ```
pub fn set_decay(decay: Option<Duration>) {
    pages::decay::set_ms(decay.map(|decay| decay.as_millis().try_into().unwrap_or(u64::MAX)));
    // The background thread may sleep for a longer period than the new one.
    os::sleep::wake();
}

/// There are no pages for `bytes`. Gives back about as much of what is free and calls `attempt`; if
/// that fails, gives back everything and calls it once more. Says whether one succeeded. Calls
/// nothing of the program. No lock may be held.
pub(super) fn short(bytes: usize, attempt: &mut dyn FnMut() -> bool) -> bool {
    let given_bytes = pages::purge_some(bytes, Scattered::Go);
    if given_bytes < bytes {
        trim_some(bytes - given_bytes, Scattered::Go);
    }
    attempt() || {
        trim_all(true);
        attempt()
    }
}

static TRIMMING: CachePadded<AtomicBool> = CachePadded(AtomicBool::new(false));

/// Turns about `bytes` of what will not be missed soon into free pages, and purges them: sheaves of
/// this CPU and of barns, where they hold enough to matter; then empty slabs beyond each cache's
/// last, of all caches in proportion to what they have.
///
/// One thread at a time does it; others have little to add, and go on. Where there is nothing, no
/// lock is taken: of the reclaim calls that Linux saw in 2002 nine in ten came back empty-handed,
/// and stood in a queue for it.
pub(crate) fn trim_some(bytes: usize, scattered: Scattered) {
    if bytes > 0 && has_free_memory() && !TRIMMING.swap(true, Acquire) {
        shrink_some(bytes);
        TRIMMING.store(false, Release);
        pages::purge_some(bytes, scattered);
    }
}

/// Gives back all that is free: sheaves, empty slabs, pages. With `waits` also what other threads
/// have in flight: an allocation must not fail for what they are about to free.
pub(crate) fn trim_all(waits: bool) {
    if !will_have_free_memory() {
        return;
    }
    if waits {
        // Memory that a drain has in flight arrives in slabs.
        wait_for_in_flight();
    }
    trim(0);
    if waits {
        // Memory that a purge has in flight arrives in pages.
        wait_for_in_flight();
    }
}

/// Waits until other threads have landed what they have in flight, most often for a system call's
/// time; a few naps longer, in case that they are off their CPUs.
fn wait_for_in_flight() {
    const SPINS: u32 = 1000;
    const NAPS: u32 = 4;
    for looks in 0..SPINS + NAPS {
        if !in_flight::is_any() {
            return;
        }
        if looks < SPINS {
            core::hint::spin_loop();
        } else {
            os::sleep::pause(1);
        }
    }
}

/// In a fork child: the thread that was trimming is not here.
pub(super) fn reset_in_child() {
    TRIMMING.whole().store(false, Relaxed);
    in_flight::reset_in_child();
}

/// The part of [`trim_some`] before pages.
fn shrink_some(bytes: usize) {
    if !state::is_ready() {
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

/// Sheaves matter that hold such a part of what is missing, and so much: those that are at work
/// elsewhere are spared.
const ENOUGH_PART: usize = 16;
const ENOUGH_BYTES: usize = 64 << 10;

/// Whether [`trim`] would find anything. Takes no lock.
fn has_free_memory() -> bool {
    pages::has_free_memory() || registry::any(|core| core.cpu.has_free())
}

/// The same, or would once other threads have landed what they have in flight.
fn will_have_free_memory() -> bool {
    let search = Search::begin();
    // Twice at pages, where all that is on its way arrives.
    has_free_memory() || pages::has_free_memory() || search.missed()
}

/// Caches that one [`Drain`] looks at under one hold of the registry's lock. They share barriers,
/// one for each 64 sheaves: a barrier takes longer than all the rest.
const TOGETHER: usize = 32;
/// But no more than have so many slots: a thread that makes a cache meanwhile waits.
const SLOTS_TOGETHER: usize = 1024;

/// What the background thread does twice a second: sheaves that no thread touched since the last
/// time are flushed, empty slabs above their targets go to the pages, and pages that were idle for
/// the decay to the system; of caches that rested altogether, all empty slabs. True if there was
/// nothing to do, and nothing is left.
pub(crate) fn trim_idle() -> bool {
    let mut idle = true;
    let rested = pages::rested();
    let together = (SLOTS_TOGETHER / state::cpus().max(1)).clamp(1, TOGETHER);
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
    pages::purge_rested(rested) && idle
}

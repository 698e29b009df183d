//! Trim: releases free memory of caches and pages to the system.
//!
//! ```text
//!   pages with memory behind them ── pages::purge_some: as many as are needed
//!   sheaves of this CPU, barns    ── trim_some: those that hold much
//!   empty slabs                   ── trim_some: of each cache in proportion, except each group's last
//!   idle memory                   ── trim_idle
//!   everything                    ── trim, trim_all
//! ```
//!
//! A cache in use soon takes again the memory that a trim took from it. A drained slot costs its
//! thread a slow path and, if the slab was released too, a page fault.
//!
//! [`short`] serves an allocation without memory while no layer above has installed hooks: it trims
//! some memory, then all, and then fails.

use super::{registry, state};
use crate::counters::{self, Changer, layout, note_change, note_pass};
use crate::os;
use crate::os::config::HugePages;
use crate::pages::{self, Scattered};
use crate::percpu::{Drain, Keep, adapt, local, sheaf};
use crate::slab::{Slabs, Walk};
use crate::sync::CachePadded;
use crate::sync::in_flight::{self, Search};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use core::time::Duration;

/// Releases the free memory of the whole process to the system, now: flushes the sheaves of CPUs
/// and barns, shrinks all caches and purges all pages. About `kept_bytes` of it stay with the
/// process, as free pages. A thread with sheaves of its own ([`crate::LocalCache`]) flushes them at
/// its next refill or flush. Returns the bytes that went to the system meanwhile.
///
/// Call it when the program becomes idle or enters another phase: caches in use pay a page fault
/// for each page that they need again. Blocks for the system calls, and while other threads create
/// or destroy caches. Calls no shrinker; see [`crate::reclaim()`]. Not for signal handlers.
///
/// ```
/// let gone_bytes = uslab::trim(0);
/// assert_eq!(gone_bytes % 4096, 0);
/// ```
pub fn trim(kept_bytes: usize) -> usize {
    if !state::is_ready() {
        return 0;
    }
    let purged_before = counters::header().purged_bytes.load(Relaxed);
    // The lock keeps threads from destroying caches meanwhile.
    let registry = registry::lock();
    local::ask(None);
    let mut drain = Drain::of_all();
    registry::for_each(|core| core.cpu.drain_slots(&mut drain));
    drop(drain);
    registry::for_each(|core| {
        core.cpu.drain_barns();
        core.cpu.slabs().shrink();
    });
    drop(registry);
    // A caller that keeps more than the process holds wants nothing purged.
    if kept_bytes < pages::held_bytes() {
        for id in registry::ids() {
            purge_inside(id, |slabs, walk| slabs.purge_part(walk));
        }
    }
    sheaf::slabs().iter().for_each(|slabs| {
        slabs.shrink();
    });
    pages::purge_all_beyond(kept_bytes);
    // The count moves, and is short for a moment, where a running process begins to publish.
    counters::header().purged_bytes.load(Relaxed).saturating_sub(purged_before) as usize
}

/// Releases the free memory of the caches called `name` to the system, now; returns the bytes of
/// memory that their empty slabs had. `None` if there is no such cache. As [`trim`], but it leaves
/// the sheaves of local caches, and free pages inside slabs in use.
pub(super) fn trim_named(name: &[u8]) -> Option<usize> {
    let (mut is_found, mut bytes) = (false, 0);
    registry::with_lock(|| {
        registry::for_each(|core| {
            if core.name().as_bytes() == name {
                is_found = true;
                core.cpu.drain_all();
                bytes += core.cpu.slabs().shrink();
            }
        });
    });
    pages::purge_some(bytes, Scattered::Go);
    is_found.then_some(bytes)
}

/// Chooses how long free memory stays with the process, from now on. `None` keeps it for ever. The
/// default is 1 s, or the value of `USLAB_DECAY_MS`.
///
/// Memory that the program frees and takes again within that time costs no page fault. The
/// background thread releases memory that was not needed for so long, within another half of the
/// time; of more than 512 MiB a half at a time. With zero, the freeing thread releases it, at the
/// price of a system call for each free that empties a page. Pressure, limits and [`trim`] release
/// memory whatever the choice.
///
/// Free pages inside slabs in use go once no object of the slab was taken or freed for that time
/// less half a second, and at least for half a second; with zero, within half a second. The
/// background thread looks at slabs as often, so some stay twice as long. It alone releases them
/// for their age.
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
    let ms = decay.map(|decay| decay.as_millis().try_into().unwrap_or(u64::MAX));
    pages::decay::set_ms(ms);
    match ms {
        Some(ms) => note_change("decay_ms", Changer::Call, format_args!("{ms}")),
        None => note_change("decay_ms", Changer::Call, format_args!("never")),
    }
    // The background thread may sleep for a longer period than the new one.
    os::sleep::wake();
}

/// Chooses when huge pages of 2 MiB back memory that is touched first from now on. The default is
/// [`HugePages::Auto`], or the value of `USLAB_HUGE_PAGES`.
///
/// By default, huge pages back the memory of a heap of 20 MiB or more that grows and has little
/// free memory; that of objects beyond a page only while the program touches nearly all of it. The
/// background thread has the kernel move most of what such a heap filled before into huge pages,
/// where all of it is resident and no fork has shared it (`MADV_COLLAPSE`, Linux 6.1).
///
/// A huge page saves 511 page faults and most misses of the processor's address translation; a
/// program of many objects runs faster on them. All of it is resident from the first touch on.
/// Where a part of it becomes free, the kernel must split it to get that part back. Unless memory
/// is wanted, the library leaves free runs of pages in huge pages up to a fortieth of what the
/// process holds, and single free pages inside slabs. Two or more free pages of a slab that rested
/// go. Within an eighth of a limit ([`crate::set_limit`]) no memory gets huge pages.
///
/// By default no memory gets them either where free memory cannot wait: without a background
/// thread, with a decay of zero, or under a limit on addresses (`ulimit -v`). It changes nothing
/// where the system's setting (`transparent_hugepage/enabled`) is `never`, or system pages are not
/// 4 KiB. Any thread may call it; it neither allocates nor blocks.
///
/// ```
/// uslab::set_huge_pages(uslab::HugePages::Never);
/// ```
pub fn set_huge_pages(huge_pages: HugePages) {
    pages::huge::set_mode(huge_pages);
    let word = match huge_pages {
        HugePages::Auto => "auto",
        HugePages::Never => "never",
        HugePages::Always => "always",
    };
    note_change("huge_pages", Changer::Call, format_args!("{word}"));
}

/// Makes room for an allocation that found no pages for `bytes`. Releases about `bytes` of free
/// memory and calls `attempt`; if that fails, releases all free memory and calls it once more.
/// Returns whether an attempt succeeded. Calls no code of the program. The caller must hold no
/// lock.
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

/// Least time between two attempts to get below the soft limit, if the first was not enough.
const SOFT_REST_MS: u64 = 500;

/// Keeps the soft limit while no layer above has installed hooks: releases free memory down to a
/// little below it. The caller must hold no lock.
pub(super) fn keep_soft() {
    static RESTS_UNTIL_MS: AtomicU64 = AtomicU64::new(0);
    let now_ms = os::clock::coarse_ms();
    if !pages::is_beyond_soft() {
        // Threads may have freed memory since one woke this thread: the next one wakes it again.
        pages::has_soft_limit().then(pages::soft_limit_bytes);
        return;
    }
    if now_ms < RESTS_UNTIL_MS.load(Relaxed) {
        return;
    }
    let Some(soft_bytes) = pages::soft_limit_bytes() else { return };
    let excess_bytes = pages::held_bytes().saturating_sub(soft_bytes / 16 * 15);
    let mut given_bytes = pages::purge_some(excess_bytes, Scattered::Stay);
    if given_bytes < excess_bytes {
        let held_bytes = pages::held_bytes();
        trim_some(excess_bytes - given_bytes, Scattered::Go);
        if pages::is_beyond_soft() {
            trim_all(false);
        }
        given_bytes += held_bytes.saturating_sub(pages::held_bytes());
    }
    note_pass(layout::PASS_SOFT, given_bytes);
    if pages::is_beyond_soft() {
        RESTS_UNTIL_MS.store(now_ms + SOFT_REST_MS, Relaxed);
    }
}

/// A thread is in [`trim_some`].
static TRIMMING: CachePadded<AtomicBool> = CachePadded(AtomicBool::new(false));

/// Releases about `bytes` of memory that no thread needs soon. It drains this CPU's sheaves and the
/// barns, if they hold enough to matter. Then it releases empty slabs, but the last of each group,
/// from all caches in proportion to their empty slabs. If these are not enough, it purges free
/// pages inside slabs in use. Last it purges free pages.
///
/// One thread at a time trims; other threads return at once, since they would find only what that
/// thread left. If there is no free memory, this takes no lock.
pub(crate) fn trim_some(bytes: usize, scattered: Scattered) {
    if bytes > 0 && has_free_memory() && !TRIMMING.swap(true, Acquire) {
        shrink_some(bytes);
        TRIMMING.store(false, Release);
        pages::purge_some(bytes, scattered);
    }
}

/// Releases all free memory: sheaves, empty slabs, pages. With `waits` it also waits for memory
/// that other threads have in flight: an allocation must not fail while they are about to free
/// enough.
pub(crate) fn trim_all(waits: bool) {
    if !will_have_free_memory() {
        return;
    }
    if waits {
        // Objects that a drain has in flight arrive in slabs.
        wait_for_in_flight();
    }
    trim(0);
    if waits {
        // Pages that a purge has in flight arrive in the page layer.
        wait_for_in_flight();
    }
}

/// Waits until other threads have nothing in flight. Usually that takes as long as a system call.
/// Waits for a few naps longer, in case those threads are off their CPUs.
fn wait_for_in_flight() {
    const SPINS: u32 = 1000;
    const NAPS: u32 = 4;
    for tries in 0..SPINS + NAPS {
        if !in_flight::is_any() {
            return;
        }
        if tries < SPINS {
            core::hint::spin_loop();
        } else {
            os::sleep::pause(1);
        }
    }
}

/// Resets the state in a fork child, in which no other thread trims.
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
    local::ask(None);
    // The lock keeps threads from destroying caches meanwhile.
    let _registry = registry::lock();
    let enough_bytes = (bytes / ENOUGH_PART).max(ENOUGH_BYTES);
    let (mut spare_bytes, mut drained_bytes) = (0, 0);
    registry::for_each(|core| {
        if drained_bytes < bytes {
            drained_bytes += core.cpu.drain_near(enough_bytes);
        }
        spare_bytes += core.cpu.slabs().spare_bytes();
    });
    let wanted = bytes.min(spare_bytes) as u128;
    let (mut owed, mut missing_bytes) = (0, bytes);
    registry::for_each(|core| {
        let slabs = core.cpu.slabs();
        owed += (slabs.spare_bytes() as u128 * wanted).div_ceil(spare_bytes.max(1) as u128) as usize;
        let (gone_bytes, released_bytes) = slabs.shrink_by(owed);
        // The next cache owes what is less than a whole slab of this one.
        owed = owed.saturating_sub(gone_bytes);
        missing_bytes = missing_bytes.saturating_sub(released_bytes);
    });
    registry::for_each(|core| {
        if missing_bytes > 0 {
            missing_bytes = missing_bytes.saturating_sub(core.cpu.slabs().purge_inside(missing_bytes));
        }
    });
}

/// [`trim_some`] drains only sheaves that hold at least this part, 1/16, of the memory asked for.
/// Smaller ones are in use, and stay.
const ENOUGH_PART: usize = 16;
/// Nor does it drain sheaves that hold less than this.
const ENOUGH_BYTES: usize = 64 << 10;

/// Whether [`trim`] would find free memory. Takes no lock.
fn has_free_memory() -> bool {
    pages::has_free_memory() || registry::any(|core| core.cpu.has_free())
}

/// Whether [`trim`] would find free memory now, or when other threads have nothing in flight.
fn will_have_free_memory() -> bool {
    let search = Search::begin();
    // Ask pages twice: memory in flight may arrive there after the first test.
    has_free_memory() || pages::has_free_memory() || search.missed()
}

/// Has `purge` walk the slabs of a cache, part by part. It lets go of the registry's lock between
/// the parts, because forks and threads that create caches wait for it.
fn purge_inside(id: u16, purge: impl Fn(&Slabs, &mut Walk) -> bool) {
    let mut walk = None;
    loop {
        let registry = registry::lock();
        let Some(core) = registry::cache(id) else { return };
        let slabs = core.cpu.slabs();
        if !purge(slabs, walk.get_or_insert_with(|| slabs.walk())) {
            return;
        }
        registry::unlock_between(registry);
    }
}

/// Caches that share one [`Drain`], under one hold of the registry's lock. So they share barriers,
/// one for each 64 sheaves: a barrier takes longer than all the rest.
const TOGETHER: usize = 32;
/// Slots in use after which a hold visits no further cache: a thread that creates a cache meanwhile
/// waits.
const SLOTS_TOGETHER: usize = 1024;

/// Drains caches of which nearly all objects are free, and releases their empty slabs to the page
/// layer; the background thread calls this while the process grows. Few objects in sheaves keep
/// many slabs from being empty, and pages from caches that need them.
pub(super) fn drain_sparse() {
    let mut ids = registry::ids().peekable();
    while ids.peek().is_some() {
        let registry = registry::lock();
        let mut drain = Drain::of_all();
        let (mut sparse, mut slots) = ([None; TOGETHER], 0);
        for (place, id) in sparse.iter_mut().zip(&mut ids) {
            *place = registry::cache(id).filter(|core| core.cpu.slabs().is_nearly_free());
            if let Some(core) = *place {
                core.cpu.drain_slots(&mut drain);
                slots += core.cpu.count_used_slots();
            }
            if slots >= SLOTS_TOGETHER {
                break;
            }
        }
        drop(drain);
        for core in sparse.into_iter().flatten() {
            core.cpu.drain_barns();
            core.cpu.slabs().shrink_by(core.cpu.slabs().spare_bytes());
        }
        registry::unlock_between(registry);
    }
}

/// When [`trim_idle`] last walked the slabs in use.
static WALKED_MS: AtomicU64 = AtomicU64::new(0);

/// Trims idle memory; the background thread calls this twice a second. It flushes sheaves that no
/// thread touched since the last call, releases empty slabs above their targets, and purges pages
/// that were idle for the decay, inside slabs in use too. Of a cache that no thread used, it
/// releases all empty slabs. Returns whether there was nothing to do, and nothing is left to do.
pub(crate) fn trim_idle() -> bool {
    let mut idle = true;
    let now_ms = os::clock::coarse_ms();
    let walks = pages::decay::is_walk_due(WALKED_MS.load(Relaxed), now_ms);
    if walks {
        WALKED_MS.store(now_ms, Relaxed);
    }
    let rested = pages::rested();
    let mut ids = registry::ids().peekable();
    while ids.peek().is_some() {
        // The lock keeps threads from destroying these caches.
        let registry = registry::lock();
        let mut drain = Drain::of_idle(Keep::Pages);
        let (mut caches, mut slots) = (0, 0);
        while caches < TOGETHER
            && slots < SLOTS_TOGETHER
            && let Some(id) = ids.next()
        {
            let Some(core) = registry::cache(id) else { continue };
            let slabs = core.cpu.slabs();
            caches += 1;
            slots += core.cpu.count_used_slots();
            if core.cpu.flush_idle(&mut drain) {
                idle &= slabs.shrink() == 0;
            } else {
                slabs.shrink_to_target();
                idle = false;
            }
        }
        drop(drain);
        registry::unlock_between(registry);
    }
    for id in registry::ids() {
        if walks {
            purge_inside(id, |slabs, walk| slabs.purge_rested_part(walk));
        }
        let _registry = registry::lock();
        idle &= registry::cache(id).is_none_or(|core| core.cpu.slabs().is_steady());
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

//! A pass: every shrinker is asked for its share, then what came free goes back to the system.

use super::balance::LIGHTEST;
use super::registry::{self, Entry, Outcome, Visit};
use super::shrinker::ShrinkControl;
use crate::cache;
use crate::os;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// A shrinker that has taken this long in a pass is left until the next: one that is slow holds up the others no longer.
const BUDGET_NS: u64 = 20_000_000;

/// Gives `bytes` of memory back to the system if it can, from what is free first and then from what registered shrinkers let go; says how
/// many it gave, which may be more.
///
/// Blocks for as long as callbacks do, about 20 ms each in a pass. Several threads may reclaim at once: none waits for another. From within a
/// callback it does nothing and returns 0. `usize::MAX` takes everything.
///
/// ```
/// let gone = uslab::reclaim(1 << 20);
/// assert!(gone == 0 || gone >= 4096);
/// ```
pub fn reclaim(bytes: usize) -> usize {
    if registry::live() > 0 && registry::is_inside() {
        return 0;
    }
    // Of the reclaim calls that Linux saw in 2002 nine in ten came back empty-handed, and stood in a queue for it.
    let mut given = if cache::has_free_memory() { release() } else { 0 };
    let mut priority = LIGHTEST + 1;
    while given < bytes && priority > 0 && registry::live() > 0 {
        priority -= 1;
        let freed = shrink_all(priority);
        if freed > 0 {
            given += release();
        }
    }
    given
}

/// One pass over all shrinkers; says how many entries they freed.
fn shrink_all(priority: u32) -> usize {
    registry::entries().filter_map(Entry::visit).map(|visit| shrink(visit, priority)).sum()
}

/// Asks one shrinker for its share.
fn shrink(mut visit: Visit, priority: u32) -> usize {
    let weight = visit.weight();
    let inside = visit.inside();
    let Some(callbacks) = inside.callbacks else { return 0 };
    let mut control = ShrinkControl { nr_to_scan: 0, priority: priority as i32, flags: 0 };
    let started = os::clock::boot_ns();
    // SAFETY: this visit keeps the context alive, and these are its functions.
    let freeable = match unsafe { (callbacks.count)(callbacks.context, &control) } {
        Outcome::Entries(freeable) => freeable,
        Outcome::Stop => 0,
        Outcome::Panicked => return retire(visit),
    };
    inside.owed = inside.owed.after_pass(freeable, priority, weight, inside.batch);
    let mut freed = 0;
    while let Some(lot) = inside.owed.next(freeable, inside.batch) {
        control.nr_to_scan = lot;
        // SAFETY: as above.
        match unsafe { (callbacks.scan)(callbacks.context, &control) } {
            Outcome::Entries(entries) => freed += entries.min(lot),
            Outcome::Stop => break,
            Outcome::Panicked => {
                retire(visit);
                return freed;
            }
        }
        inside.owed = inside.owed.less(lot);
        if os::clock::boot_ns() - started > BUDGET_NS {
            break;
        }
    }
    freed
}

#[cold]
fn retire(mut visit: Visit) -> usize {
    os::report::say(format_args!("shrinker {} panicked; it will not be called again", visit.inside().name()));
    visit.retire();
    0
}

static RELEASING: AtomicBool = AtomicBool::new(false);
/// Gives back what is free: sheaves, empty slabs, pages. One thread at a time does; the others have nothing to add, and go on.
fn release() -> usize {
    if RELEASING.swap(true, Acquire) {
        return 0;
    }
    let given = cache::release_memory();
    RELEASING.store(false, Release);
    given
}

/// In a fork child: the thread that was releasing is not here.
pub(super) fn reset_in_child() {
    RELEASING.store(false, Relaxed);
}

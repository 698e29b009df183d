//! A pass: every shrinker is asked for its share, then what came free goes back to the system.

use super::balance::LIGHTEST;
use super::registry::{self, Entry, Outcome, Visit};
use super::shrinker::ShrinkControl;
use crate::{cache, os, stats};
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
    // What frees in callbacks purge by themselves counts as well, and what others give meanwhile: it was this memory that was wanted.
    let purged_before = purged_bytes();
    let given = || purged_bytes().wrapping_sub(purged_before) as usize;
    // Where caches share slabs, an entry that goes leaves a hole rather than a page. Holes are room as well: twice as much of it counts.
    let used_before = stats::usage().allocated_bytes;
    let made_room = || used_before.saturating_sub(stats::usage().allocated_bytes) / 2;
    // Of the reclaim calls that Linux saw in 2002 nine in ten came back empty-handed, and stood in a queue for it.
    if cache::has_free_memory() {
        release();
    }
    for round in 0..=LIGHTEST + URGES_MOST {
        if given() >= bytes || made_room() >= bytes {
            break;
        }
        let found = shrink_all(LIGHTEST.saturating_sub(round), round.saturating_sub(LIGHTEST));
        if found.freeable == 0 {
            break;
        }
        if found.freed > 0 {
            release();
        }
    }
    given()
}

fn purged_bytes() -> u64 {
    stats::header().purged_bytes.load(Relaxed)
}

/// Rounds beyond priority 0. In each an entry counts half of what it did, until the dearest are worth no more than memory: that everything can be had
/// is what makes the difference to a failed allocation.
const URGES_MOST: u32 = 24;

/// What a round, or one shrinker of it, came to, in entries.
#[derive(Clone, Copy, Default)]
struct Found {
    freeable: usize,
    freed: usize,
}

/// One pass over all shrinkers.
fn shrink_all(priority: u32, urge: u32) -> Found {
    registry::entries().filter_map(Entry::visit).map(|visit| shrink(visit, priority, urge)).fold(
        Found::default(),
        |sum, found| Found {
            freeable: sum.freeable.saturating_add(found.freeable),
            freed: sum.freed.saturating_add(found.freed),
        },
    )
}

/// Asks one shrinker for its share.
fn shrink(mut visit: Visit, priority: u32, urge: u32) -> Found {
    let weight = visit.weight().halved(urge);
    let inside = visit.inside();
    let mut found = Found::default();
    let Some(callbacks) = inside.callbacks else { return found };
    let mut control = ShrinkControl { nr_to_scan: 0, priority: priority as i32, flags: 0 };
    let started = os::clock::boot_ns();
    // SAFETY: this visit keeps the context alive, and these are its functions.
    let freeable = match unsafe { (callbacks.count)(callbacks.context, &control) } {
        Outcome::Entries(freeable) => freeable,
        Outcome::Stop => 0,
        Outcome::Panicked => {
            retire(visit);
            return found;
        }
    };
    found.freeable = freeable;
    inside.owed = inside.owed.after_pass(freeable, priority, weight, inside.batch);
    while let Some(lot) = inside.owed.next(freeable, inside.batch) {
        control.nr_to_scan = lot;
        // SAFETY: as above.
        match unsafe { (callbacks.scan)(callbacks.context, &control) } {
            Outcome::Entries(entries) => found.freed += entries.min(lot),
            Outcome::Stop => break,
            Outcome::Panicked => {
                retire(visit);
                return found;
            }
        }
        inside.owed = inside.owed.less(lot);
        if os::clock::boot_ns() - started > BUDGET_NS {
            break;
        }
    }
    found
}

#[cold]
fn retire(mut visit: Visit) {
    os::report::say(format_args!("shrinker {} panicked; it will not be called again", visit.inside().name()));
    visit.retire();
}

static RELEASING: AtomicBool = AtomicBool::new(false);
/// Gives back what is free: sheaves, empty slabs, pages. One thread at a time does; the others have nothing to add, and go on.
fn release() {
    if !RELEASING.swap(true, Acquire) {
        cache::release_memory();
        RELEASING.store(false, Release);
    }
}

/// In a fork child: the thread that was releasing is not here.
pub(super) fn reset_in_child() {
    RELEASING.store(false, Relaxed);
}

//! A pass over this process: implements the ladder's [`World`] by its caches, pages and shrinkers.

use super::balance::{Owed, Weight};
use super::callbacks::{Outcome, ShrinkControl};
use super::events::{self, Place};
use super::ladder::{self, Basis, End, Given, Goal, LADDER, Progress, World};
use super::registry::{self, Entry};
use crate::counters::layout;
use crate::pages::{self, Scattered};
use crate::{cache, counters, os};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Releases `bytes` of memory to the system, if possible. Returns the bytes released, which may be
/// more.
///
/// A pass first takes free memory that no thread needs soon, then entries of registered shrinkers.
/// Only if that is not enough, it takes the sheaves that running threads use.
///
/// Blocks as long as callbacks run, about 20 ms each in a round. Several threads may reclaim at
/// once; they take turns only where they drain and shrink caches. Within a callback it does nothing
/// and returns 0. With `usize::MAX` it takes everything.
///
/// ```
/// let gone = uslab::reclaim(1 << 20);
/// assert!(gone == 0 || gone >= 4096);
/// ```
pub fn reclaim(bytes: usize) -> usize {
    let given_bytes = run(Place::Caller, bytes, &mut Given { bytes }).given_bytes;
    counters::note_pass(layout::PASS_CALL, given_bytes);
    given_bytes
}

/// Runs one pass at `place` for `goal`, which misses `bytes` at the start. Does nothing within a
/// callback. Each callback of a pass in the background that returns is progress.
pub(super) fn run(place: Place, bytes: usize, goal: &mut dyn Goal) -> Progress {
    if registry::live() > 0 && registry::is_inside() {
        return Progress::default();
    }
    events::begin(place, bytes);
    let progress = ladder::climb(&LADDER, &Process { place }, bytes, goal);
    events::done(place, &progress);
    progress
}

/// The time at which a callback of a background pass last returned.
static LAST_PROGRESS_MS: AtomicU64 = AtomicU64::new(0);

/// The time at which a callback of a background pass last returned. While callbacks return, a pass
/// is slow, but does not hang.
pub(super) fn last_progress_ms() -> u64 {
    LAST_PROGRESS_MS.load(Relaxed)
}

/// The memory of this process.
struct Process {
    place: Place,
}

/// A shrinker that the pass has entered.
struct Inside {
    visit: registry::Visit,
    place: Place,
}

/// A shrinker's entry in the registry.
#[derive(Clone, Copy)]
struct Shrinker(&'static Entry);

impl PartialEq for Shrinker {
    fn eq(&self, other: &Shrinker) -> bool {
        core::ptr::eq(self.0, other.0)
    }
}

impl World for Process {
    type Shrinker = Shrinker;
    type Visit<'a> = Inside;

    fn purged_bytes(&self) -> u64 {
        counters::header().purged_bytes.load(Relaxed)
    }

    fn used_bytes(&self, basis: Basis) -> usize {
        match basis {
            Basis::Pages => counters::header().used_bytes.load(Relaxed) as usize,
            Basis::Objects => {
                // CPUs fold their counts now and then: of a small process a large part may be
                // missing. A pass asks once, and holds no lock.
                cache::account_all();
                counters::usage().allocated_bytes
            }
        }
    }

    fn purge(&self, bytes: usize, scattered: Scattered) -> usize {
        pages::purge_some(bytes, scattered)
    }

    fn trim_some(&self, bytes: usize, scattered: Scattered) {
        cache::trim_some(bytes, scattered);
    }

    fn trim_all(&self, waits: bool) {
        cache::trim_all(waits);
    }

    fn shrinkers(&self) -> impl Iterator<Item = Shrinker> {
        registry::entries().map(Shrinker)
    }

    fn visit(&self, shrinker: Shrinker) -> Option<Inside> {
        Some(Inside { visit: shrinker.0.visit()?, place: self.place })
    }

    fn is_live(&self, shrinker: Shrinker) -> bool {
        shrinker.0.is_live()
    }

    fn now_ns(&self) -> u64 {
        os::clock::boot_ns()
    }

    fn pause_ms(&self, ms: u64) {
        os::sleep::pause(ms);
    }
}

impl ladder::Visit for Inside {
    fn count(&mut self, priority: u32) -> usize {
        let Some(callbacks) = self.visit.inside().callbacks else { return 0 };
        let control = ShrinkControl { nr_to_scan: 0, priority: priority as i32, flags: 0 };
        // SAFETY: this visit keeps the context alive, and this is its function.
        let entries =
            answer(&mut self.visit, unsafe { (callbacks.count)(callbacks.context, &control) }).unwrap_or(0);
        if let Some(figures) = self.visit.figures() {
            figures.freeable.store(entries as u64, Relaxed);
            figures.priority.store(priority, Relaxed);
        }
        entries
    }

    fn scan(&mut self, priority: u32, entries: usize) -> Option<usize> {
        let callbacks = self.visit.inside().callbacks?;
        let control = ShrinkControl { nr_to_scan: entries, priority: priority as i32, flags: 0 };
        // SAFETY: as in `count`.
        let outcome = unsafe { (callbacks.scan)(callbacks.context, &control) };
        if self.place.is_in_background() {
            LAST_PROGRESS_MS.store(os::clock::coarse_ms(), Relaxed);
        }
        let freed = answer(&mut self.visit, outcome);
        events::shrinker_call(self.place, self.visit.inside().name(), entries, freed, priority);
        if let Some(figures) = self.visit.figures() {
            figures.scans.fetch_add(1, Relaxed);
            figures.asked.fetch_add(entries as u64, Relaxed);
            figures.freed.fetch_add(freed.unwrap_or(0).min(entries) as u64, Relaxed);
        }
        freed
    }

    fn is_open(&self) -> bool {
        self.visit.goes_on()
    }

    fn weight(&mut self, freeable: usize) -> Weight {
        self.visit.weight(freeable)
    }

    fn batch(&mut self) -> usize {
        self.visit.inside().batch
    }

    fn owed(&mut self) -> Owed {
        self.visit.inside().owed
    }

    fn set_owed(&mut self, owed: Owed) {
        self.visit.inside().owed = owed;
    }

    fn note_evicted(&mut self, entries: usize) {
        let inside = self.visit.inside();
        inside.evicted = inside.evicted.saturating_add(entries as u64);
    }

    fn note_end(&mut self, end: End) {
        let owed = self.visit.inside().owed;
        let Some(figures) = self.visit.figures() else { return };
        let stop = match end {
            End::Share => layout::STOP_SHARE,
            End::Answered => layout::STOP_ANSWERED,
            End::Time => layout::STOP_TIME,
            End::Empty => layout::STOP_EMPTY,
            End::Gone => layout::STOP_GONE,
        };
        figures.deferred.store(owed.entries(), Relaxed);
        figures.stop.store(stop, Relaxed);
        figures.last_ns.store(os::clock::boot_ns(), Relaxed);
    }
}

/// The number of entries that a callback returned. Retires a shrinker whose callback panicked.
fn answer(visit: &mut registry::Visit, outcome: Outcome) -> Option<usize> {
    match outcome {
        Outcome::Entries(entries) => Some(entries),
        Outcome::Stop => None,
        Outcome::Panicked => {
            retire(visit);
            None
        }
    }
}

#[cold]
fn retire(visit: &mut registry::Visit) {
    os::report::print(format_args!(
        "shrinker {} panicked; it will not be called again",
        visit.inside().name()
    ));
    visit.retire();
}

//! Misuse that a thread finds while it holds a lock of caches waits until the thread has released
//! the lock: a report may end the process, and handlers of the program then run.
//!
//! ```text
//!   lock ─▶ Delayed::within ─▶ drain: misuse is kept ─▶ drop: unlock ─▶ the reports
//! ```
//!
//! A thread takes a place for its reports once it holds the lock: threads that wait for the lock
//! need none.

use super::misuse::{Misuse, report_now};
use crate::os::{self, Futex};
use crate::sync::Park;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Reports that may wait; further ones are counted.
const MAX_WAITING: usize = 8;
/// Bytes of the longest name; a longer one is cut.
const NAME_BYTES: usize = 48;

/// A misuse that waits. The name is a copy, because the cache may end before the report.
#[derive(Clone, Copy)]
struct Found {
    misuse: Misuse,
    pointer: usize,
    name: [u8; NAME_BYTES],
    name_bytes: usize,
}

#[derive(Clone, Copy)]
struct Waiting {
    found: [Option<Found>; MAX_WAITING],
    count: usize,
}

const NONE: Waiting = Waiting { found: [None; MAX_WAITING], count: 0 };

struct Place {
    /// The key of the thread that has the place; 0 for none.
    thread: AtomicUsize,
    waiting: UnsafeCell<Waiting>,
}

// SAFETY: the thread that has a place alone uses it.
unsafe impl Sync for Place {}

/// More than there are locks with such guards. A thread that finds all taken reports at once.
static PLACES: [Place; 4] =
    [const { Place { thread: AtomicUsize::new(0), waiting: UnsafeCell::new(NONE) } }; 4];

fn own_place() -> Option<&'static Place> {
    let this = Futex::thread_key();
    PLACES.iter().find(|place| place.thread.load(Relaxed) == this)
}

/// The guard of a lock. While it lives, reports of this thread wait. Its drop releases the lock and
/// then makes the reports, unless the thread holds another such guard.
pub struct Delayed<G> {
    // The order of the drops.
    guard: G,
    _reports: Reports,
}

impl<G> Delayed<G> {
    /// Lets reports of this thread wait from now on. The thread holds the lock of `guard`.
    pub fn within(guard: G) -> Delayed<G> {
        Delayed { guard, _reports: Reports::begin() }
    }
}

impl<G: Deref> Deref for Delayed<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Delayed<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// The reports of this thread that wait; the drop makes them. Has no place within another one.
struct Reports(Option<&'static Place>);

impl Reports {
    fn begin() -> Reports {
        if own_place().is_some() {
            return Reports(None);
        }
        let this = Futex::thread_key();
        let is_taken = |place: &&Place| place.thread.compare_exchange(0, this, Acquire, Relaxed).is_ok();
        Reports(PLACES.iter().find(is_taken))
    }
}

impl Drop for Reports {
    #[inline]
    fn drop(&mut self) {
        let Some(place) = self.0 else { return };
        // SAFETY: the place is this thread's.
        let has_any = unsafe { (*place.waiting.get()).count } != 0;
        if has_any {
            return report_all(place);
        }
        place.thread.store(0, Release);
    }
}

/// Gives the place back, and makes the reports that waited in it.
#[cold]
#[inline(never)]
fn report_all(place: &Place) {
    // SAFETY: the place is this thread's until the store.
    let waiting = unsafe { place.waiting.get().replace(NONE) };
    place.thread.store(0, Release);
    for found in waiting.found.iter().flatten() {
        let name = core::str::from_utf8(&found.name[..found.name_bytes]).unwrap_or("a cache");
        report_now(found.misuse, found.pointer as *const u8, name);
    }
    if let Some(more @ 1..) = waiting.count.checked_sub(MAX_WAITING) {
        os::report::print(format_args!("{more} more faults of frees were found with these"));
    }
}

/// Reports `misuse` of `pointer`, then ends the process unless [`crate::report::set_abort`]
/// disabled that. `cache` is the name of the cache, or of the function that the program called.
/// Within a [`Delayed`] of this thread the report waits for its end.
#[cold]
pub fn report_misuse(misuse: Misuse, pointer: *const u8, cache: &str) {
    if !keep(misuse, pointer, cache) {
        report_now(misuse, pointer, cache);
    }
}

/// Keeps a misuse that this thread found; false if it is to be reported at once.
fn keep(misuse: Misuse, pointer: *const u8, name: &str) -> bool {
    let Some(place) = own_place() else { return false };
    let mut copy = [0; NAME_BYTES];
    let name_bytes = (0..=NAME_BYTES.min(name.len())).rfind(|&n| name.is_char_boundary(n)).unwrap_or(0);
    copy[..name_bytes].copy_from_slice(&name.as_bytes()[..name_bytes]);
    // SAFETY: the place is this thread's.
    let waiting = unsafe { &mut *place.waiting.get() };
    if let Some(free) = waiting.found.get_mut(waiting.count) {
        *free = Some(Found { misuse, pointer: pointer as usize, name: copy, name_bytes });
    }
    waiting.count += 1;
    true
}

/// In a fork child: gives back the places of threads that do not exist there. A new thread may get
/// the key of one of them.
pub fn forget_other_threads() {
    let this = Futex::thread_key();
    for place in PLACES.iter().filter(|place| ![0, this].contains(&place.thread.load(Relaxed))) {
        // SAFETY: the child has no other thread.
        unsafe { place.waiting.get().replace(NONE) };
        place.thread.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn misuse_waits_within_the_outermost_value_alone() {
        let find = |name: &str| keep(Misuse::DoubleFree, core::ptr::null(), name);
        assert!(!find("before"));
        let outer = Reports::begin();
        drop(Reports::begin());
        let long = "é".repeat(NAME_BYTES);
        (0..MAX_WAITING + 2).for_each(|_| assert!(find(&long)));
        let place = outer.0.expect("few threads have a place");
        // SAFETY: the place is this thread's. Nothing is left to report.
        let waiting = unsafe { place.waiting.get().replace(NONE) };
        assert_eq!(waiting.count, MAX_WAITING + 2);
        let found = waiting.found.map(|found| found.expect("all are kept"));
        assert!(found.iter().all(|found| found.name[..found.name_bytes] == long.as_bytes()[..NAME_BYTES]));
        drop(outer);
        assert!(!find("after"));
    }

    #[test]
    fn a_guard_is_dropped_before_the_reports_that_waited_within_it() {
        struct Unlock<'a>(&'a Cell<bool>);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                self.0.set(own_place().is_some());
            }
        }
        let still_waits = Cell::new(false);
        drop(Delayed::within(Unlock(&still_waits)));
        assert!(still_waits.get() && own_place().is_none());
    }
}

//! The public interface of shrinkers: the trait, its options and the registration.

use super::balance::Weight;
use super::callbacks::{Callbacks, Outcome, ShrinkControl};
use super::install;
use super::registry::{self, Entry};
use crate::cache::{background, start};
use crate::malloc;
use core::marker::PhantomData;

/// The result of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    /// The number of entries freed; less than asked for if the other entries were in use.
    Freed(usize),
    /// The shrinker can free nothing now, for instance because a lock is held. Later passes ask for
    /// these entries again.
    Stop,
}

/// A cache that can give entries up.
///
/// Both functions run on the reclaiming thread, without a lock of this library, never two at once
/// for one shrinker. They may allocate, free and unregister any shrinker. They may block, which
/// delays only the reclaiming thread.
///
/// If a function panics, or a destructor that it runs, the library reports that and calls the
/// shrinker no more. That needs the feature `std`. Without it the panic goes on to the caller of
/// [`reclaim`](super::reclaim) or of the allocation that found no memory. It ends the process if
/// that is a thread of the library or a function that does not unwind.
///
/// The callbacks are Linux's `count_objects` and `scan_objects`.
pub trait Shrinker: Send + Sync + 'static {
    /// Returns the number of entries that could go now. Should only read a counter.
    fn count(&self, control: &ShrinkControl) -> usize;

    /// Frees up to `control.nr_to_scan` entries, the least useful first.
    fn scan(&self, control: &ShrinkControl) -> Scan;
}

/// Options of a shrinker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShrinkerOptions {
    /// The cost of making an entry again; 2 is usual. An entry of 20 seeks is worth ten of 2. With
    /// 0 each round of a pass asks for half of the cache.
    pub seeks: u32,
    /// Entries that one call asks for. If a cache has less than eight times as many, a call asks
    /// for an eighth of the cache.
    pub batch: usize,
}

impl Default for ShrinkerOptions {
    fn default() -> Self {
        ShrinkerOptions { seeks: 2, batch: 128 }
    }
}

/// The reason why a shrinker could not be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterError {
    /// Memory is used up.
    OutOfMemory,
}

impl core::fmt::Display for RegisterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("there is no memory for the shrinker")
    }
}

impl core::error::Error for RegisterError {}

/// Owns a registered shrinker. Dropping it unregisters the shrinker.
pub struct Registration<S: Shrinker> {
    entry: &'static Entry,
    shrinker: *const S,
    owns: PhantomData<S>,
}

// SAFETY: it is a reference to a shared `S: Sync`, and the right to drop it, which `S: Send` allows
// on any thread.
unsafe impl<S: Shrinker> Send for Registration<S> {}
// SAFETY: as above.
unsafe impl<S: Shrinker> Sync for Registration<S> {}

/// Registers `shrinker` under `name`, of which it keeps the first 47 bytes. May be called from any
/// thread, also within a callback.
///
/// ```standalone_crate
/// use std::sync::Mutex;
/// use uslab::{Scan, ShrinkControl, Shrinker, ShrinkerOptions};
///
/// struct Pages(Mutex<Vec<Box<[u8; 4096]>>>);
///
/// impl Shrinker for Pages {
///     fn count(&self, _: &ShrinkControl) -> usize {
///         self.0.try_lock().map_or(0, |pages| pages.len())
///     }
///     fn scan(&self, control: &ShrinkControl) -> Scan {
///         let Ok(mut pages) = self.0.try_lock() else { return Scan::Stop };
///         let keep = pages.len().saturating_sub(control.nr_to_scan);
///         let freed = pages.drain(keep..).count();
///         Scan::Freed(freed)
///     }
/// }
///
/// let pages = Pages(Mutex::new((0..1000).map(|_| Box::new([0; 4096])).collect()));
/// let registered = uslab::register_shrinker("pages", ShrinkerOptions::default(), pages).unwrap();
/// uslab::reclaim(usize::MAX);
/// assert_eq!(registered.0.lock().unwrap().len(), 0);
/// ```
///
/// # Errors
/// Memory is used up. Then this drops the shrinker.
pub fn register_shrinker<S: Shrinker>(
    name: &str,
    options: ShrinkerOptions,
    shrinker: S,
) -> Result<Registration<S>, RegisterError> {
    if !start::ensure() {
        return Err(RegisterError::OutOfMemory);
    }
    install();
    let place = malloc::aligned_alloc(align_of::<S>().max(malloc::ALIGN), size_of::<S>()).cast::<S>();
    if place.is_null() {
        return Err(RegisterError::OutOfMemory);
    }
    let Some(claimed) = registry::claim() else {
        // SAFETY: no other code knows the memory.
        unsafe { malloc::free(place.cast()) };
        return Err(RegisterError::OutOfMemory);
    };
    // SAFETY: fresh memory of the type's size and alignment.
    unsafe { place.write(shrinker) };
    let callbacks =
        Callbacks { context: place.cast(), count: count::<S>, scan: scan::<S>, dispose: dispose::<S> };
    let entry = claimed.publish(name, Weight::of_seeks(options.seeks), options.batch, callbacks);
    super::listener::note_shrinker();
    background::begin();
    Ok(Registration { entry, shrinker: place, owns: PhantomData })
}

impl<S: Shrinker> Registration<S> {
    /// Sets the average cost of making an entry again, in nanoseconds, in place of the seeks of the
    /// options. Takes effect with the next pass. The default of 2 seeks equals 10 µs.
    pub fn set_miss_cost_ns(&self, cost_ns: u64) {
        self.entry.set_weight(Weight::of_cost_ns(cost_ns));
    }

    /// Reports `entries` that a scan freed and that the program made again since, as far as the
    /// cache knows; a few bytes of the keys that went are enough. A cache whose entries come back
    /// is worth more than its cost tells. Its share falls, to an eighth if all entries come back.
    ///
    /// The idea is Linux's refault distance (`mm/workingset.c`), reduced to a count.
    pub fn note_refaults(&self, entries: u64) {
        self.entry.note_refaults(entries);
    }

    /// Unregisters the shrinker: waits for its running callback, drops the shrinker, and returns
    /// true.
    ///
    /// If the thread would wait for itself, this returns false at once, and the shrinker is dropped
    /// when the running callback returns. That is so within a callback of this shrinker, and within
    /// a callback that the running one waits for: two callbacks may unregister each other's
    /// shrinkers.
    pub fn unregister(self) -> bool {
        let entry = self.entry;
        core::mem::forget(self);
        entry.unregister()
    }
}

impl<S: Shrinker> Drop for Registration<S> {
    fn drop(&mut self) {
        self.entry.unregister();
    }
}

impl<S: Shrinker> core::ops::Deref for Registration<S> {
    type Target = S;
    fn deref(&self) -> &S {
        // SAFETY: the entry keeps the shrinker alive until `unregister`, which takes this value.
        unsafe { &*self.shrinker }
    }
}

/// # Safety
/// `context` must be a live `S`.
unsafe fn count<S: Shrinker>(context: *mut u8, control: &ShrinkControl) -> Outcome {
    // SAFETY: the caller's promise.
    let shrinker = unsafe { &*context.cast::<S>() };
    caught(|| Outcome::Entries(shrinker.count(control)))
}

/// # Safety
/// As [`count`].
unsafe fn scan<S: Shrinker>(context: *mut u8, control: &ShrinkControl) -> Outcome {
    // SAFETY: the caller's promise.
    let shrinker = unsafe { &*context.cast::<S>() };
    caught(|| match shrinker.scan(control) {
        Scan::Freed(entries) => Outcome::Entries(entries),
        Scan::Stop => Outcome::Stop,
    })
}

/// # Safety
/// As [`count`]; no code may use `context` any more.
unsafe fn dispose<S: Shrinker>(context: *mut u8) {
    /// Frees the memory, even if the destructor panics.
    struct Memory(*mut u8);
    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: memory of `malloc`, whose contents were dropped.
            unsafe { malloc::free(self.0) };
        }
    }
    let _memory = Memory(context);
    // SAFETY: the caller's promise; registration wrote the shrinker there.
    unsafe { context.cast::<S>().drop_in_place() };
}

#[cfg(feature = "std")]
fn caught(callback: impl FnOnce() -> Outcome) -> Outcome {
    // A shrinker that panicked is not called again, so no code sees its unfinished changes.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(callback)).unwrap_or_else(|panic| {
        // Dropping the panic's payload may panic, so forget it.
        core::mem::forget(panic);
        Outcome::Panicked
    })
}

#[cfg(not(feature = "std"))]
fn caught(callback: impl FnOnce() -> Outcome) -> Outcome {
    callback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::layout;
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    struct Entries(AtomicUsize);

    impl Shrinker for Entries {
        fn count(&self, _: &ShrinkControl) -> usize {
            self.0.load(Relaxed)
        }

        fn scan(&self, control: &ShrinkControl) -> Scan {
            let freed = control.nr_to_scan.min(self.0.load(Relaxed));
            self.0.fetch_sub(freed, Relaxed);
            Scan::Freed(freed)
        }
    }

    #[test]
    fn the_snapshot_shows_what_a_shrinker_freed() {
        let options = ShrinkerOptions { seeks: 3, batch: 10 };
        let shrinker =
            register_shrinker("shown", options, Entries(AtomicUsize::new(700))).expect("there is memory");
        // Other tests register shrinkers too; one beyond the file's room has no figures.
        let Some(figures) = shrinker.entry.figures() else { return };
        let name: [u8; 6] = core::array::from_fn(|at| figures.name[at].load(Relaxed));
        assert_eq!(name, *b"shown\0");
        assert_eq!((figures.worth.load(Relaxed), figures.batch.load(Relaxed)), (3 * layout::SEEK, 10));
        while shrinker.0.load(Relaxed) > 0 {
            crate::reclaim(usize::MAX);
        }
        assert_eq!(figures.freed.load(Relaxed), 700);
        assert!(figures.asked.load(Relaxed) >= 700 && figures.scans.load(Relaxed) >= 8);
        assert!(figures.last_ns.load(Relaxed) > 0 && figures.state.load(Relaxed) == layout::STATE_LIVE);
        assert!(shrinker.unregister());
    }
}

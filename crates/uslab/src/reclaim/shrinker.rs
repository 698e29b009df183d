//! Shrinkers as programs write them.

use super::balance::Weight;
use super::callbacks::{Callbacks, Outcome, ShrinkControl};
use super::install;
use super::registry::{self, Entry};
use crate::cache::{background, start};
use crate::malloc;
use core::marker::PhantomData;

/// What a scan came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    /// So many entries were freed; fewer than asked for if others were in use.
    Freed(usize),
    /// Nothing can be done now, for instance because a lock is held: what was asked for is
    /// remembered for later.
    Stop,
}

/// A cache that can give entries up.
///
/// Both functions run on whatever thread reclaims, without a lock of this library, never two at
/// once for one shrinker. They may allocate and free, block (which delays the reclaiming thread
/// alone), and unregister any shrinker. A panic, also one of a destructor that they run, is
/// reported and ends the shrinker's calls. That takes the feature `std`; without it the panic goes
/// on to the caller of [`reclaim`](super::reclaim), and ends the process where that is a thread of
/// the library.
///
/// The callbacks are Linux's `count_objects` and `scan_objects`.
pub trait Shrinker: Send + Sync + 'static {
    /// Entries that could go now; 0 if none can. Should be a look at a counter.
    fn count(&self, control: &ShrinkControl) -> usize;

    /// Frees up to `control.nr_to_scan` entries, those that are missed least first.
    fn scan(&self, control: &ShrinkControl) -> Scan;
}

/// How a shrinker is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShrinkerOptions {
    /// What an entry costs to make again, 2 being usual: one of 20 is worth ten of 2. With 0 half
    /// the cache goes at each pass.
    pub seeks: u32,
    /// Entries asked for at once; of a cache of fewer than eight times as many, an eighth is.
    pub batch: usize,
}

impl Default for ShrinkerOptions {
    fn default() -> Self {
        ShrinkerOptions { seeks: 2, batch: 128 }
    }
}

/// Why a shrinker could not be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterError {
    /// There is no memory for it.
    OutOfMemory,
}

impl core::fmt::Display for RegisterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("there is no memory for the shrinker")
    }
}

impl core::error::Error for RegisterError {}

/// A registered shrinker: its owner. Dropping it unregisters.
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

/// Registers `shrinker` under `name` (the first 47 bytes are kept), from any thread, also from
/// inside a callback.
///
/// ```
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
/// There is no memory for it. The shrinker is dropped then.
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
        // SAFETY: no other code knows the place.
        unsafe { malloc::free(place.cast()) };
        return Err(RegisterError::OutOfMemory);
    };
    // SAFETY: fresh memory of the type's size and alignment.
    unsafe { place.write(shrinker) };
    let callbacks =
        Callbacks { context: place.cast(), count: count::<S>, scan: scan::<S>, dispose: dispose::<S> };
    let entry = claimed.publish(name, Weight::of_seeks(options.seeks), options.batch, callbacks);
    background::begin();
    Ok(Registration { entry, shrinker: place, owns: PhantomData })
}

impl<S: Shrinker> Registration<S> {
    /// Says what it costs on average to make an entry again, in nanoseconds, in place of the seeks
    /// of its options; takes effect with the next pass. Caches that say nothing count as 10 µs,
    /// which is 2 seeks.
    pub fn set_miss_cost_ns(&self, cost_ns: u64) {
        self.entry.set_weight(Weight::of_cost_ns(cost_ns));
    }

    /// Tells of `entries` that had been freed by a scan and were made again since, as far as the
    /// cache can know (a few bytes of the keys that went are enough). A cache whose entries come
    /// back is worth more than its cost says: its share falls, to an eighth where all come back.
    ///
    /// The idea is Linux's refault distance (`mm/workingset.c`), reduced to a count.
    pub fn note_refaults(&self, entries: u64) {
        self.entry.note_refaults(entries);
    }

    /// Unregisters: waits for a running callback of it, drops the shrinker, and returns true. Where
    /// that would be to wait for itself it returns false at once, and the rest happens when the
    /// running callback returns: from within a callback of this very shrinker, and from within one
    /// that the running callback waits for, since two callbacks may unregister each other's
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
        // SAFETY: the entry keeps it alive until it is unregistered, which takes this value.
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
/// As [`count`]; no code may use it any more.
unsafe fn dispose<S: Shrinker>(context: *mut u8) {
    /// Gives the memory back, also where the destructor panics.
    struct Memory(*mut u8);
    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: memory of `malloc`, whose contents are gone.
            unsafe { malloc::free(self.0) };
        }
    }
    let _memory = Memory(context);
    // SAFETY: the caller's promise; it was placed there when it was registered.
    unsafe { context.cast::<S>().drop_in_place() };
}

#[cfg(feature = "std")]
fn caught(callback: impl FnOnce() -> Outcome) -> Outcome {
    // A shrinker that panicked is not called again, so no code sees what it left half done.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(callback)).unwrap_or_else(|panic| {
        // What it panicked with may panic when it is dropped.
        core::mem::forget(panic);
        Outcome::Panicked
    })
}

#[cfg(not(feature = "std"))]
fn caught(callback: impl FnOnce() -> Outcome) -> Outcome {
    callback()
}

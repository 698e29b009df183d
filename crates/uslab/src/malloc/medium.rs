//! Medium sizes, above 32 KiB up to 1 MiB: page runs behind the same sheaves as small objects.
//!
//! Each of 20 classes is a cache of which every slab is one run of pages. So a pair pops and pushes
//! a sheaf of its CPU, as for small sizes. A run that leaves the sheaves goes to the buddy, unless
//! misses made the cache keep some. Idle flushes, trims and passes find these runs where they find
//! all free objects.
//!
//! ```text
//!   malloc  ──table──▶ slots ──▶ pop          calloc, where no run is cached ──▶ large run, zero
//!   free    ──page map──▶ slots ──▶ push      realloc ──▶ large run in place, which then resizes
//! ```
//!
//! Growing objects are large runs: these resize in place. A medium object becomes one, where it
//! stands, at its first `realloc` beyond its class.

use super::classes::{self, MAX_SMALL_BYTES};
use super::debugged;
use super::large::{self, Reclaim};
use super::profiled::state;
use crate::cache::debugged::Family;
use crate::cache::{CacheBuilder, Core, class_core, registry, start};
use crate::os;
use crate::os::invariant::invariant;
use crate::pages::{self, PAGE_BYTES};
use crate::rseq::{self, Slot, dummy_slots};
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release, Ordering::SeqCst, fence};

/// Largest size served by a medium class: 1 MiB.
pub(super) const MAX_MEDIUM_BYTES: usize = 1 << 20;
/// Number of medium classes: four to a doubling.
pub(super) const CLASSES: usize = 20;
/// Granularity of sizes in the table of slots: every class is a multiple.
const STEP_BYTES: usize = 8 << 10;
const STEPS: usize = MAX_MEDIUM_BYTES / STEP_BYTES;

/// A medium class; the index is always below [`CLASSES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Medium(u8);

/// The class of each size, in steps of 8 KiB.
static OF_SIZE: [Medium; STEPS + 1] = {
    let mut table = [Medium(0); STEPS + 1];
    let (mut step, mut class) = (0, 0);
    while step <= STEPS {
        if Medium(class).bytes() < step * STEP_BYTES {
            class += 1;
        }
        table[step] = Medium(class);
        step += 1;
    }
    table
};

/// The slots by size, in steps of 8 KiB: the dummies until a class has a cache.
static SLOTS: [AtomicPtr<Slot>; STEPS + 1] = [const { AtomicPtr::new(dummy_slots()) }; STEPS + 1];
static CACHES: [AtomicPtr<Core>; CLASSES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES];

const NAMES: [&str; CLASSES] = [
    "malloc-40k",
    "malloc-48k",
    "malloc-56k",
    "malloc-64k",
    "malloc-80k",
    "malloc-96k",
    "malloc-112k",
    "malloc-128k",
    "malloc-160k",
    "malloc-192k",
    "malloc-224k",
    "malloc-256k",
    "malloc-320k",
    "malloc-384k",
    "malloc-448k",
    "malloc-512k",
    "malloc-640k",
    "malloc-768k",
    "malloc-896k",
    "malloc-1m",
];

impl Medium {
    /// The smallest class for `size` bytes; `None` if small classes or large runs serve the size.
    pub fn of(size: usize) -> Option<Medium> {
        let is_medium = size > MAX_SMALL_BYTES && size <= MAX_MEDIUM_BYTES;
        is_medium.then(|| OF_SIZE[size.div_ceil(STEP_BYTES)])
    }

    /// The same for objects aligned to `align`, a power of two: runs lie on any page.
    pub fn of_aligned(size: usize, align: usize) -> Option<Medium> {
        if align <= PAGE_BYTES { Medium::of(size) } else { None }
    }

    /// Bytes of the class's objects.
    pub const fn bytes(self) -> usize {
        let base = MAX_SMALL_BYTES << (self.0 / 4);
        base + base / 4 * (self.0 as usize % 4 + 1)
    }

    /// The name of the class's cache.
    pub fn name(self) -> &'static str {
        NAMES[self.index()]
    }

    /// The class at `index`; `None` from [`CLASSES`] on.
    pub fn at(index: usize) -> Option<Medium> {
        (index < CLASSES).then_some(Medium(index as u8))
    }

    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The cache of the class, created if it does not exist yet; `None` if memory is used up.
    #[cold]
    fn cache(self) -> Option<&'static Core> {
        let place = &CACHES[self.index()];
        // SAFETY: null or a core, which lives at its address for ever.
        if let Some(cache) = unsafe { place.load(Acquire).as_ref() } {
            // As in `small`.
            let named = SLOTS[self.bytes() / STEP_BYTES].load(Acquire);
            if named == dummy_slots() && cache.slots() != dummy_slots() {
                settle(self);
            }
            return Some(cache);
        }
        let options = CacheBuilder::new(NAMES[self.index()]).runs().not_debuggable();
        let made = class_core(&options, self.bytes(), place)?;
        // As in `small`.
        fence(SeqCst);
        settle(self);
        Some(made)
    }

    /// Makes the table name `slots` for the class.
    fn publish(self, slots: *mut Slot) {
        for (place, _) in SLOTS.iter().zip(&OF_SIZE).filter(|&(_, &class)| class == self) {
            place.store(slots, Release);
        }
    }
}

/// Makes the table name the counted row of the class while the heap profile runs; else the cache's
/// own slots.
pub(super) fn settle(class: Medium) {
    // SAFETY: null or a core, which lives at its address for ever.
    let Some(core) = (unsafe { CACHES[class.index()].load(Acquire).as_ref() }) else { return };
    if start::guards_all() {
        return;
    }
    let state = state::class(classes::CLASSES + class.index());
    let is_wanted = || state::period_bytes() != 0;
    loop {
        let row = if is_wanted() { core.counted_row() } else { None };
        let is_settled = registry::with_lock(|| {
            // As in `small`: a profile came to want the row meanwhile.
            if row.is_none() && core.has_counted_row() && is_wanted() {
                return false;
            }
            match row.filter(|_| is_wanted()) {
                Some(row) => {
                    core.forget_distances();
                    core.set_counted(true);
                    state.set_counting(Some(core));
                    class.publish(row);
                }
                None => {
                    class.publish(core.slots());
                    state.set_counting(None);
                    core.set_counted(false);
                }
            }
            true
        });
        if is_settled {
            return;
        }
    }
}

/// The slots for objects of `size` bytes; `None` if no medium class serves the size.
#[inline(always)]
pub(super) fn slots_for(size: usize) -> Option<*mut Slot> {
    if size > MAX_SMALL_BYTES && size <= MAX_MEDIUM_BYTES {
        // SAFETY: the table covers sizes up to that bound.
        Some(unsafe { SLOTS.get_unchecked(size.div_ceil(STEP_BYTES)) }.load(Acquire))
    } else {
        None
    }
}

/// Pops a run for `size` bytes that this CPU's main sheaf holds; null if there is none, or if no
/// medium class serves the size.
pub(super) fn pop(size: usize) -> *mut u8 {
    match slots_for(size) {
        // SAFETY: a class's slots are its cache's, or the dummies until it has one.
        Some(slots) => unsafe { rseq::pop(slots) },
        None => core::ptr::null_mut(),
    }
}

/// Allocates an object of `class`, after the fast path was tried; null with ENOMEM.
#[cold]
pub(super) fn alloc_slow(class: Medium, size: usize, align: usize, family: Family) -> *mut u8 {
    match debugged::letters(size) {
        0 => serve(class, Core::alloc_slow),
        letters => serve_debugged(size, align, letters, family, Reclaim::Yes),
    }
}

/// [`alloc_slow`], but without reclaim.
#[cold]
pub(super) fn alloc_noreclaim(class: Medium, size: usize, align: usize) -> *mut u8 {
    match debugged::letters(size) {
        0 => serve(class, Core::alloc_slow_noreclaim),
        letters => serve_debugged(size, align, letters, Family::Malloc, Reclaim::No),
    }
}

fn serve_debugged(size: usize, align: usize, letters: u8, family: Family, reclaim: Reclaim) -> *mut u8 {
    let served = if start::ensure() { debugged::alloc(size, align, letters, family, reclaim) } else { None };
    served.map_or_else(
        || {
            os::errno::set_out_of_memory();
            core::ptr::null_mut()
        },
        |(object, _)| object,
    )
}

fn serve(class: Medium, alloc: extern "C" fn(&Core) -> *mut u8) -> *mut u8 {
    let object = class.cache().map_or(core::ptr::null_mut(), |cache| alloc(cache));
    if object.is_null() {
        os::errno::set_out_of_memory();
    }
    object
}

/// Makes the medium object at `pointer` fit for `size` bytes where it stands, as a large run if the
/// size has another class. False if no medium object is at `pointer`, or if pages behind it are in
/// use.
pub(super) fn resize(pointer: *mut u8, size: usize) -> bool {
    if debugged::letters(size) != 0 {
        return false;
    }
    let Some(page) = pages::page_of(pointer) else { return false };
    let Some(cache) = registry::cache(pages::owner(page).id()).filter(|cache| cache.is_run()) else {
        return false;
    };
    if Medium::of(size).is_some_and(|class| class.bytes() == cache.usable_bytes()) {
        return true;
    }
    let Some(run) = cache.disown_run(pointer) else { return false };
    invariant!(run.first == page, "a medium object starts on the first page of its run", pointer);
    large::adopt(run);
    large::resize(pointer, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for size in MAX_SMALL_BYTES + 1..=MAX_MEDIUM_BYTES {
            let class = Medium::of(size).unwrap();
            assert!(class.bytes() >= size && class.bytes().is_multiple_of(STEP_BYTES));
            assert!(class.0 == 0 || Medium(class.0 - 1).bytes() < size);
        }
        assert_eq!(Medium::of(MAX_SMALL_BYTES), None);
        assert_eq!(Medium::of(MAX_MEDIUM_BYTES + 1), None);
        assert_eq!(Medium(CLASSES as u8 - 1).bytes(), MAX_MEDIUM_BYTES);
        assert_eq!(Medium::of_aligned(100_000, 2 * PAGE_BYTES), None);
    }
}

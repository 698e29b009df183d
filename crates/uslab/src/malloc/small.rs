//! The caches of the size classes; each is created at the first allocation of its class.

use super::classes::{CLASSES, Class, MAX_DIRECT_BYTES, MAX_SMALL_BYTES, SLAB_ORDER, STEP_BYTES};
use super::profiled::state;
use super::sampled;
use crate::cache::debugged::{self, Request};
use crate::cache::start;
use crate::cache::{CacheBuilder, Core, class_core, registry};
use crate::os;
use crate::rseq::{self, Slot, dummy_slots};
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release, Ordering::SeqCst, fence};

/// The slots of each class. Until a class has a cache they are the dummies, which send its first
/// allocation to the slow path.
static SLOTS: [AtomicPtr<Slot>; CLASSES] = [const { AtomicPtr::new(dummy_slots()) }; CLASSES];
/// The same slots by size, in steps of 16 bytes, for the most frequent sizes: one lookup instead of
/// two.
static SLOTS_BY_SIZE: [AtomicPtr<Slot>; MAX_DIRECT_BYTES / STEP_BYTES + 1] =
    [const { AtomicPtr::new(dummy_slots()) }; MAX_DIRECT_BYTES / STEP_BYTES + 1];
/// The same slots by size, in steps of 128 bytes, for the sizes above: their classes are multiples
/// of 128.
static SLOTS_OF_LARGER: [AtomicPtr<Slot>; MAX_SMALL_BYTES / LARGER_STEP_BYTES + 1] =
    [const { AtomicPtr::new(dummy_slots()) }; MAX_SMALL_BYTES / LARGER_STEP_BYTES + 1];
const LARGER_STEP_BYTES: usize = 128;
static CACHES: [AtomicPtr<Core>; CLASSES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES];
/// Caches of the same sizes whose objects are aligned beyond [`STEP_BYTES`], where those above pack
/// their objects: a record before an object aligned to 64 bytes costs 64.
static ALIGNED: [AtomicPtr<Core>; CLASSES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES];

/// Names of the classes' caches.
macro_rules! names {
    ($behind:literal) => {
        names!($behind:
            "16" "32" "48" "64" "80" "96" "112" "128" "160" "192" "224" "256" "320" "384"
            "448" "512" "640" "768" "896" "1k" "1152" "1280" "1536" "1792" "2k" "2304" "2560"
            "3k" "3584" "4k" "4608" "5k" "6k" "7k" "8k" "9k" "10k" "12k" "14k" "16k" "18k"
            "20k" "24k" "28k" "32k"
        )
    };
    ($behind:literal: $($size:literal)*) => {
        [$(concat!("malloc-", $size, $behind)),*]
    };
}

pub(super) const NAMES: [&str; CLASSES] = names!("");
/// Caches of objects aligned as their class promises, where those of [`NAMES`] are not.
const ALIGNED_NAMES: [&str; CLASSES] = names!("-aligned");

/// The slots of `class`. Acquire, here and below, because several threads may call `malloc` before
/// the library is set up: see `rseq::detect::area_offset`.
#[inline(always)]
fn slots(class: Class) -> *mut Slot {
    // SAFETY: a class's index is below CLASSES, by construction.
    unsafe { SLOTS.get_unchecked(class.index()) }.load(Acquire)
}

/// The slots for objects of `size` bytes; `None` above [`MAX_DIRECT_BYTES`].
#[inline(always)]
pub(super) fn slots_for(size: usize) -> Option<*mut Slot> {
    if size <= MAX_DIRECT_BYTES {
        // SAFETY: the table covers sizes up to that bound.
        Some(unsafe { SLOTS_BY_SIZE.get_unchecked(size.div_ceil(STEP_BYTES)) }.load(Acquire))
    } else {
        None
    }
}

/// The slots for objects of `size` bytes above [`MAX_DIRECT_BYTES`]; `None` if no class serves the
/// size.
#[inline(always)]
pub(super) fn slots_for_larger(size: usize) -> Option<*mut Slot> {
    if size > MAX_DIRECT_BYTES && size <= MAX_SMALL_BYTES {
        // SAFETY: the table covers sizes up to that bound.
        Some(unsafe { SLOTS_OF_LARGER.get_unchecked(size.div_ceil(LARGER_STEP_BYTES)) }.load(Acquire))
    } else {
        None
    }
}

/// The options of a class of a private heap. Large classes get larger slabs, because smaller ones
/// would waste more of their pages.
pub(super) fn options(name: &str, class: Class) -> CacheBuilder<'_> {
    CacheBuilder::new(name).max_order(if class.bytes() >= 8192 { 5 } else { 3 }).of_heap()
}

/// The options of a cache that serves the whole process: slabs of 128 KiB keep the objects of a
/// class together (ADR 0034).
fn large_slabs(class: Class) -> CacheBuilder<'static> {
    let options = CacheBuilder::new(NAMES[class.index()]).min_order(SLAB_ORDER).max_order(SLAB_ORDER);
    options.tail_bytes(sampled::tail_bytes(class.bytes()))
}

/// The cache of `class`, created if it does not exist yet; `None` if memory is used up.
#[cold]
fn cache(class: Class) -> Option<&'static Core> {
    let place = &CACHES[class.index()];
    // SAFETY: null or a core, which lives at its address for ever.
    if let Some(cache) = unsafe { place.load(Acquire).as_ref() } {
        // Another thread is between the two steps below, or was when the process forked: then the
        // child has to take the second one. Or the dummies stay: all objects are guarded, or the
        // mode is locked.
        if slots(class) == dummy_slots() && cache.slots() != dummy_slots() {
            settle(class);
        }
        return Some(cache);
    }
    let made = class_core(&large_slabs(class), class.bytes(), place)?;
    // After the store of the cache: a start from now on sees it.
    fence(SeqCst);
    settle(class);
    Some(made)
}

/// Makes the tables name `slots` for the class.
fn publish(class: Class, slots: *mut Slot) {
    SLOTS[class.index()].store(slots, Release);
    let larger = SLOTS_OF_LARGER.iter().enumerate().skip(MAX_DIRECT_BYTES / LARGER_STEP_BYTES + 1);
    for (step, place) in larger {
        if Class::of(step * LARGER_STEP_BYTES) == Some(class) {
            place.store(slots, Release);
        }
    }
    for (step, place) in SLOTS_BY_SIZE.iter().enumerate() {
        if Class::of(step * STEP_BYTES) == Some(class) {
            place.store(slots, Release);
        }
    }
}

/// Makes the tables name the counted row of the class while the heap profile runs, or while sized
/// frees must not push into the class's own sheaf; else the cache's own slots. Where all objects
/// are guarded, they keep the dummies, which send every allocation to the slow path.
pub(super) fn settle(class: Class) {
    // SAFETY: null or a core, which lives at its address for ever.
    let Some(core) = (unsafe { CACHES[class.index()].load(Acquire).as_ref() }) else { return };
    if start::guards_all() {
        return;
    }
    let state = state::class(class.index());
    let is_wanted = || state::period_bytes() != 0 || state.has_samples();
    loop {
        let row = if is_wanted() { core.counted_row() } else { None };
        let is_settled = registry::with_lock(|| {
            // A profile came to want the row meanwhile. A cache without a row lacks memory for it,
            // and is not asked again.
            if row.is_none() && core.has_counted_row() && is_wanted() {
                return false;
            }
            match row {
                Some(row) => {
                    core.forget_distances();
                    core.set_counted(true);
                    publish(class, row);
                    // Last: a thread that finds it set may sample.
                    state.set_counting(Some(core));
                }
                None => {
                    let before = state.counting();
                    state.set_counting(None);
                    // A thread that found it set notes its sample first, and then looks again: see
                    // `profiled::sample`.
                    if before.is_some() && is_wanted() {
                        state.set_counting(before);
                        return false;
                    }
                    publish(class, core.slots());
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

/// Whether a sampled object of the class at `index` would never reach the class's own sheaves by a
/// sized free: the tables name the counted row, or slots without sheaves.
pub(super) fn may_sample(index: usize) -> bool {
    if state::class(index).counting().is_some() {
        return true;
    }
    // SAFETY: null or a core, which lives at its address for ever.
    let core = CACHES.get(index).and_then(|core| unsafe { core.load(Acquire).as_ref() });
    core.is_some_and(|core| !core.needs_counted_row())
}

/// Notes that a sampled object of the class at `index` is not in use any more.
pub(super) fn forget_sample(index: usize) {
    if state::class(index).remove_sample()
        && state::period_bytes() == 0
        && let Some(class) = Class::at(index)
    {
        settle(class);
    }
}

/// The cache of objects of `class` aligned to `align`, for which the class has been chosen.
fn cache_for(class: Class, align: usize) -> Option<&'static Core> {
    // The library reads the settings of debugging when it starts.
    if align <= STEP_BYTES || (start::ensure() && !debugged::packs(NAMES[class.index()])) {
        return cache(class);
    }
    let name = ALIGNED_NAMES[class.index()];
    let place = &ALIGNED[class.index()];
    // SAFETY: null or a core, which lives at its address for ever.
    if let Some(cache) = unsafe { place.load(Acquire).as_ref() } {
        return Some(cache);
    }
    let options = CacheBuilder::new(name).min_order(SLAB_ORDER).max_order(SLAB_ORDER);
    class_core(&options.align(class.align()), class.bytes(), place)
}

/// Allocates an object of `class`; null with ENOMEM.
#[inline(never)]
pub(super) fn alloc(class: Class, request: Request) -> *mut u8 {
    // SAFETY: a class's slots are its cache's, or the dummies until it has one.
    let object = unsafe { rseq::pop(slots(class)) };
    if object.is_null() { alloc_slow(class, request) } else { object }
}

/// [`alloc`], aligned to `align`, for which `class` has been chosen.
pub(super) fn alloc_aligned(class: Class, align: usize, request: Request) -> *mut u8 {
    // SAFETY: as in `alloc`. Slots with objects are of caches that keep the class's alignment.
    let object = unsafe { rseq::pop(slots(class)) };
    if object.is_null() { alloc_aligned_slow(class, align, request) } else { object }
}

#[cold]
fn alloc_aligned_slow(class: Class, align: usize, request: Request) -> *mut u8 {
    let cache = cache_for(class, align);
    let object = cache.map_or(core::ptr::null_mut(), |cache| cache.alloc_slow_for(request));
    if object.is_null() {
        os::errno::set_out_of_memory();
    }
    object
}

#[cold]
fn alloc_slow(class: Class, request: Request) -> *mut u8 {
    let object = cache(class).map_or(core::ptr::null_mut(), |cache| cache.alloc_slow_for(request));
    if object.is_null() {
        os::errno::set_out_of_memory();
    }
    object
}

/// [`alloc_aligned`], but without reclaim.
pub(super) fn alloc_noreclaim(class: Class, align: usize, request: Request) -> *mut u8 {
    // SAFETY: as in `alloc`.
    let mut object = unsafe { rseq::pop(slots(class)) };
    if object.is_null() {
        let cache = cache_for(class, align);
        object = cache.map_or(core::ptr::null_mut(), |cache| cache.alloc_noreclaim_for(request));
    }
    if object.is_null() {
        os::errno::set_out_of_memory();
    }
    object
}

pub(super) fn alloc_bulk(class: Class, objects: &mut [*mut u8], request: Request) -> bool {
    cache(class).is_some_and(|cache| cache.alloc_bulk_for(objects, request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn the_names_of_aligned_objects_are_those_that_selections_know() {
        for (name, aligned) in NAMES.iter().zip(ALIGNED_NAMES) {
            assert_eq!(aligned, format!("{name}{}", debugged::ALIGNED));
        }
    }
}

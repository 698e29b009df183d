//! The caches of the size classes; each is created at the first allocation of its class.

use super::classes::{CLASSES, Class, MAX_DIRECT_BYTES, MAX_SMALL_BYTES, SLAB_ORDER, STEP_BYTES};
use super::sampled;
use crate::cache::debugged::Request;
use crate::cache::start;
use crate::cache::{CacheBuilder, Core, class_core};
use crate::os;
use crate::rseq::{self, Slot, dummy_slots};
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

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

pub(super) const NAMES: [&str; CLASSES] = [
    "malloc-16",
    "malloc-32",
    "malloc-48",
    "malloc-64",
    "malloc-80",
    "malloc-96",
    "malloc-112",
    "malloc-128",
    "malloc-160",
    "malloc-192",
    "malloc-224",
    "malloc-256",
    "malloc-320",
    "malloc-384",
    "malloc-448",
    "malloc-512",
    "malloc-640",
    "malloc-768",
    "malloc-896",
    "malloc-1k",
    "malloc-1152",
    "malloc-1280",
    "malloc-1536",
    "malloc-1792",
    "malloc-2k",
    "malloc-2304",
    "malloc-2560",
    "malloc-3k",
    "malloc-3584",
    "malloc-4k",
    "malloc-4608",
    "malloc-5k",
    "malloc-6k",
    "malloc-7k",
    "malloc-8k",
    "malloc-9k",
    "malloc-10k",
    "malloc-12k",
    "malloc-14k",
    "malloc-16k",
    "malloc-18k",
    "malloc-20k",
    "malloc-24k",
    "malloc-28k",
    "malloc-32k",
];

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
pub(super) fn options(name: &'static str, class: Class) -> CacheBuilder<'static> {
    CacheBuilder::new(name).max_order(if class.bytes() >= 8192 { 5 } else { 3 }).not_debuggable()
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
        return Some(cache);
    }
    let made = class_core(&large_slabs(class), class.bytes(), place)?;
    if start::guards_all() {
        // The tables keep the dummies, which send every allocation to the slow path.
        return Some(made);
    }
    SLOTS[class.index()].store(made.slots(), Release);
    let larger = SLOTS_OF_LARGER.iter().enumerate().skip(MAX_DIRECT_BYTES / LARGER_STEP_BYTES + 1);
    for (step, place) in larger {
        if Class::of(step * LARGER_STEP_BYTES) == Some(class) {
            place.store(made.slots(), Release);
        }
    }
    for (step, place) in SLOTS_BY_SIZE.iter().enumerate() {
        if Class::of(step * STEP_BYTES) == Some(class) {
            place.store(made.slots(), Release);
        }
    }
    Some(made)
}

/// Allocates an object of `class`; null with ENOMEM.
#[inline(never)]
pub(super) fn alloc(class: Class, request: Request) -> *mut u8 {
    // SAFETY: a class's slots are its cache's, or the dummies until it has one.
    let object = unsafe { rseq::pop(slots(class)) };
    if object.is_null() { alloc_slow(class, request) } else { object }
}

#[cold]
fn alloc_slow(class: Class, request: Request) -> *mut u8 {
    let object = cache(class).map_or(core::ptr::null_mut(), |cache| cache.alloc_slow_for(request));
    if object.is_null() {
        os::errno::set_out_of_memory();
    }
    object
}

/// [`alloc`], but without reclaim.
pub(super) fn alloc_noreclaim(class: Class, request: Request) -> *mut u8 {
    // SAFETY: as in `alloc`.
    let mut object = unsafe { rseq::pop(slots(class)) };
    if object.is_null() {
        object = cache(class).map_or(core::ptr::null_mut(), |cache| cache.alloc_noreclaim_for(request));
    }
    if object.is_null() {
        os::errno::set_out_of_memory();
    }
    object
}

pub(super) fn alloc_bulk(class: Class, objects: &mut [*mut u8], request: Request) -> bool {
    cache(class).is_some_and(|cache| cache.alloc_bulk_for(objects, request))
}

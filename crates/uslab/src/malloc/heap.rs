//! `Heap`: a private set of size classes, destroyed whole.
//!
//! A heap's objects are freed one by one, by any `free`, or all at once when the heap is dropped.
//! Each size class starts as bare slabs ([`Bare`]), so that a small heap costs little more than its
//! objects. A busy class gets a cache of its own. Large objects stand in a list of the heap.

use super::bare::Bare;
use super::classes::{CLASSES, Class};
use super::list::Objects;
use super::{ALIGN, bare, large, small};
use crate::cache::debugged::Release;
use crate::cache::{Core, class_core, destroy_whole, registry};
use crate::os;
use crate::pages;
use crate::rseq;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Acquire};

/// A private heap. Dropping it frees everything that was allocated from it.
///
/// Any thread may allocate from it. Until the heap is dropped, [`Heap::free`] and any `free` may
/// free its objects.
///
/// A heap costs what it owns: making and dropping a heap of a few objects takes about a
/// microsecond, whatever else is allocated. Memory alone bounds the number of heaps. A heap takes
/// less than a kilobyte; each size class in use takes as much again, and at least one slab of 4
/// KiB.
///
/// A class that has served 64 objects gets sheaves; at most 32 768 classes of all heaps have them
/// at a time. In all heaps together some 13 million classes can be in use; beyond that an
/// allocation fails.
///
/// ```
/// let heap = uslab::Heap::new().unwrap();
/// let a = heap.alloc(100, 8).unwrap();
/// // SAFETY: from this heap, unused.
/// unsafe { heap.free(a) };
/// heap.alloc(1 << 20, 4096).unwrap();
/// drop(heap); // takes the megabyte along
/// ```
pub struct Heap {
    inner: NonNull<Inner>,
}

struct Inner {
    /// The caches of busy classes; null for the others.
    caches: [AtomicPtr<Core>; CLASSES],
    /// The bare slabs of each class that was used, kept after the class got a cache.
    bare: [AtomicPtr<Bare>; CLASSES],
    large: Objects,
}

// SAFETY: caches and bare slabs are shared by design; a lock guards the list.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// Makes an empty heap; `None` if memory is used up.
    pub fn new() -> Option<Heap> {
        let inner = NonNull::new(super::malloc(size_of::<Inner>()).cast::<Inner>())?;
        super::install_hooks();
        // SAFETY: fresh memory of that size, aligned to 16.
        unsafe {
            inner.write(Inner {
                caches: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
                bare: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
                large: Objects::new(),
            });
        }
        Some(Heap { inner })
    }

    fn inner(&self) -> &Inner {
        // SAFETY: written in `new`, freed in `drop`.
        unsafe { self.inner.as_ref() }
    }

    /// Allocates `size` uninitialised bytes, aligned to `align`. `None` if memory is used up, or if
    /// `align` is not a power of two or exceeds 1 GiB.
    pub fn alloc(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        if !align.is_power_of_two() {
            return None;
        }
        match Class::of_aligned(size, align) {
            Some(class) => self.alloc_small(class),
            None => self.alloc_large(size, align),
        }
    }

    fn alloc_small(&self, class: Class) -> Option<NonNull<u8>> {
        // SAFETY: null or a core, which lives at its address for ever.
        let Some(cache) = (unsafe { self.inner().caches[class.index()].load(Acquire).as_ref() }) else {
            return self.alloc_bare(class);
        };
        // SAFETY: the slots are the cache's.
        match NonNull::new(unsafe { rseq::pop(cache.slots()) }) {
            Some(object) => Some(object),
            None => NonNull::new(cache.alloc_slow()),
        }
    }

    /// Allocates an object of a class without a cache. If the class is busy now, makes its cache.
    #[cold]
    #[inline(never)]
    fn alloc_bare(&self, class: Class) -> Option<NonNull<u8>> {
        let _errno = os::errno::Preserved::new();
        let bare = self.bare(class)?;
        if bare.is_busy() && registry::has_room_for_heaps() {
            let place = &self.inner().caches[class.index()];
            if let Some(cache) = class_core(&small::options(bare::NAME, class), class.bytes(), place) {
                return NonNull::new(cache.alloc_slow());
            }
        }
        bare.alloc()
    }

    /// The bare slabs of a class; makes them if there are none.
    fn bare(&self, class: Class) -> Option<&Bare> {
        let place = &self.inner().bare[class.index()];
        // SAFETY: null or made by `Bare::new`, and valid until the heap is dropped.
        if let Some(bare) = unsafe { place.load(Acquire).as_ref() } {
            return Some(bare);
        }
        let made = Bare::new(class)?;
        match place.compare_exchange(core::ptr::null_mut(), made.as_ptr(), AcqRel, Acquire) {
            // SAFETY: as above.
            Ok(_) => Some(unsafe { made.as_ref() }),
            Err(others) => {
                // SAFETY: no other thread has seen it.
                unsafe { Bare::destroy(made) };
                // SAFETY: as above.
                unsafe { others.as_ref() }
            }
        }
    }

    fn alloc_large(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let (object, _) = large::alloc_plain(size, align.max(ALIGN), large::Reclaim::Yes)?;
        self.inner().large.add(pages::page_of(object)?);
        NonNull::new(object)
    }

    /// Frees memory of this heap. Never fails.
    ///
    /// # Safety
    /// `object` must come from this heap, and must not be used any more.
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { super::free(object.as_ptr()) };
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: null or a core.
        let caches = self.inner().caches.iter().filter_map(|place| unsafe { place.load(Acquire).as_ref() });
        if caches.clone().next().is_some() {
            // SAFETY: no thread uses the heap's objects any more. Collections that use its
            // allocator borrow the heap; for raw pointers, the thread that drops the heap promises
            // it.
            unsafe { destroy_whole(caches) };
        }
        for bare in self.inner().bare.iter().filter_map(|place| NonNull::new(place.load(Acquire))) {
            // SAFETY: as above, and `Heap::bare` made it.
            unsafe { Bare::destroy(bare) };
        }
        while let Some(page) = self.inner().large.first() {
            large::free(page, pages::address_of(page), Release::PLAIN);
        }
        // SAFETY: made in `new`, used by no other thread.
        unsafe { super::free(self.inner.as_ptr().cast()) };
    }
}

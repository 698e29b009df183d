//! `Heap`: a private set of size classes, destroyed whole.
//!
//! A heap's objects are freed one by one, by any `free`, or all at once when the heap is dropped.
//! Each size class starts as bare slabs ([`Bare`]), so that a small heap costs little more than its
//! objects. A busy class gets a cache of its own. Large objects stand in a list of the heap.

use super::bare::Bare;
use super::classes::{CLASSES, Class};
use super::list::Objects;
use super::profiled::heaps;
use super::{ALIGN, bare, large, small};
use crate::cache::debugged::Release;
use crate::cache::{Core, class_core, destroy_whole, registry};
use crate::counters::layout::NAME_BYTES;
use crate::os;
use crate::pages::{self, PageIndex};
use crate::rseq;
use core::ops::ControlFlow;
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

/// The figures of a [`Heap`].
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Live objects of at most 32 KiB, aligned to at most 4 KiB.
    pub objects: usize,
    /// Their bytes, as their size classes round them up.
    pub object_bytes: usize,
    /// Bytes of all slabs.
    pub slab_bytes: usize,
    /// All other live objects.
    pub large_objects: usize,
    /// Their bytes, in whole pages.
    pub large_bytes: usize,
}

/// Large objects that one search of their list finds.
const AT_ONCE: usize = 128;

/// What serves a size class: its bare slabs, then also a cache.
enum Part<'a> {
    Bare(&'a Bare),
    Cache(&'static Core),
}

impl Part<'_> {
    fn object_bytes(&self) -> usize {
        match self {
            Part::Bare(bare) => bare.object_bytes(),
            Part::Cache(core) => core.usable_bytes(),
        }
    }

    /// Objects in use, and bytes of all slabs.
    fn count_live(&self) -> (usize, usize) {
        match self {
            Part::Bare(bare) => bare.count_live(),
            Part::Cache(core) => core.count_live(),
        }
    }

    fn for_each_live(&self, visit: impl FnMut(NonNull<u8>) -> ControlFlow<()>) {
        match self {
            Part::Bare(bare) => bare.for_each_live(visit),
            Part::Cache(core) => core.for_each_live(visit),
        }
    }
}

struct Inner {
    name: [u8; NAME_BYTES],
    name_len: usize,
    /// The caches of busy classes; null for the others.
    caches: [AtomicPtr<Core>; CLASSES],
    /// The bare slabs of each class that was used, kept after the class got a cache.
    bare: [AtomicPtr<Bare>; CLASSES],
    large: Objects,
}

impl Inner {
    fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..self.name_len]).unwrap_or(bare::NAME)
    }
}

// SAFETY: caches and bare slabs are shared by design; a lock guards the list.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// Makes an empty heap; `None` if memory is used up.
    pub fn new() -> Option<Heap> {
        Heap::named(bare::NAME)
    }

    /// Makes an empty heap with a name; `None` if memory is used up. Reports of misuse show the
    /// name, and so do statistics for each size class that has a cache. Names need not be unique;
    /// this one is cut to its first 47 bytes at a character boundary.
    ///
    /// ```
    /// let heap = uslab::Heap::named("request").unwrap();
    /// heap.alloc(100, 8).unwrap();
    /// assert_eq!((heap.name(), heap.stats().objects), ("request", 1));
    /// ```
    pub fn named(name: &str) -> Option<Heap> {
        let mut name_len = name.len().min(NAME_BYTES - 1);
        while !name.is_char_boundary(name_len) {
            name_len -= 1;
        }
        let mut text = [0; NAME_BYTES];
        text[..name_len].copy_from_slice(&name.as_bytes()[..name_len]);
        let inner = NonNull::new(super::malloc(size_of::<Inner>()).cast::<Inner>())?;
        super::install_hooks();
        // SAFETY: fresh memory of that size, aligned to 16.
        unsafe {
            inner.write(Inner {
                name: text,
                name_len,
                caches: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
                bare: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
                large: Objects::new(),
            });
        }
        Some(Heap { inner })
    }

    /// The name; `heap` for one that was made without.
    pub fn name(&self) -> &str {
        self.inner().name()
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
            None => NonNull::new(self.alloc_large(size, align)?.0),
        }
    }

    /// [`Heap::alloc`], zeroed. Fresh memory of an object beyond 32 KiB is zero without being
    /// written, so that it takes no memory until the program uses it.
    ///
    /// ```
    /// let heap = uslab::Heap::new().unwrap();
    /// let table = heap.alloc_zeroed(64 << 20, 8).unwrap();
    /// // SAFETY: the object has that byte.
    /// assert_eq!(unsafe { table.add(12345).read() }, 0);
    /// ```
    pub fn alloc_zeroed(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        if !align.is_power_of_two() {
            return None;
        }
        let Some(class) = Class::of_aligned(size, align) else {
            let object = self.alloc_large(size, align)?;
            // SAFETY: the object was just allocated and has at least `size` bytes.
            return NonNull::new(unsafe { large::zeroed(object, size) });
        };
        let object = self.alloc_small(class)?;
        // SAFETY: as above.
        unsafe { object.write_bytes(0, size) };
        Some(object)
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
        if bare.count_alloc() && registry::has_room_for_heaps() {
            let place = &self.inner().caches[class.index()];
            if let Some(cache) = class_core(&small::options(self.name(), class), class.bytes(), place) {
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
        // SAFETY: `inner` never moves, and is freed after all bare slabs, which get the name.
        let inner: &'static Inner = unsafe { self.inner.as_ref() };
        let made = Bare::new(class, inner.name())?;
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

    /// The object, and whether its bytes are known to be zero.
    fn alloc_large(&self, size: usize, align: usize) -> Option<(*mut u8, bool)> {
        let (object, known_zero) = large::alloc_plain(size, align.max(ALIGN), large::Reclaim::Yes)?;
        self.inner().large.add(pages::page_of(object)?);
        heaps::count_large(object, size);
        Some((object, known_zero))
    }

    /// The figures of this heap: exact while no thread uses it.
    ///
    /// Flushes the sheaves of its busy size classes, and takes locks. The cost grows with the
    /// number of its slabs and large objects. Fork children may call it.
    pub fn stats(&self) -> HeapStats {
        let mut stats = HeapStats::default();
        self.for_each_class(|part| {
            let (objects, slab_bytes) = part.count_live();
            stats.objects += objects;
            stats.object_bytes += objects * part.object_bytes();
            stats.slab_bytes += slab_bytes;
            ControlFlow::Continue(())
        });
        self.inner().large.for_each(|page| {
            stats.large_objects += 1;
            stats.large_bytes += large::bytes(page);
        });
        stats
    }

    /// Calls `visit` with each live object and its usable bytes, until it breaks off. The rules of
    /// [`RawCache::for_each_live`](crate::RawCache::for_each_live) hold. The time grows with the
    /// memory that the library manages, for each size class in use.
    ///
    /// ```
    /// let heap = uslab::Heap::new().unwrap();
    /// (heap.alloc(100, 8).unwrap(), heap.alloc(1 << 20, 8).unwrap());
    /// let mut sizes = Vec::new();
    /// heap.for_each_live(|_, bytes| {
    ///     sizes.push(bytes);
    ///     std::ops::ControlFlow::Continue(())
    /// });
    /// assert_eq!(sizes, [112, 1 << 20]);
    /// ```
    pub fn for_each_live(&self, mut visit: impl FnMut(NonNull<u8>, usize) -> ControlFlow<()>) {
        let mut end = ControlFlow::Continue(());
        self.for_each_class(|part| {
            let bytes = part.object_bytes();
            part.for_each_live(|object| {
                end = visit(object, bytes);
                end
            });
            end
        });
        if end.is_continue() {
            self.for_each_large(visit);
        }
    }

    /// Calls `visit` for the bare slabs and the cache of each class until it breaks off.
    fn for_each_class(&self, mut visit: impl FnMut(Part<'_>) -> ControlFlow<()>) {
        let inner = self.inner();
        for (bare, cache) in inner.bare.iter().zip(&inner.caches) {
            // SAFETY: null or made by `Bare::new`, and valid until the heap is dropped.
            let bare = unsafe { bare.load(Acquire).as_ref() }.map(Part::Bare);
            // SAFETY: null or a core.
            let cache = unsafe { cache.load(Acquire).as_ref() }.map(Part::Cache);
            if bare.into_iter().chain(cache).any(|part| visit(part).is_break()) {
                return;
            }
        }
    }

    /// Calls `visit` with each large object and its bytes, by address, until `visit` breaks off.
    /// The list is not locked during the calls, so that `visit` may free. It is searched anew after
    /// every [`AT_ONCE`] objects.
    fn for_each_large(&self, mut visit: impl FnMut(NonNull<u8>, usize) -> ControlFlow<()>) {
        let (mut at, mut pages) = (None, [PageIndex(0); AT_ONCE]);
        loop {
            let list = &self.inner().large;
            let next = list.next_beyond(at, &mut pages);
            // A visit may have freed one of the next.
            let mut there = next.iter().copied().filter(|&page| list.has(page));
            let is_end = there.any(|page| {
                NonNull::new(pages::address_of(page))
                    .is_none_or(|object| visit(object, large::bytes(page)).is_break())
            });
            if is_end || next.len() < AT_ONCE {
                return;
            }
            at = next.last().copied();
        }
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

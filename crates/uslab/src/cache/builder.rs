//! What a cache is to be like.

use super::life::{self, geometry};
use super::{Cache, Core, CreateError, RawCache, registry, start};
use crate::pages::PAGE_BYTES;
use crate::slab::{Constructor, Geometry};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

/// Switches of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// Objects start on cache lines of their own.
    pub const HWCACHE_ALIGN: Flags = Flags(1);
    /// Every object comes from and goes to its slab: slow, and exact for debugging.
    pub const NO_CACHING: Flags = Flags(2);
    /// The objects' memory will not be touched soon (receive buffers, say): leave warm pages to
    /// others.
    pub const COLD: Flags = Flags(4);

    /// Whether all of `other`'s switches are on.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Options of a cache, then the cache.
///
/// ```
/// use uslab::CacheBuilder;
/// let cache = CacheBuilder::new("packet").hwcache_align().build::<[u8; 200]>().unwrap();
/// let packet = cache.insert([0; 200]).unwrap();
/// assert_eq!(packet.as_ptr() as usize % 64, 0);
/// ```
#[derive(Clone, Copy)]
pub struct CacheBuilder<'a> {
    pub(super) name: &'a str,
    pub(super) align: usize,
    pub(super) flags: Flags,
    pub(super) min_objects: usize,
    pub(super) min_order: u32,
    pub(super) max_order: u32,
    pub(super) sheaf_capacity: usize,
    pub(super) constructor: Option<Constructor>,
}

impl<'a> CacheBuilder<'a> {
    /// Defaults for a cache called `name`: the first 47 bytes are shown in statistics and reports.
    pub const fn new(name: &'a str) -> Self {
        CacheBuilder {
            name,
            align: 0,
            flags: Flags(0),
            min_objects: 0,
            min_order: 0,
            max_order: 0,
            sheaf_capacity: 0,
            constructor: None,
        }
    }

    /// Aligns objects to `bytes`, a power of two; 0 is natural alignment (the type's; for raw
    /// caches up to 16, by size).
    pub const fn align(mut self, bytes: usize) -> Self {
        self.align = bytes;
        self
    }

    /// Turns switches on.
    pub const fn flags(mut self, flags: Flags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }

    /// [`Flags::HWCACHE_ALIGN`].
    pub const fn hwcache_align(self) -> Self {
        self.flags(Flags::HWCACHE_ALIGN)
    }

    /// A slab holds at least so many objects, if `max_order` allows; 0 is the default, `4 ·
    /// (log2(cpus) + 2)` and 32 at least.
    pub const fn min_objects(mut self, objects: usize) -> Self {
        self.min_objects = objects;
        self
    }

    /// A slab takes at least `2^order` pages of 4 KiB; 0 is the default.
    pub const fn min_order(mut self, order: u32) -> Self {
        self.min_order = order;
        self
    }

    /// A slab takes at most `2^order` pages unless one object needs more; 0 is the default, 3; at
    /// most 8.
    pub const fn max_order(mut self, order: u32) -> Self {
        self.max_order = order;
        self
    }

    /// A sheaf holds about so many objects, always; 0 is the default, adaptive.
    pub const fn sheaf_capacity(mut self, objects: usize) -> Self {
        self.sheaf_capacity = objects;
        self
    }

    /// Runs `construct` once for each object when its slab is made.
    ///
    /// # Safety
    /// `construct` must not unwind and must not use the cache being built; it is called with fresh
    /// memory of the object's size, and may be called on any thread.
    pub const unsafe fn raw_constructor(mut self, constructor: Constructor) -> Self {
        self.constructor = Some(constructor);
        self
    }

    /// The cache that `place` points to, made for objects of `size` bytes if it is null; `None`
    /// without memory.
    pub(crate) fn make_core(self, size: usize, place: &AtomicPtr<Core>) -> Option<&'static Core> {
        if !start::ensure() {
            return None;
        }
        let mut registry = registry::lock();
        // SAFETY: null or a core, which lives at its address for ever.
        if let Some(core) = unsafe { place.load(Acquire).as_ref() } {
            return Some(core);
        }
        let core = life::create(&self, size, class_align(size), false, &mut registry).ok()?;
        place.store((&raw const *core).cast_mut(), Release);
        Some(core)
    }

    /// How objects of `size` bytes lie in the slabs of the cache that [`CacheBuilder::make_core`]
    /// makes.
    pub(crate) fn class_geometry(&self, size: usize) -> Option<Geometry> {
        geometry(self, size, class_align(size)).ok()
    }

    /// The cache for objects of `size` bytes, at most 256 KiB.
    ///
    /// # Errors
    /// See [`CreateError`]. Takes the registry's lock; may make system calls.
    pub fn build_raw(self, size: usize) -> Result<RawCache, CreateError> {
        RawCache::create(&self, size)
    }

    /// The cache for objects of type `T`.
    ///
    /// # Errors
    /// As [`CacheBuilder::build_raw`].
    pub fn build<T>(self) -> Result<Cache<T>, CreateError> {
        Cache::create(&self)
    }

    /// The cache for objects of type `T` that `construct` makes, once each. `T` must not need
    /// dropping: objects outlive their users and go with their slab, unseen.
    ///
    /// # Errors
    /// As [`CacheBuilder::build_raw`].
    pub fn build_constructed<T>(self, construct: fn(&mut MaybeUninit<T>)) -> Result<Cache<T>, CreateError> {
        const { assert!(!core::mem::needs_drop::<T>(), "constructed objects are never dropped") };
        /// # Safety
        /// `data` must be the function, `object` fresh memory for a `T`.
        unsafe fn call<T>(object: *mut u8, data: usize) {
            // SAFETY: `data` is the `construct` given below, a function of this type.
            let construct = unsafe { core::mem::transmute::<usize, fn(&mut MaybeUninit<T>)>(data) };
            // SAFETY: the object is fresh memory of T's size and alignment.
            construct(unsafe { &mut *object.cast::<MaybeUninit<T>>() });
        }
        let constructor = Constructor { call: call::<T>, data: construct as usize };
        Cache::create(&CacheBuilder { constructor: Some(constructor), ..self })
    }
}

/// Alignment of the objects of a size class.
fn class_align(size: usize) -> usize {
    if size.is_power_of_two() { size.min(PAGE_BYTES) } else { 16 }
}

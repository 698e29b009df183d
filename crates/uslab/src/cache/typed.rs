//! `Cache<T>`: a cache of objects of one type, and the boxes that own them.

use super::body::Core;
use super::builder::CacheBuilder;
use super::error::{Busy, CreateError};
use super::local::{LocalCache, RawLocal};
use super::prefilled::Prefilled;
use super::raw::{self, RawCache};
use super::{life, registry, start};
use crate::os;
use crate::rseq::{self, Slot, dummy_slots};
use crate::slab::Constructor;
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{ControlFlow, Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// A function that initialises an object, and returns it.
///
/// One that leaves the object as it was has nothing to return:
///
/// ```compile_fail,E0308
/// let _ = uslab::CacheBuilder::new("unset").build_constructed::<&'static u8>(|_| {});
/// ```
///
/// What one box leaves in an object may be another thread's next, and may live as long as the
/// cache's type says:
///
/// ```compile_fail,E0277
/// use std::cell::Cell;
/// let cache = uslab::CacheBuilder::new("unsent");
/// let _ = cache.build_constructed::<Option<&'static Cell<u32>>>(|object| object.write(None));
/// ```
///
/// ```compile_fail
/// fn shortens<'a>(cache: &'a uslab::Cache<&'static str>) -> &'a uslab::Cache<&'a str> {
///     cache
/// }
/// ```
pub(super) type Construct<T> = fn(&mut MaybeUninit<T>) -> &mut T;

/// A cache of objects of type `T`.
///
/// [`Cache::new`] is `const`, so a cache can be a `static`; the first use sets it up. The rules for
/// threads, forks and signals are those of [`RawCache`].
///
/// ```
/// use uslab::Cache;
/// struct Session { id: u64, name: String }
/// static SESSIONS: Cache<Session> = Cache::new("session");
/// let mut session = SESSIONS.insert(Session { id: 1, name: "a".into() }).ok().unwrap();
/// session.id += 1;
/// drop(session); // the name is dropped, the object goes back to the cache
/// ```
pub struct Cache<T> {
    /// The slots for the fast path. Until the cache is set up they are the dummies, which send the
    /// first call to the slow path.
    slots: AtomicPtr<Slot>,
    /// The slots that bulk frees push to; likewise.
    bulk_slots: AtomicPtr<Slot>,
    core: AtomicPtr<Core>,
    name: &'static str,
    /// Invariant: what a box of a constructed object leaves there, the next box takes as a `T`.
    typed: PhantomData<fn(T) -> T>,
}

impl<T> Cache<T> {
    /// A cache with default options. Its first use sets it up; this function does not allocate.
    pub const fn new(name: &'static str) -> Self {
        const { assert!(size_of::<T>() > 0, "objects of no size need no cache") };
        Cache {
            slots: AtomicPtr::new(dummy_slots()),
            bulk_slots: AtomicPtr::new(dummy_slots()),
            core: AtomicPtr::new(core::ptr::null_mut()),
            name,
            typed: PhantomData,
        }
    }

    pub(super) fn create(options: &CacheBuilder<'_>) -> Result<Self, CreateError> {
        let raw = RawCache::create_aligned(options, size_of::<T>(), align_of::<T>())?;
        let core = raw.into_core();
        Ok(Cache {
            slots: AtomicPtr::new(core.slots()),
            bulk_slots: AtomicPtr::new(core.bulk_slots()),
            core: AtomicPtr::new((&raw const *core).cast_mut()),
            name: "",
            typed: PhantomData,
        })
    }

    pub(super) fn create_constructed(
        options: &CacheBuilder<'_>,
        construct: Construct<T>,
    ) -> Result<Self, CreateError>
    where
        T: Send,
    {
        const { assert!(!core::mem::needs_drop::<T>(), "constructed objects are never dropped") };
        /// Not of Rust's calling convention, so that a panic ends the process: slabs under
        /// construction cannot be unwound.
        ///
        /// # Safety
        /// `data` must be the function, `object` fresh memory for a `T`.
        unsafe extern "C" fn run<T>(object: *mut u8, data: usize) {
            // SAFETY: `data` is the `construct` given below, a function of this type.
            let construct = unsafe { core::mem::transmute::<usize, Construct<T>>(data) };
            // SAFETY: the object is fresh memory of T's size and alignment.
            let made = construct(unsafe { &mut *object.cast::<MaybeUninit<T>>() });
            if !core::ptr::eq(made, object.cast()) {
                os::report::print(format_args!("a constructor returned another object than its own"));
                os::report::abort();
            }
        }
        /// # Safety
        /// As `run`.
        unsafe fn call<T>(object: *mut u8, data: usize) {
            // SAFETY: the caller's promise.
            unsafe { run::<T>(object, data) };
        }
        let constructor = Constructor { call: call::<T>, data: construct as usize, release: None };
        Self::create(&CacheBuilder { constructor: Some(constructor), ..*options })
    }

    /// The core of the cache, set up now if it was not; `None` if memory is used up.
    #[inline]
    fn core(&self) -> Option<&'static Core> {
        self.core_if_set_up().or_else(|| self.set_up())
    }

    #[cold]
    #[inline(never)]
    fn set_up(&self) -> Option<&'static Core> {
        if !start::ensure() {
            return None;
        }
        let mut registry = registry::lock();
        if let Some(core) = self.core_if_set_up() {
            return Some(core);
        }
        let options = CacheBuilder::new(self.name);
        let core = life::create(&options, size_of::<T>(), align_of::<T>(), true, &mut registry).ok()?;
        self.core.store((&raw const *core).cast_mut(), Release);
        self.slots.store(core.slots(), Release);
        self.bulk_slots.store(core.bulk_slots(), Release);
        Some(core)
    }

    pub(crate) fn core_if_set_up(&self) -> Option<&'static Core> {
        // SAFETY: null or a core, which lives at its address for ever.
        unsafe { self.core.load(Acquire).as_ref() }
    }

    #[cold]
    #[inline(never)]
    extern "C" fn alloc_slow(&self) -> Option<NonNull<T>> {
        NonNull::new(self.core()?.alloc_slow().cast())
    }

    /// # Safety
    /// As [`Cache::free`].
    #[cold]
    #[inline(never)]
    unsafe extern "C" fn free_slow(&self, object: NonNull<T>) {
        // An object of the cache exists, so the cache is set up.
        if let Some(core) = self.core() {
            // SAFETY: the caller's promise.
            unsafe { core.free_slow(object.as_ptr().cast()) };
        }
    }

    /// Allocates an object. It is uninitialised; in a cache with a constructor it is as
    /// constructed, or as its last user left it. `None` if memory is used up.
    ///
    /// The fast path is wait-free. Of many calls in a row one in about 60 takes the slow path, and
    /// more do for objects of 256 bytes or more. The slow path may sleep on short locks, make
    /// system calls, and, where memory is used up, run callbacks of shrinkers.
    #[inline(always)]
    pub fn alloc(&self) -> Option<NonNull<T>> {
        // SAFETY: the slots are the cache's or the dummies.
        match NonNull::new(unsafe { rseq::pop(self.slots.load(Acquire)) }) {
            Some(object) => Some(object.cast()),
            None => self.alloc_slow(),
        }
    }

    /// [`Cache::alloc`] without reclaim; see [`RawCache::alloc_noreclaim`].
    pub fn alloc_noreclaim(&self) -> Option<NonNull<T>> {
        // SAFETY: the slots are the cache's or the dummies.
        let object = unsafe { rseq::pop(self.slots.load(Acquire)) };
        NonNull::new(if object.is_null() { self.core()?.alloc_slow_noreclaim() } else { object }.cast())
    }

    /// Allocates an object and zeroes it. `None` if memory is used up, or if the cache has a
    /// constructor, whose work zeroing would undo. Blocks as [`Cache::alloc`].
    #[inline]
    pub fn alloc_zeroed(&self) -> Option<NonNull<T>> {
        let object = self.alloc()?;
        if self.core_if_set_up().is_some_and(Core::is_constructed) {
            // SAFETY: just allocated.
            unsafe { self.free(object) };
            return None;
        }
        // SAFETY: the object is the caller's.
        unsafe { object.write_bytes(0, 1) };
        Some(object)
    }

    /// Frees an object without dropping its value. Never fails; blocks as [`RawCache::free`].
    ///
    /// # Safety
    /// `object` must be an object of this cache that no thread uses. In a cache with a constructor
    /// it must hold a valid `T`, which the next box of it may take on another thread.
    /// [`RawCache::free`] lists the misuse that is reported.
    #[inline(always)]
    pub unsafe fn free(&self, object: NonNull<T>) {
        // SAFETY: the slots are the cache's or the dummies; the caller's promise.
        unsafe {
            if !rseq::push(self.slots.load(Relaxed), object.as_ptr().cast()) {
                self.free_slow(object);
            }
        }
    }

    /// Fills all of `objects`. On false, because memory is used up, it has allocated none. True for
    /// an empty slice. Blocks as [`Cache::alloc`].
    #[inline]
    pub fn alloc_bulk(&self, objects: &mut [*mut T]) -> bool {
        let out = objects.as_mut_ptr().cast::<*mut u8>();
        // SAFETY: the slots are the cache's or the dummies; pointers to `T` and to bytes have one
        // representation.
        let got = unsafe { rseq::pop_bulk(self.slots.load(Acquire), objects.len(), out) };
        got == objects.len() || self.alloc_bulk_slow(objects, got)
    }

    #[cold]
    #[inline(never)]
    fn alloc_bulk_slow(&self, objects: &mut [*mut T], got: usize) -> bool {
        // SAFETY: as above.
        let bytes = unsafe { core::slice::from_raw_parts_mut(objects.as_mut_ptr().cast(), objects.len()) };
        let Some(core) = self.core() else { return false };
        if core.fill(&mut bytes[got..]) {
            return true;
        }
        // SAFETY: just popped, and unused.
        unsafe { core.free_bulk(&bytes[..got]) };
        false
    }

    /// Frees all of `objects` without dropping their values. Never fails; blocks as
    /// [`RawCache::free`].
    ///
    /// # Safety
    /// As [`Cache::free`], for each object.
    #[inline]
    pub unsafe fn free_bulk(&self, objects: &[*mut T]) {
        let given = objects.as_ptr().cast::<*mut u8>();
        // SAFETY: the slots are the cache's or the dummies; the caller's promise.
        let put = unsafe { rseq::push_bulk(self.bulk_slots.load(Relaxed), objects.len(), given) };
        if put < objects.len()
            && let Some(core) = self.core()
        {
            // SAFETY: pointers to `T` and to bytes have one representation; the caller's promise.
            unsafe {
                core.free_rest(core::slice::from_raw_parts(given.add(put), objects.len() - put));
            }
        }
    }

    /// Allocates an object and moves `value` into it. The box owns both. Blocks as
    /// [`Cache::alloc`].
    ///
    /// # Errors
    /// Returns the value if memory is used up, if the cache has a constructor (use
    /// [`Cache::constructed`] there), or if the cache cannot be made: its type is larger or more
    /// aligned than 256 KiB, or all ids of caches are in use.
    #[inline]
    pub fn insert(&self, value: T) -> Result<CacheBox<'_, T>, T> {
        let Some(object) = self.alloc() else { return Err(value) };
        if self.core_if_set_up().is_some_and(Core::is_constructed) {
            // SAFETY: just allocated, untouched.
            unsafe { self.free(object) };
            return Err(value);
        }
        // SAFETY: the object was just allocated and is uninitialised.
        unsafe { object.write(value) };
        Ok(CacheBox { object, cache: self })
    }

    /// Allocates an object, as its constructor or its last user left it. `None` if memory is used
    /// up or the cache has no constructor. Blocks as [`Cache::alloc`].
    pub fn constructed(&self) -> Option<ConstructedBox<'_, T>> {
        let object = self.alloc()?;
        if !self.core_if_set_up().is_some_and(Core::is_constructed) {
            // SAFETY: just allocated, untouched.
            unsafe { self.free(object) };
            return None;
        }
        Some(ConstructedBox { object, cache: self })
    }

    /// Allocates a private sheaf of `n` objects, so that `n` allocations from it cannot fail.
    /// `None` if memory is used up. Blocks as [`Cache::alloc`].
    pub fn prefill(&self, n: usize) -> Option<Prefilled<'_, T>> {
        Prefilled::new(self.core()?, n)
    }

    /// Makes a sheaf of this cache for the calling thread alone; see [`LocalCache`]. `None` if
    /// memory is used up. Takes locks; runs no callback of a shrinker.
    pub fn local(&self) -> Option<LocalCache<'_, T>> {
        Some(LocalCache::new(RawLocal::new(self.core()?)?))
    }

    /// As [`RawCache::shrink`]; 0 if the cache is not set up yet.
    pub fn shrink(&self) -> usize {
        self.core_if_set_up().map_or(0, Core::shrink)
    }

    /// As [`RawCache::for_each_live`]; visits nothing if the cache is not set up yet. An object may
    /// be live before its owner has written a value.
    pub fn for_each_live(&self, mut visit: impl FnMut(NonNull<T>) -> ControlFlow<()>) {
        if let Some(core) = self.core_if_set_up() {
            core.for_each_live(|object| visit(object.cast()));
        }
    }

    /// Destroys the cache. No other thread may use it during the call. Takes the registry's lock;
    /// may make system calls.
    ///
    /// # Errors
    /// If objects are live: returns the cache, unchanged, and those objects.
    pub fn destroy(self) -> Result<(), (Cache<T>, Busy)> {
        let result = self.core_if_set_up().map_or(Ok(()), raw::destroy);
        let this = core::mem::ManuallyDrop::new(self);
        result.map_err(|busy| (core::mem::ManuallyDrop::into_inner(this), busy))
    }
}

impl<T> fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.core_if_set_up().map_or(self.name, Core::name);
        write!(f, "Cache<{}>({name:?})", core::any::type_name::<T>())
    }
}

impl<T> Drop for Cache<T> {
    fn drop(&mut self) {
        if let Some(core) = self.core_if_set_up() {
            // A cache with live objects stays for ever, because another thread may still free into
            // it.
            let _ = raw::destroy(core);
        }
    }
}

/// An owned object of a [`Cache`]. Dropping the box drops the value and frees the object.
///
/// The box borrows the cache, so it cannot outlive it. A box of a `static` cache has no such bound.
pub struct CacheBox<'a, T> {
    object: NonNull<T>,
    cache: &'a Cache<T>,
}

// SAFETY: the box owns its `T`, as `Box` does; any thread may use the cache.
unsafe impl<T: Send> Send for CacheBox<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for CacheBox<'_, T> {}

impl<'a, T> CacheBox<'a, T> {
    /// Moves the value out of the box, and frees the object.
    pub fn into_inner(self) -> T {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: the box owned the value, which is moved out once. The object is freed without a
        // drop.
        unsafe {
            let value = this.object.read();
            this.cache.free(this.object);
            value
        }
    }

    /// The object. The caller must free it, by [`CacheBox::from_raw`] or [`Cache::free`].
    pub fn into_raw(self) -> NonNull<T> {
        core::mem::ManuallyDrop::new(self).object
    }

    /// The cache and the object.
    pub(super) fn parts(&self) -> (&'a Cache<T>, NonNull<T>) {
        (self.cache, self.object)
    }

    /// Rebuilds the box of an object of `cache`.
    ///
    /// # Safety
    /// `object` must be an object of `cache` with a valid value, from [`CacheBox::into_raw`] or
    /// [`LocalBox::into_raw`](super::LocalBox::into_raw). Each such object may be passed once.
    pub unsafe fn from_raw(cache: &'a Cache<T>, object: NonNull<T>) -> Self {
        CacheBox { object, cache }
    }
}

impl<T> Drop for CacheBox<'_, T> {
    fn drop(&mut self) {
        /// Frees the object, also where the value's destructor panics.
        struct Object<'a, T>(&'a Cache<T>, NonNull<T>);
        impl<T> Drop for Object<'_, T> {
            fn drop(&mut self) {
                // SAFETY: the box owned the object, whose value is gone.
                unsafe { self.0.free(self.1) };
            }
        }
        let object = Object(self.cache, self.object);
        // SAFETY: the box owns a valid value, unused from here on.
        unsafe { object.1.drop_in_place() };
    }
}

/// An object of a cache with a constructor. Dropping the box frees the object in its current state,
/// without a drop; a later box, perhaps of another thread, has it in that state.
pub struct ConstructedBox<'a, T> {
    object: NonNull<T>,
    cache: &'a Cache<T>,
}

// SAFETY: as for `CacheBox`.
unsafe impl<T: Send> Send for ConstructedBox<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ConstructedBox<'_, T> {}

impl<T> Drop for ConstructedBox<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the box owns the object; it stays constructed.
        unsafe { self.cache.free(self.object) };
    }
}

macro_rules! deref {
    ($($box:ident)*) => {$(
        impl<T> Deref for $box<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                // SAFETY: the box owns a valid value.
                unsafe { self.object.as_ref() }
            }
        }
        impl<T: fmt::Debug> fmt::Debug for $box<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&**self, f)
            }
        }
        impl<T> DerefMut for $box<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                // SAFETY: as above, exclusively.
                unsafe { self.object.as_mut() }
            }
        }
    )*};
}
deref!(CacheBox ConstructedBox);

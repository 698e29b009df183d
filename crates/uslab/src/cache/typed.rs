//! `Cache<T>`: a cache of objects of one type, and the boxes that own them.

use super::body::Core;
use super::builder::CacheBuilder;
use super::prefilled::Prefilled;
use super::raw::{self, Busy, CreateError, RawCache};
use super::{life, registry, start};
use crate::rseq::{self, Slot, dummy_slots};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// A cache of `T`s.
///
/// [`Cache::new`] is `const`: a cache can be a `static`, and is set up at its first use. The same rules for threads, forks and signals as for
/// [`RawCache`].
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
    /// The cache's slots once it is set up; the dummies until then, which send the first call down the slow path.
    slots: AtomicPtr<Slot>,
    core: AtomicPtr<Core>,
    name: &'static str,
    typed: PhantomData<fn() -> T>,
}

impl<T> Cache<T> {
    /// A cache that will be set up at its first use, with default options.
    pub const fn new(name: &'static str) -> Self {
        const { assert!(size_of::<T>() > 0, "objects of no size need no cache") };
        Cache {
            slots: AtomicPtr::new(dummy_slots()),
            core: AtomicPtr::new(core::ptr::null_mut()),
            name,
            typed: PhantomData,
        }
    }

    pub(super) fn create(options: &CacheBuilder<'_>) -> Result<Self, CreateError> {
        let raw = RawCache::create_aligned(options, size_of::<T>(), align_of::<T>())?;
        let core = core::mem::ManuallyDrop::new(raw).core();
        Ok(Cache {
            slots: AtomicPtr::new(core.slots()),
            core: AtomicPtr::new((&raw const *core).cast_mut()),
            name: "",
            typed: PhantomData,
        })
    }

    /// The cache behind, set up now if it was not; `None` without memory.
    #[cold]
    #[inline(never)]
    fn core(&self) -> Option<&'static Core> {
        if let Some(core) = self.core_if_set_up() {
            return Some(core);
        }
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
        Some(core)
    }

    fn core_if_set_up(&self) -> Option<&'static Core> {
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
        // An object of the cache exists, so it is set up.
        if let Some(core) = self.core() {
            // SAFETY: the caller's promise.
            unsafe { core.free_slow(object.as_ptr().cast()) };
        }
    }

    /// An object, uninitialised (or as its last user left it, if the cache has a constructor). `None` if memory is used up.
    ///
    /// Wait-free but for the slow path, about once in sixty calls, which may make system calls and sleep on short locks.
    #[inline(always)]
    pub fn alloc(&self) -> Option<NonNull<T>> {
        // SAFETY: the slots are the cache's or the dummies.
        match NonNull::new(unsafe { rseq::pop(self.slots.load(Acquire)) }) {
            Some(object) => Some(object.cast()),
            None => self.alloc_slow(),
        }
    }

    /// The same, but where memory is used up it is not reclaimed: no callback of a shrinker runs in this call. For callers that hold what
    /// those may want.
    pub fn alloc_noreclaim(&self) -> Option<NonNull<T>> {
        // SAFETY: the slots are the cache's or the dummies.
        let object = unsafe { rseq::pop(self.slots.load(Acquire)) };
        NonNull::new(if object.is_null() { self.core()?.alloc_slow_noreclaim() } else { object }.cast())
    }

    /// An object of zeroes. `None` if memory is used up, or if the cache has a constructor, which zeroing would undo.
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

    /// Takes an object back, without dropping it. Never fails.
    ///
    /// # Safety
    /// It must be an object of this cache that nobody uses. See [`RawCache::free`] for what is recognised otherwise.
    #[inline(always)]
    pub unsafe fn free(&self, object: NonNull<T>) {
        // SAFETY: the slots are the cache's or the dummies; the caller's promise.
        unsafe {
            if !rseq::push(self.slots.load(Relaxed), object.as_ptr().cast()) {
                self.free_slow(object);
            }
        }
    }

    /// Fills all of `objects`, or says false and takes none. None asked for is true.
    #[inline]
    pub fn alloc_bulk(&self, objects: &mut [*mut T]) -> bool {
        let out = objects.as_mut_ptr().cast::<*mut u8>();
        // SAFETY: the slots are the cache's or the dummies; pointers to T and to bytes are alike.
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
        // SAFETY: just popped, used by nobody.
        unsafe { core.free_bulk(&bytes[..got]) };
        false
    }

    /// Takes all of `objects` back, without dropping them.
    ///
    /// # Safety
    /// As [`Cache::free`], for each.
    #[inline]
    pub unsafe fn free_bulk(&self, objects: &[*mut T]) {
        let given = objects.as_ptr().cast::<*mut u8>();
        // SAFETY: the slots are the cache's or the dummies; the caller's promise.
        let put = unsafe { rseq::push_bulk(self.slots.load(Relaxed), objects.len(), given) };
        if put < objects.len()
            && let Some(core) = self.core()
        {
            // SAFETY: pointers to T and to bytes are alike; the caller's promise.
            unsafe {
                core.cpu.free_slow(core::slice::from_raw_parts(given.add(put), objects.len() - put));
            }
        }
    }

    /// An object that holds `value`, owned by the box, which drops and frees it.
    ///
    /// # Errors
    /// Gives the value back if memory is used up, or if the cache has a constructor ([`Cache::constructed`] is for those).
    #[inline]
    pub fn insert(&self, value: T) -> Result<CacheBox<'_, T>, T> {
        let Some(object) = self.alloc() else { return Err(value) };
        if self.core_if_set_up().is_some_and(Core::is_constructed) {
            // SAFETY: just allocated, untouched.
            unsafe { self.free(object) };
            return Err(value);
        }
        // SAFETY: the object is ours and uninitialised.
        unsafe { object.write(value) };
        Ok(CacheBox { object, cache: self })
    }

    /// An object as its constructor, or its last user, left it. `None` if memory is used up or the cache has no constructor.
    pub fn constructed(&self) -> Option<ConstructedBox<'_, T>> {
        let object = self.alloc()?;
        if !self.core_if_set_up().is_some_and(Core::is_constructed) {
            // SAFETY: just allocated, untouched.
            unsafe { self.free(object) };
            return None;
        }
        Some(ConstructedBox { object, cache: self })
    }

    /// A private store of `n` objects: so many allocations from it cannot fail. `None` if memory is used up.
    pub fn prefill(&self, n: usize) -> Option<Prefilled<'_, T>> {
        Prefilled::new(self.core()?, n)
    }

    /// As [`RawCache::shrink`].
    pub fn shrink(&self) -> usize {
        self.core_if_set_up().map_or(0, |core| {
            core.cpu.drain_all();
            core.cpu.slabs().shrink()
        })
    }

    /// Destroys the cache. Nobody may be using it on another thread.
    ///
    /// # Errors
    /// Gives the cache back, with what still lives in it, and nothing else changed.
    pub fn destroy(self) -> Result<(), (Cache<T>, Busy)> {
        let result = self.core_if_set_up().map_or(Ok(()), raw::destroy);
        let this = core::mem::ManuallyDrop::new(self);
        result.map_err(|busy| (core::mem::ManuallyDrop::into_inner(this), busy))
    }

    /// The cache behind the handle, if it was ever used.
    pub fn info(&self) -> Option<&'static Core> {
        self.core_if_set_up()
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
            // With live objects the cache stays, for ever: somebody may still free into it.
            let _ = raw::destroy(core);
        }
    }
}

/// An object of a [`Cache`], owned: dropping the box drops the value and frees the object.
///
/// It borrows the cache, so that it cannot outlive it; a box of a `static` cache can go anywhere.
pub struct CacheBox<'a, T> {
    object: NonNull<T>,
    cache: &'a Cache<T>,
}

// SAFETY: the box owns its T, as `Box` does; the cache is shared by design.
unsafe impl<T: Send> Send for CacheBox<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for CacheBox<'_, T> {}

impl<'a, T> CacheBox<'a, T> {
    /// The value, out of its box.
    pub fn into_inner(self) -> T {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: the box owned the value, which is moved out once; the object goes back undropped.
        unsafe {
            let value = this.object.read();
            this.cache.free(this.object);
            value
        }
    }

    /// The object, which the caller now has to free with [`CacheBox::from_raw`] or [`Cache::free`].
    pub fn into_raw(self) -> NonNull<T> {
        core::mem::ManuallyDrop::new(self).object
    }

    /// The box again.
    ///
    /// # Safety
    /// `object` must come from [`CacheBox::into_raw`] of a box of `cache`, once.
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

/// An object of a cache with a constructor, borrowed from it for a while; it goes back as it then is.
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

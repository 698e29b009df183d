//! Local caches: a sheaf of a cache for one thread alone, at half the cost of the CPU's.
//!
//! ```text
//!   Cache::alloc         sequence on this CPU's sheaf       any thread, no set-up
//!   LocalCache::alloc    load, load, store                  one thread, which keeps the handle
//! ```
//!
//! No other thread uses the sheaf, so a pop is three plain instructions: it needs no sequence and
//! no lock, in either mode. The sheaf serves from the same barns and slabs as the CPUs' sheaves.
//! Objects have no mark of the way they came: any way of freeing takes them all.

use super::body::Core;
use super::debugged::Release;
use crate::os;
use crate::percpu::local::{Local, Window};
use crate::slab::report_misuse;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Sheaves of a [`super::RawCache`] that one thread has to itself.
///
/// Pop and push are plain loads and stores; about one call in a hundred exchanges a whole sheaf
/// with the cache. Worth it where one thread allocates and frees much from one cache: make the
/// sheaf once, not for each call. Objects may be freed by [`super::RawCache::free`] and on other
/// threads, and objects from elsewhere through this one.
///
/// It holds up to two sheaves of free objects, which the statistics count as such. Other threads
/// cannot take these. [`super::RawCache::shrink`] and [`crate::trim`] ask for them: the sheaf
/// gives them back at its next refill or flush, on [`RawLocal::flush`], and when it is dropped. A
/// walk of live objects visits free objects in it, too.
///
/// A fork child keeps the sheaves of the forking thread. Free objects in those of other threads are
/// lost to it: their number stays in `sheaf_free` of the statistics.
///
/// Debugged and hardened caches, and those without sheaves, serve each call by the slow path. A
/// running cache that becomes debugged does so for this sheaf at its next refill or flush.
///
/// ```
/// let cache = uslab::CacheBuilder::new("record").build_raw(48).unwrap();
/// let local = cache.local().unwrap();
/// let object = local.alloc().unwrap();
/// // SAFETY: it came from this cache and is not used afterwards.
/// unsafe { local.free(object) };
/// assert!(local.held() > 0);
/// ```
pub struct RawLocal<'a> {
    local: NonNull<Local>,
    core: &'static Core,
    /// Of one thread: neither `Send` nor `Sync`.
    cache: PhantomData<(&'a (), *mut ())>,
}

impl RawLocal<'_> {
    pub(super) fn new(core: &'static Core) -> Option<Self> {
        let _errno = os::errno::Preserved::new();
        let local = NonNull::new(Local::make(&core.cpu))?;
        Some(RawLocal { local, core, cache: PhantomData })
    }

    #[inline(always)]
    fn local(&self) -> &Local {
        // SAFETY: made in `new`, ended in `drop`.
        unsafe { self.local.as_ref() }
    }

    /// Allocates an object, uninitialised, or as its constructor or its last user left it. `None`
    /// if memory is used up. The slow path blocks as that of [`super::RawCache::alloc`].
    #[inline(always)]
    pub fn alloc(&self) -> Option<NonNull<u8>> {
        // SAFETY: the sheaf is this value's, which no other thread uses.
        match unsafe { self.window().pop() } {
            Some(object) => Some(object),
            None => NonNull::new(self.alloc_slow()),
        }
    }

    /// [`RawLocal::alloc`] without reclaim; see [`super::RawCache::alloc_noreclaim`].
    pub fn alloc_noreclaim(&self) -> Option<NonNull<u8>> {
        // SAFETY: as in `alloc`.
        unsafe { self.window().pop() }.or_else(|| NonNull::new(self.core.alloc_local_noreclaim(self.local())))
    }

    /// Frees an object. Never fails. The slow path blocks as that of [`super::RawCache::free`].
    ///
    /// # Safety
    /// `object` must be an object of this sheaf's cache that no thread uses. Misuse is reported as
    /// [`super::RawCache::free`] says, when the object reaches its slab.
    #[inline(always)]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.window().push(object) {
                self.free_slow(object.as_ptr());
            }
        }
    }

    /// Fills all of `objects`. On false, because memory is used up, it has allocated none. True for
    /// an empty slice. Blocks as [`RawLocal::alloc`].
    #[inline]
    pub fn alloc_bulk(&self, objects: &mut [*mut u8]) -> bool {
        // SAFETY: the slice has room.
        let got = unsafe { self.window().pop_bulk(objects.len(), objects.as_mut_ptr()) };
        got == objects.len() || self.alloc_bulk_slow(objects, got)
    }

    /// Frees all of `objects`. Never fails; blocks as [`RawLocal::free`].
    ///
    /// # Safety
    /// As [`RawLocal::free`], for each object.
    #[inline]
    pub unsafe fn free_bulk(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe {
            let put = self.window().push_bulk(objects.len(), objects.as_ptr());
            if put < objects.len() {
                self.free_bulk_slow(&objects[put..]);
            }
        }
    }

    /// The number of free objects that it holds: those of its two sheaves.
    pub fn held(&self) -> usize {
        self.local().held()
    }

    /// Flushes the sheaves to the slabs; returns the number of objects. Takes locks; may make
    /// system calls.
    pub fn flush(&self) -> usize {
        let _errno = os::errno::Preserved::new();
        self.local().flush(&self.core.cpu)
    }

    /// The window on the objects that pops and pushes use; also for the C interface.
    #[doc(hidden)]
    #[inline(always)]
    pub fn window(&self) -> &Window {
        self.local().window()
    }

    #[cold]
    #[inline(never)]
    extern "C" fn alloc_slow(&self) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        if self.core.fill_local(self.local(), &mut out) { out[0] } else { core::ptr::null_mut() }
    }

    #[cold]
    #[inline(never)]
    fn alloc_bulk_slow(&self, objects: &mut [*mut u8], got: usize) -> bool {
        if self.core.fill_local(self.local(), &mut objects[got..]) {
            return true;
        }
        // SAFETY: just popped, and unused.
        unsafe { self.free_bulk(&objects[..got]) };
        false
    }

    /// # Safety
    /// As [`RawLocal::free`].
    #[cold]
    #[inline(never)]
    unsafe extern "C" fn free_slow(&self, object: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.core.free_local(self.local(), object) };
    }

    /// # Safety
    /// As [`RawLocal::free_bulk`].
    #[cold]
    #[inline(never)]
    unsafe fn free_bulk_slow(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.core.free_rest_local(self.local(), objects) };
    }
}

impl fmt::Debug for RawLocal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawLocal({:?}, {} free)", self.core.name(), self.held())
    }
}

impl Drop for RawLocal<'_> {
    fn drop(&mut self) {
        let _errno = os::errno::Preserved::new();
        // SAFETY: made in `new`, and used by this value alone.
        unsafe { Local::end(self.local.as_ptr()) };
    }
}

impl Core {
    /// [`Core::fill`] through a thread's own slot.
    fn fill_local(&self, local: &Local, out: &mut [*mut u8]) -> bool {
        if self.cpu.may_serve(local) && !self.is_debugged() {
            self.fill_by(out, |out| self.cpu.alloc_slow_local(local, out))
        } else {
            self.fill(out)
        }
    }

    /// [`Core::alloc_slow_noreclaim`] through a thread's own slot.
    fn alloc_local_noreclaim(&self, local: &Local) -> *mut u8 {
        if !self.cpu.may_serve(local) || self.is_debugged() {
            return self.alloc_slow_noreclaim();
        }
        let mut out = [core::ptr::null_mut()];
        if self.cpu.alloc_slow_local(local, &mut out) { out[0] } else { core::ptr::null_mut() }
    }

    /// [`Core::free_slow`] through a thread's own slot.
    ///
    /// # Safety
    /// As [`Core::free_slow`].
    unsafe fn free_local(&self, local: &Local, object: *mut u8) {
        if !self.cpu.may_serve(local) || self.sees_frees() {
            // SAFETY: the caller's promise.
            return unsafe { self.free_slow_for(object, Release::PLAIN) };
        }
        match self.misuse_of(object) {
            // SAFETY: the caller's promise.
            None => unsafe { self.cpu.free_slow_local(local, &[object]) },
            Some(misuse) => report_misuse(misuse, object, self.name()),
        }
    }

    /// [`Core::free_rest`] through a thread's own slot.
    ///
    /// # Safety
    /// As [`Core::free_bulk`].
    unsafe fn free_rest_local(&self, local: &Local, objects: &[*mut u8]) {
        if !self.cpu.may_serve(local) || self.sees_frees() {
            // SAFETY: the caller's promise.
            unsafe { self.free_rest(objects) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.cpu.free_slow_local(local, objects) };
        }
    }
}

/// A sheaf of a [`super::Cache`] for one thread; see [`RawLocal`], whose rules hold here.
///
/// ```
/// use uslab::Cache;
/// static CELLS: Cache<(u64, u64)> = Cache::new("cell");
/// let cells = CELLS.local().unwrap();
/// let pair = cells.insert((1, 2)).unwrap();
/// assert_eq!(pair.0 + pair.1, 3);
/// ```
///
/// It stays on its thread:
///
/// ```compile_fail
/// static CELLS: uslab::Cache<u64> = uslab::Cache::new("cell");
/// let cells = CELLS.local().unwrap();
/// std::thread::spawn(move || cells.alloc());
/// ```
pub struct LocalCache<'a, T> {
    raw: RawLocal<'a>,
    /// Covariant, so that objects may borrow from the handle (`examples/interpreter.rs`). Safe code
    /// does not see what an object held before: others get pointers to it alone.
    typed: PhantomData<fn() -> T>,
}

impl<'a, T> LocalCache<'a, T> {
    pub(super) fn new(raw: RawLocal<'a>) -> Self {
        LocalCache { raw, typed: PhantomData }
    }

    /// As [`RawLocal::alloc`].
    #[inline(always)]
    pub fn alloc(&self) -> Option<NonNull<T>> {
        self.raw.alloc().map(NonNull::cast)
    }

    /// As [`RawLocal::free`]; does not drop the value.
    ///
    /// # Safety
    /// As [`super::Cache::free`].
    #[inline(always)]
    pub unsafe fn free(&self, object: NonNull<T>) {
        // SAFETY: the caller's promise.
        unsafe { self.raw.free(object.cast()) };
    }

    /// As [`RawLocal::alloc_bulk`].
    #[inline]
    pub fn alloc_bulk(&self, objects: &mut [*mut T]) -> bool {
        // SAFETY: pointers to `T` and to bytes have one representation.
        let bytes = unsafe { core::slice::from_raw_parts_mut(objects.as_mut_ptr().cast(), objects.len()) };
        self.raw.alloc_bulk(bytes)
    }

    /// As [`RawLocal::free_bulk`]; drops no value.
    ///
    /// # Safety
    /// As [`super::Cache::free`], for each object.
    #[inline]
    pub unsafe fn free_bulk(&self, objects: &[*mut T]) {
        // SAFETY: as above; the caller's promise.
        unsafe { self.raw.free_bulk(core::slice::from_raw_parts(objects.as_ptr().cast(), objects.len())) };
    }

    /// Allocates an object and moves `value` into it. The box frees it through this sheaf. Blocks
    /// as [`RawLocal::alloc`].
    ///
    /// # Errors
    /// Returns the value if memory is used up, or if the cache has a constructor.
    #[inline]
    pub fn insert(&self, value: T) -> Result<LocalBox<'_, T>, T> {
        if self.raw.core.is_constructed() {
            return Err(value);
        }
        let Some(object) = self.alloc() else { return Err(value) };
        // SAFETY: the object was just allocated and is uninitialised.
        unsafe { object.write(value) };
        Ok(LocalBox { object, local: self })
    }

    /// As [`RawLocal::held`].
    pub fn held(&self) -> usize {
        self.raw.held()
    }

    /// As [`RawLocal::flush`].
    pub fn flush(&self) -> usize {
        self.raw.flush()
    }
}

impl<T> fmt::Debug for LocalCache<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalCache<{}>({} free)", core::any::type_name::<T>(), self.held())
    }
}

/// An owned object of a [`LocalCache`]. Dropping the box drops the value and frees the object.
pub struct LocalBox<'a, T> {
    object: NonNull<T>,
    local: &'a LocalCache<'a, T>,
}

impl<'a, T> LocalBox<'a, T> {
    /// Moves the value out of the box, and frees the object.
    pub fn into_inner(self) -> T {
        let this = ManuallyDrop::new(self);
        // SAFETY: the box owned the value, which is moved out once. The object is freed without a
        // drop.
        unsafe {
            let value = this.object.read();
            this.local.free(this.object);
            value
        }
    }

    /// The object, which the caller must free: by [`LocalBox::from_raw`], [`LocalCache::free`] or
    /// [`super::Cache::free`], or as a [`super::CacheBox`] of the cache.
    pub fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).object
    }

    /// Makes a box of an object of `local`'s cache.
    ///
    /// # Safety
    /// `object` must be an object of `local`'s cache with a valid value, from
    /// [`LocalBox::into_raw`] or [`super::CacheBox::into_raw`]. Each such object may be passed
    /// once.
    pub unsafe fn from_raw(local: &'a LocalCache<'a, T>, object: NonNull<T>) -> Self {
        LocalBox { object, local }
    }
}

impl<T> Drop for LocalBox<'_, T> {
    fn drop(&mut self) {
        /// Frees the object, also where the value's destructor panics.
        struct Object<'a, T>(&'a LocalCache<'a, T>, NonNull<T>);
        impl<T> Drop for Object<'_, T> {
            fn drop(&mut self) {
                // SAFETY: the box owned the object, whose value is gone.
                unsafe { self.0.free(self.1) };
            }
        }
        let object = Object(self.local, self.object);
        // SAFETY: the box owns a valid value, unused from here on.
        unsafe { object.1.drop_in_place() };
    }
}

impl<T> Deref for LocalBox<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the box owns a valid value.
        unsafe { self.object.as_ref() }
    }
}

impl<T> DerefMut for LocalBox<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, exclusively.
        unsafe { self.object.as_mut() }
    }
}

impl<T: fmt::Debug> fmt::Debug for LocalBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

//! `RawCache`: a cache of objects whose size and alignment are chosen at run time.

use super::body::Core;
use super::builder::CacheBuilder;
use super::error::{Busy, CreateError};
use super::local::RawLocal;
use super::prefilled::{RawPrefilled, Reclaim};
use super::{life, registry, start};
use crate::percpu::{Drain, adapt, local};
use crate::rseq::{self, Slot};
use core::fmt;
use core::ops::ControlFlow;
use core::ptr::NonNull;

/// A cache of objects of one size, chosen at run time.
///
/// Dropping the handle destroys the cache if none of its objects is live. Otherwise the cache stays
/// for ever, because another thread may still free into it.
///
/// All methods may be called from any thread, and in fork children. Like `malloc`, none may be
/// called from a signal handler that interrupted one of them.
///
/// ```
/// let cache = uslab::CacheBuilder::new("record").build_raw(48).unwrap();
/// let object = cache.alloc().unwrap();
/// // SAFETY: it came from this cache and is not used afterwards.
/// unsafe { cache.free(object) };
/// cache.destroy().unwrap();
/// ```
pub struct RawCache {
    slots: *const Slot,
    core: &'static Core,
}

// SAFETY: slots and core may be used by any thread.
unsafe impl Send for RawCache {}
// SAFETY: as above.
unsafe impl Sync for RawCache {}

impl RawCache {
    pub(super) fn create(options: &CacheBuilder<'_>, size: usize) -> Result<RawCache, CreateError> {
        Self::create_aligned(options, size, natural_align(size))
    }

    pub(super) fn create_aligned(
        options: &CacheBuilder<'_>,
        size: usize,
        align: usize,
    ) -> Result<RawCache, CreateError> {
        if options.align != 0 && !options.align.is_power_of_two() {
            return Err(CreateError::Invalid);
        }
        if !start::ensure() {
            return Err(CreateError::OutOfMemory);
        }
        let core = life::create(options, size, align, true, &mut registry::lock())?;
        Ok(RawCache { slots: core.slots(), core })
    }

    /// Allocates an object. It is uninitialised; in a cache with a constructor it is as
    /// constructed, or as its last user left it. `None` if memory is used up.
    ///
    /// The fast path is wait-free. Of many calls in a row one in about 60 takes the slow path, and
    /// more do for objects of 256 bytes or more. The slow path may sleep on short locks, make
    /// system calls, and, where memory is used up, run callbacks of shrinkers.
    #[inline(always)]
    pub fn alloc(&self) -> Option<NonNull<u8>> {
        // SAFETY: the slots are the cache's.
        match NonNull::new(unsafe { rseq::pop(self.slots) }) {
            Some(object) => Some(object),
            None => NonNull::new(self.core.alloc_slow()),
        }
    }

    /// [`RawCache::alloc`] without reclaim: where memory is used up the call returns `None`, and
    /// runs no callback of a shrinker. For callers that hold locks which those callbacks may take.
    pub fn alloc_noreclaim(&self) -> Option<NonNull<u8>> {
        // SAFETY: the slots are the cache's.
        let object = unsafe { rseq::pop(self.slots) };
        NonNull::new(if object.is_null() { self.core.alloc_slow_noreclaim() } else { object })
    }

    /// Allocates an object and zeroes it. `None` if memory is used up, or if the cache has a
    /// constructor, whose work zeroing would undo. Blocks as [`RawCache::alloc`].
    #[inline]
    pub fn alloc_zeroed(&self) -> Option<NonNull<u8>> {
        if self.core.is_constructed() {
            return None;
        }
        let object = self.alloc()?;
        // SAFETY: the object is the caller's, of that many bytes.
        unsafe { object.write_bytes(0, self.core.user_bytes()) };
        Some(object)
    }

    /// Frees an object. Never fails. The slow path may sleep on short locks and make system calls;
    /// it runs no callback of a shrinker.
    ///
    /// # Safety
    /// `object` must be an object of this cache that no thread uses. A double free or a foreign
    /// pointer is reported at the latest when it reaches its slab; by default the process then
    /// ends.
    #[inline(always)]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: the slots are the cache's; the caller's promise.
        unsafe {
            if !rseq::push(self.slots, object.as_ptr()) {
                self.core.free_slow(object.as_ptr());
            }
        }
    }

    /// Fills all of `objects`. On false, because memory is used up, it has allocated none. True for
    /// an empty slice. Blocks as [`RawCache::alloc`].
    #[inline]
    pub fn alloc_bulk(&self, objects: &mut [*mut u8]) -> bool {
        self.core.alloc_bulk(objects)
    }

    /// [`RawCache::alloc_bulk`] without reclaim; see [`RawCache::alloc_noreclaim`].
    pub fn alloc_bulk_noreclaim(&self, objects: &mut [*mut u8]) -> bool {
        self.core.alloc_bulk_noreclaim(objects)
    }

    /// Frees all of `objects`. Never fails; blocks as [`RawCache::free`].
    ///
    /// # Safety
    /// As [`RawCache::free`], for each object.
    #[inline]
    pub unsafe fn free_bulk(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.core.free_bulk(objects) };
    }

    /// Allocates a private sheaf of `n` objects, so that `n` allocations from it cannot fail.
    /// `None` if memory is used up. Blocks as [`RawCache::alloc`].
    pub fn prefill(&self, n: usize) -> Option<RawPrefilled<'_>> {
        RawPrefilled::new(self.core, n, Reclaim::Yes)
    }

    /// [`RawCache::prefill`] without reclaim; see [`RawCache::alloc_noreclaim`].
    pub fn prefill_noreclaim(&self, n: usize) -> Option<RawPrefilled<'_>> {
        RawPrefilled::new(self.core, n, Reclaim::No)
    }

    /// Makes a sheaf of this cache for the calling thread alone; see [`RawLocal`]. `None` if memory
    /// is used up. Takes a lock; runs no callback of a shrinker.
    pub fn local(&self) -> Option<RawLocal<'_>> {
        RawLocal::new(self.core)
    }

    /// Drains all sheaves of the cache, and shrinks it: returns all empty slabs to the page layer.
    /// Returns the bytes of memory that they had.
    ///
    /// The page layer decides when the pages return to the system; see [`crate::trim`]. Takes
    /// locks; may make system calls. Threads with a sheaf of their own give its objects back at its
    /// next refill or flush.
    pub fn shrink(&self) -> usize {
        self.core.shrink()
    }

    /// Calls `visit` for each live object, in the order of addresses, until it breaks off.
    ///
    /// The walk drains the cache's sheaves first, and then reads the bitmaps of its slabs. Objects
    /// of a prefilled sheaf are live. `visit` runs with no lock held: it may allocate and free,
    /// from this cache too. Objects that are allocated or freed during the walk, by `visit` or
    /// by another thread, may be visited or not. The caller must know by other means that an
    /// object is still live before it reads one.
    ///
    /// Where the kernel refuses `membarrier(2)`, sheaves of other CPUs cannot be drained, and the
    /// walk visits the free objects in them too.
    ///
    /// Takes the registry's lock and locks of the cache, and may make system calls. The time grows
    /// with the memory that the library manages, not with the cache alone. Fork children may call
    /// it.
    ///
    /// ```
    /// let cache = uslab::CacheBuilder::new("session").build_raw(48).unwrap();
    /// let sessions = [cache.alloc().unwrap(), cache.alloc().unwrap()];
    /// let mut live = 0;
    /// cache.for_each_live(|_| {
    ///     live += 1;
    ///     std::ops::ControlFlow::Continue(())
    /// });
    /// assert_eq!(live, 2);
    /// // SAFETY: from this cache, unused.
    /// sessions.into_iter().for_each(|session| unsafe { cache.free(session) });
    /// ```
    pub fn for_each_live(&self, visit: impl FnMut(NonNull<u8>) -> ControlFlow<()>) {
        self.core.for_each_live(visit);
    }

    /// Destroys the cache. No other thread may use it during the call. Takes the registry's lock;
    /// may make system calls.
    ///
    /// # Errors
    /// If objects are live: returns the cache, unchanged, and those objects.
    pub fn destroy(self) -> Result<(), (RawCache, Busy)> {
        let this = core::mem::ManuallyDrop::new(self);
        destroy(this.core).map_err(|busy| (core::mem::ManuallyDrop::into_inner(this), busy))
    }

    /// The cache's name.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Usable bytes of an object, at least the requested size.
    pub fn usable_bytes(&self) -> usize {
        self.core.usable_bytes()
    }

    /// The core of the cache, which the caller destroys.
    pub(super) fn into_core(self) -> &'static Core {
        core::mem::ManuallyDrop::new(self).core
    }

    /// The core of the cache, for the C interface and tests.
    #[doc(hidden)]
    pub fn core(&self) -> &Core {
        self.core
    }
}

impl fmt::Debug for RawCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawCache({:?}, {} bytes)", self.name(), self.core.user_bytes())
    }
}

impl Drop for RawCache {
    fn drop(&mut self) {
        let _ = destroy(self.core);
    }
}

/// Natural alignment of a raw object: 16 if that divides its size, 8 otherwise.
fn natural_align(size: usize) -> usize {
    if size.is_multiple_of(16) { 16 } else { 8 }
}

/// Destroys a cache that has no live objects.
pub(super) fn destroy(core: &'static Core) -> Result<(), Busy> {
    let mut registry = registry::lock();
    core.leave_quarantine();
    let live = {
        // A thread that grows another cache's sheaves may be draining this one. The objects that it
        // has in flight would count as live.
        let _pause = adapt::pause();
        // SAFETY: the program promises that no thread uses the cache any more. The registry's lock
        // excludes passes and the background thread, and the pause excludes drains for other
        // caches.
        unsafe { core.cpu.drain_unused() };
        core.live_objects()
    };
    if live > 0 || core.is_debugged() {
        drop(registry);
        core.check_objects();
        if live > 0 {
            return Err(live_objects_of(core, live));
        }
        registry = registry::lock();
    }
    life::retire(core, &mut registry);
    Ok(())
}

/// Destroys caches and all objects in them.
///
/// # Safety
/// No thread may use the caches or their objects any more.
pub(crate) unsafe fn destroy_whole(cores: impl Iterator<Item = &'static Core> + Clone) {
    let mut registry = registry::lock();
    {
        // A thread that grows another cache's sheaves may be draining one of these. It would flush
        // objects to slabs that no longer exist.
        let _pause = adapt::pause();
        // SAFETY: the caller's promise; the registry's lock and the pause exclude the library's own
        // threads.
        let mut drain = unsafe { Drain::of_unused() };
        cores.clone().for_each(|core| core.cpu.drain_slots(&mut drain));
        drop(drain);
        for core in cores.clone() {
            core.cpu.drain_barns();
            // SAFETY: the caller's promise.
            unsafe { core.cpu.slabs().free_all() };
        }
    }
    cores.for_each(|core| life::retire(core, &mut registry));
}

fn live_objects_of(core: &Core, objects: usize) -> Busy {
    let mut busy = Busy { objects, first: [core::ptr::null_mut(); 8] };
    let mut n = 0;
    core.cpu.slabs().for_each_taken(|object| {
        busy.first[n] = object;
        n += 1;
        n < busy.first.len()
    });
    if let Some(debug) = &core.debug {
        busy.first[..n].iter_mut().for_each(|object| *object = debug.pointer(*object));
        debug.report_live(core.cpu.slabs(), &busy.first);
    }
    busy
}

/// Updates the figures of all caches. They are exact if no other thread allocates or frees
/// meanwhile.
pub fn account_all() {
    with_accounts(|| ());
}

/// As [`account_all`], and runs `read` before another thread can trim.
pub(crate) fn with_accounts<R>(read: impl FnOnce() -> R) -> R {
    if !start::is_ready() {
        return read();
    }
    registry::with_lock(|| {
        local::account_all();
        // Last, because it moves the counts of all lines to the records.
        registry::for_each(|core| core.cpu.account_all());
        read()
    })
}

//! `RawCache`: a cache by size and alignment.

use super::body::Core;
use super::builder::CacheBuilder;
use super::prefilled::{RawPrefilled, Reclaim};
use super::{life, registry, start};
use crate::percpu::{Drain, adapt};
use crate::rseq::{self, Slot};
use crate::slab::GeometryError;
use core::fmt;
use core::ptr::NonNull;

/// Why a cache could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// Size 0, or an alignment that is not a power of two.
    Invalid,
    /// An object or alignment beyond 256 KiB.
    TooLarge,
    /// There is no memory for it.
    OutOfMemory,
    /// 65 480 caches live already.
    TooManyCaches,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CreateError::Invalid => "object size is 0 or the alignment is not a power of two",
            CreateError::TooLarge => "object size or alignment is beyond 256 KiB",
            CreateError::OutOfMemory => "out of memory",
            CreateError::TooManyCaches => "too many caches",
        })
    }
}

impl core::error::Error for CreateError {}

impl From<GeometryError> for CreateError {
    fn from(error: GeometryError) -> Self {
        match error {
            GeometryError::Invalid => CreateError::Invalid,
            GeometryError::TooLarge => CreateError::TooLarge,
        }
    }
}

/// Why a cache was not destroyed: objects of it live.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// How many.
    pub objects: usize,
    /// The first of them, null beyond their number.
    pub first: [*mut u8; 8],
}

// SAFETY: the pointers are for showing, not for following.
unsafe impl Send for Busy {}
// SAFETY: as above.
unsafe impl Sync for Busy {}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} objects live:", self.objects)?;
        for &object in self.first.iter().take_while(|object| !object.is_null()) {
            write!(f, " {object:p}")?;
        }
        if self.objects > self.first.len() { f.write_str(" …") } else { Ok(()) }
    }
}

impl core::error::Error for Busy {}

/// A cache of objects of one size, chosen at run time. Dropping it destroys it, if no object lives;
/// otherwise it stays, for ever, because another thread may still free into it.
///
/// All methods may be called from any thread, and in fork children. Like `malloc`, none may be
/// called from a signal handler that interrupted one.
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

// SAFETY: slots and core are shared by design.
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

    /// An object, uninitialised (or as its last user left it, if the cache has a constructor).
    /// `None` if memory is used up.
    ///
    /// Wait-free but for the slow path, about once in sixty calls, which may make system calls and
    /// sleep on short locks.
    #[inline(always)]
    pub fn alloc(&self) -> Option<NonNull<u8>> {
        // SAFETY: the slots are the cache's.
        match NonNull::new(unsafe { rseq::pop(self.slots) }) {
            Some(object) => Some(object),
            None => NonNull::new(self.core.alloc_slow()),
        }
    }

    /// The same, but where memory is used up it is not reclaimed: no callback of a shrinker runs in
    /// this call. For callers that hold what those may want.
    pub fn alloc_noreclaim(&self) -> Option<NonNull<u8>> {
        // SAFETY: the slots are the cache's.
        let object = unsafe { rseq::pop(self.slots) };
        NonNull::new(if object.is_null() { self.core.alloc_slow_noreclaim() } else { object })
    }

    /// An object of zeroes. `None` if memory is used up, or if the cache has a constructor, which
    /// zeroing would undo.
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

    /// Takes an object back. Never fails; may do what [`RawCache::alloc`] may.
    ///
    /// # Safety
    /// It must be an object of this cache that no thread uses. A double free or a foreign pointer is
    /// recognised at the latest when it gets to its slab, and reported; by default the process
    /// then ends.
    #[inline(always)]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: the slots are the cache's; the caller's promise.
        unsafe {
            if !rseq::push(self.slots, object.as_ptr()) {
                self.core.free_slow(object.as_ptr());
            }
        }
    }

    /// Fills all of `objects`, or says false and takes none. None asked for is true.
    #[inline]
    pub fn alloc_bulk(&self, objects: &mut [*mut u8]) -> bool {
        self.core.alloc_bulk(objects)
    }

    /// The same, but memory is not reclaimed for it: see [`RawCache::alloc_noreclaim`].
    pub fn alloc_bulk_noreclaim(&self, objects: &mut [*mut u8]) -> bool {
        self.core.alloc_bulk_noreclaim(objects)
    }

    /// Takes all of `objects` back.
    ///
    /// # Safety
    /// As [`RawCache::free`], for each.
    #[inline]
    pub unsafe fn free_bulk(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.core.free_bulk(objects) };
    }

    /// A private store of at least `n` objects: so many allocations from it cannot fail. `None` if
    /// memory is used up.
    pub fn prefill(&self, n: usize) -> Option<RawPrefilled<'_>> {
        RawPrefilled::new(self.core, n, Reclaim::Yes)
    }

    /// The same, but memory is not reclaimed for it: see [`RawCache::alloc_noreclaim`].
    pub fn prefill_noreclaim(&self, n: usize) -> Option<RawPrefilled<'_>> {
        RawPrefilled::new(self.core, n, Reclaim::No)
    }

    /// Empties all sheaves and gives all empty slabs back; says how many bytes of pages that were.
    ///
    /// The pages go back to the system as the page layer sees fit; see [`crate::release_memory`].
    pub fn shrink(&self) -> usize {
        self.core.cpu.drain_all();
        self.core.cpu.slabs().shrink()
    }

    /// Destroys the cache. Nobody may be using it on another thread.
    ///
    /// # Errors
    /// Gives the cache back, with what still lives in it, and nothing else changed.
    pub fn destroy(self) -> Result<(), (RawCache, Busy)> {
        let this = core::mem::ManuallyDrop::new(self);
        destroy(this.core).map_err(|busy| (core::mem::ManuallyDrop::into_inner(this), busy))
    }

    /// The cache's name.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Bytes that an object may use, at least the size that was asked for.
    pub fn usable_bytes(&self) -> usize {
        self.core.usable_bytes()
    }

    /// The cache behind the handle.
    pub fn core(&self) -> &'static Core {
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

/// Natural alignment of a raw object: the largest power of two that divides its size, 16 at most, 8
/// at least.
fn natural_align(size: usize) -> usize {
    if size.is_multiple_of(16) { 16 } else { 8 }
}

/// Destroys a cache that has no live objects.
pub(super) fn destroy(core: &'static Core) -> Result<(), Busy> {
    let mut registry = registry::lock();
    let live = {
        // A cache that grows may be draining this one: what it has in hand would seem to live.
        let _pause = adapt::pause();
        // SAFETY: the program promises that no thread uses the cache any more; the registry's lock
        // keeps passes and the background thread from it, and the pause caches that grow.
        unsafe { core.cpu.drain_unused() };
        core.live_objects()
    };
    if live > 0 {
        drop(registry);
        return Err(live_objects_of(core, live));
    }
    life::retire(core, &mut registry);
    Ok(())
}

/// Destroys caches and everything in them.
///
/// # Safety
/// No thread may use the caches or their objects any more.
pub(crate) unsafe fn destroy_whole(cores: impl Iterator<Item = &'static Core> + Clone) {
    let mut registry = registry::lock();
    {
        // A cache that grows may be draining one of these: what it has taken would come back to slabs
        // that are gone.
        let _pause = adapt::pause();
        // SAFETY: the caller's promise; the registry's lock and the pause keep the library's own threads
        // away.
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
    busy
}

/// Brings the figures of all caches up to date: exact if nobody allocates meanwhile.
pub fn account_all() {
    if start::is_ready() {
        // Keeps caches from being destroyed meanwhile.
        let _registry = registry::lock();
        registry::for_each(|core| core.cpu.account_all());
    }
}

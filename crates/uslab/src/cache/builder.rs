//! The options of a cache.

use super::error::CreateError;
use super::{Cache, RawCache};
use crate::os::numa::NumaPolicy;
use crate::slab::Constructor;
use core::mem::MaybeUninit;

/// Boolean options of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// Aligns objects to cache lines. Objects of at most half a line share a line in even
    /// fractions.
    pub const HWCACHE_ALIGN: Flags = Flags(1);
    /// Bypasses sheaves: every object comes from its slab and returns to it. Slow; misuse and
    /// statistics are exact.
    pub const NO_CACHING: Flags = Flags(2);
    /// Declares that the program will not touch the objects soon (receive buffers, for example).
    /// New slabs use cold pages, and leave warm ones to other caches.
    pub const COLD: Flags = Flags(4);
    /// Debugging, letter Z of `USLAB_DEBUG`: guard bytes around objects. Each of these flags makes
    /// every call of the cache slow, and its objects larger; see [`crate::debug`].
    pub const RED_ZONE: Flags = Flags(8);
    /// Debugging, letter P: patterns in free objects. Without effect in caches with a constructor.
    pub const POISON: Flags = Flags(16);
    /// Debugging, letter U: each object's last allocation and last free.
    pub const STORE_USER: Flags = Flags(32);
    /// Debugging, letter F: every free is checked at once.
    pub const CONSISTENCY_CHECKS: Flags = Flags(64);
    /// Debugging, letter T: a line for each allocation and free.
    pub const TRACE: Flags = Flags(128);

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets of flags.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Builds a cache from options. The `build` functions create the cache at once: they take the
/// registry's lock, allocate, and may make system calls.
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
    pub(super) is_run: bool,
    pub(super) tail_bytes: usize,
    pub(super) sheaf_capacity: usize,
    pub(super) numa: NumaPolicy,
    pub(super) constructor: Option<Constructor>,
    pub(super) is_debuggable: bool,
    pub(super) is_of_heap: bool,
}

impl<'a> CacheBuilder<'a> {
    /// Default options for a cache called `name`. Statistics and reports show its first 47 bytes.
    pub const fn new(name: &'a str) -> Self {
        CacheBuilder {
            name,
            align: 0,
            flags: Flags(0),
            min_objects: 0,
            min_order: 0,
            max_order: 0,
            is_run: false,
            tail_bytes: 0,
            sheaf_capacity: 0,
            numa: NumaPolicy::Local,
            constructor: None,
            is_debuggable: true,
            is_of_heap: false,
        }
    }

    /// Aligns objects to `bytes`, a power of two. 0, the default, is natural alignment: the type's,
    /// or, for raw caches, 16 for multiples of 16 bytes and 8 otherwise.
    pub const fn align(mut self, bytes: usize) -> Self {
        self.align = bytes;
        self
    }

    /// Sets flags, in addition to those already set.
    pub const fn flags(mut self, flags: Flags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }

    /// Sets [`Flags::HWCACHE_ALIGN`].
    pub const fn hwcache_align(self) -> Self {
        self.flags(Flags::HWCACHE_ALIGN)
    }

    /// Least number of objects in a slab, as far as `max_order` allows. 0 is the default:
    /// `4 · (log2(cpus) + 2)`, and at least 32.
    pub const fn min_objects(mut self, objects: usize) -> Self {
        self.min_objects = objects;
        self
    }

    /// Least order of a slab, which has at least `2^order` pages of 4 KiB. 0 is the default.
    pub const fn min_order(mut self, order: u32) -> Self {
        self.min_order = order;
        self
    }

    /// Each object is a run of whole pages by itself; see [`crate::slab::Geometry::run`].
    pub(crate) const fn runs(mut self) -> Self {
        self.is_run = true;
        self
    }

    /// Lets no object start in the last `bytes` bytes of a slab.
    pub(crate) const fn tail_bytes(mut self, bytes: usize) -> Self {
        self.tail_bytes = bytes;
        self
    }

    /// Leaves the cache out of debugging.
    pub(crate) const fn not_debuggable(mut self) -> Self {
        self.is_debuggable = false;
        self
    }

    /// Makes it a cache of a private heap: never debugged, and followed by the heap profile as the
    /// program's own caches are.
    pub(crate) const fn of_heap(mut self) -> Self {
        self.is_debuggable = false;
        self.is_of_heap = true;
        self
    }

    /// Highest order of a slab, which has at most `2^order` pages of 4 KiB unless one object needs
    /// more. At most 8; 0 is the default: 5, or 3 in a cache with a constructor or with debugging,
    /// whose slabs give no page back while an object is in use.
    pub const fn max_order(mut self, order: u32) -> Self {
        self.max_order = order;
        self
    }

    /// Fixes the sheaves' capacity at about `objects`. 0 is the default: the capacity adapts.
    pub const fn sheaf_capacity(mut self, objects: usize) -> Self {
        self.sheaf_capacity = objects;
        self
    }

    /// Takes the cache's memory from nodes as `policy` tells. [`NumaPolicy::Local`] is the default.
    ///
    /// The objects of a cache with another policy have no home among the CPUs: a CPU hands out what
    /// it freed, as on a machine of one node, and none of its calls is slower. Its slabs lie in
    /// chunks of 2 MiB that serve no other policy as long as they have memory, so each policy in
    /// use costs up to a chunk of addresses and its free pages. The library tells the kernel the
    /// policy of a chunk by one system call (`mbind`), with the page layer's lock held, before it
    /// touches the chunk, and another one when the chunk has no memory any more. If the kernel
    /// refuses after the cache was made, the memory comes as the process's own policy has it.
    ///
    /// Slots, sheaves and slab descriptors are the library's own memory, and follow no policy. On a
    /// machine of one node, and with `USLAB_NUMA=0`, a policy has no effect.
    ///
    /// ```
    /// use uslab::{CacheBuilder, NumaPolicy};
    /// let routes = CacheBuilder::new("route").numa(NumaPolicy::Interleave).build_raw(96).unwrap();
    /// # drop(routes);
    /// ```
    pub const fn numa(mut self, policy: NumaPolicy) -> Self {
        self.numa = policy;
        self
    }

    /// Calls `constructor` once for each object when its slab is created.
    ///
    /// # Safety
    /// The constructor must not unwind, and must not use the cache being built. It is called with
    /// fresh memory of the object's size, on any thread.
    #[doc(hidden)]
    pub const unsafe fn raw_constructor(mut self, constructor: Constructor) -> Self {
        self.constructor = Some(constructor);
        self
    }

    /// Creates a cache for objects of `size` bytes, at most 256 KiB.
    ///
    /// # Errors
    /// See [`CreateError`]. Takes the registry's lock; may make system calls.
    pub fn build_raw(self, size: usize) -> Result<RawCache, CreateError> {
        RawCache::create(&self, size)
    }

    /// Creates a cache for objects of type `T`.
    ///
    /// # Errors
    /// As [`CacheBuilder::build_raw`].
    pub fn build<T>(self) -> Result<Cache<T>, CreateError> {
        Cache::create(&self)
    }

    /// Creates a cache for objects of type `T`, each initialised once by `construct` when its slab
    /// is created. `construct` initialises the object and returns it, as [`MaybeUninit::write`]
    /// does; it may run on any thread, and must not use this cache. If it panics, or returns
    /// another object, the process ends. `T` must not need dropping: an object stays initialised
    /// between uses, and its slab's pages are freed without a destructor call.
    ///
    /// ```
    /// let tables = uslab::CacheBuilder::new("table").build_constructed(|table| table.write([7; 64]))?;
    /// let mut table = tables.constructed().unwrap();
    /// assert_eq!(table[63], 7);
    /// table[0] = 8; // the next user of this object finds 8
    /// # Ok::<(), uslab::CreateError>(())
    /// ```
    ///
    /// # Errors
    /// As [`CacheBuilder::build_raw`].
    pub fn build_constructed<T: Send>(
        self,
        construct: fn(&mut MaybeUninit<T>) -> &mut T,
    ) -> Result<Cache<T>, CreateError> {
        Cache::create_constructed(&self, construct)
    }
}

//! Every type and constant of `uslab.h`, as the library sees them.
//!
//! The tests compile this file too, by path, and have a C compiler compare it with the header: sizes, offsets, values. It must
//! therefore depend on nothing but `core`.
//!
//! Structures that callers fill in start with `type_size`, their size as the caller was compiled: see `versioned`.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// Objects start on cache lines of their own.
pub const USLAB_HWCACHE_ALIGN: c_uint = 0x1;
/// Every object comes from and goes to its slab.
pub const USLAB_NO_CACHING: c_uint = 0x2;
/// The objects' memory will not be touched soon.
pub const USLAB_COLD: c_uint = 0x4;
/// Debugging: bytes around objects that nobody may write to.
pub const USLAB_RED_ZONE: c_uint = 0x100;
/// Debugging: patterns in free objects.
pub const USLAB_POISON: c_uint = 0x200;
/// Debugging: who allocated and freed last.
pub const USLAB_STORE_USER: c_uint = 0x400;

/// Allocation: zeroes.
pub const USLAB_ZERO: c_uint = 0x1_0000;
/// Allocation: fail rather than take from shrinkers.
pub const USLAB_NORECLAIM: c_uint = 0x2_0000;

/// What a scan returns that can do nothing now.
pub const USLAB_SHRINK_STOP: usize = usize::MAX;
/// `seeks` of entries that cost nothing to make again.
pub const USLAB_SEEKS_NONE: c_uint = c_uint::MAX;

/// A pressure source: as the library thinks best.
pub const USLAB_SOURCE_AUTO: c_uint = 0;
/// A pressure source: watched where there is one.
pub const USLAB_SOURCE_ON: c_uint = 1;
/// A pressure source: not watched.
pub const USLAB_SOURCE_OFF: c_uint = 2;

/// `uslab_cache_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CacheOptions {
    pub type_size: usize,
    pub align: usize,
    pub flags: c_uint,
    pub ctor: Option<unsafe extern "C" fn(*mut c_void)>,
    pub min_objects: c_uint,
    pub min_order: c_uint,
    pub max_order: c_uint,
    pub sheaf_capacity: c_uint,
}

/// `uslab_shrink_control`.
#[repr(C)]
pub struct ShrinkControl {
    pub nr_to_scan: usize,
    pub priority: i32,
    pub flags: c_uint,
}

/// The callbacks of a shrinker.
pub type ShrinkCallback = unsafe extern "C" fn(*mut c_void, *const ShrinkControl) -> usize;

/// `uslab_shrinker_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ShrinkerOptions {
    pub type_size: usize,
    pub count: Option<ShrinkCallback>,
    pub scan: Option<ShrinkCallback>,
    pub context: *mut c_void,
    pub seeks: c_uint,
    pub batch: c_uint,
}

/// `uslab_pressure_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PressureOptions {
    pub type_size: usize,
    pub systemd: c_uint,
    pub psi: c_uint,
    pub cgroup: c_uint,
    pub log: c_uint,
}

/// `uslab_cache_stats`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CacheStats {
    pub type_size: usize,
    pub user_bytes: u64,
    pub object_bytes: u64,
    pub objects_per_slab: u64,
    pub slab_bytes: u64,
    pub sheaf_capacity: u64,
    pub slabs: u64,
    pub partial_slabs: u64,
    pub empty_slabs: u64,
    pub total_objects: u64,
    pub active_objects: u64,
    pub slab_free: u64,
    pub sheaf_free: u64,
    pub alloc_slow: u64,
    pub free_slow: u64,
    pub refills: u64,
    pub flushes: u64,
    pub drains: u64,
    pub grows: u64,
    pub shrinks: u64,
    pub failures: u64,
}

/// What visits caches: not zero ends the visit.
pub type CacheVisitor = unsafe extern "C" fn(*mut c_void, *const c_char, *const CacheStats) -> c_int;

/// `uslab_usage`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Usage {
    pub type_size: usize,
    pub used_bytes: u64,
    pub dirty_bytes: u64,
    pub allocated_bytes: u64,
    pub free_objects: u64,
    pub large_objects: u64,
    pub large_bytes: u64,
}

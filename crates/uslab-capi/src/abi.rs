//! Every type and constant of `uslab.h`, as the library uses them.
//!
//! The tests compile this file by path, and a C compiler compares its sizes, offsets and values
//! with the header. The file must therefore use nothing but `core`.
//!
//! Structures that the caller fills start with `type_size`, their size when the caller was
//! compiled: see `versioned`.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// Cache: objects are aligned to cache lines.
pub const USLAB_HWCACHE_ALIGN: c_uint = 0x1;
/// Cache: no sheaves, every call goes to the slab.
pub const USLAB_NO_CACHING: c_uint = 0x2;
/// Cache: objects stay untouched for a while.
pub const USLAB_COLD: c_uint = 0x4;
/// Debugging: guard bytes around objects.
pub const USLAB_RED_ZONE: c_uint = 0x100;
/// Debugging: patterns in free objects.
pub const USLAB_POISON: c_uint = 0x200;
/// Debugging: the last allocating and the last freeing call of an object.
pub const USLAB_STORE_USER: c_uint = 0x400;
/// Debugging: every free is checked at once.
pub const USLAB_CONSISTENCY_CHECKS: c_uint = 0x800;
/// Debugging: a line for each allocation and free.
pub const USLAB_TRACE: c_uint = 0x1000;

/// Memory policy: each CPU's own node.
pub const USLAB_NUMA_LOCAL: c_uint = 0;
/// Memory policy: one node alone.
pub const USLAB_NUMA_BIND: c_uint = 1;
/// Memory policy: all nodes in turn.
pub const USLAB_NUMA_INTERLEAVE: c_uint = 2;

/// Allocation: zero the memory.
pub const USLAB_ZERO: c_uint = 0x1_0000;
/// Allocation: fail rather than run shrinkers.
pub const USLAB_NORECLAIM: c_uint = 0x2_0000;

/// Huge pages where they cost little memory.
pub const USLAB_HUGE_PAGES_AUTO: c_uint = 0;
/// No huge pages.
pub const USLAB_HUGE_PAGES_NEVER: c_uint = 1;
/// Huge pages everywhere.
pub const USLAB_HUGE_PAGES_ALWAYS: c_uint = 2;

/// Result of a scan that can free nothing now.
pub const USLAB_SHRINK_STOP: usize = usize::MAX;
/// `seeks` of entries that cost nothing to make again; a pass takes half of them.
pub const USLAB_SEEKS_NONE: c_uint = c_uint::MAX;

/// Pressure source: the library decides.
pub const USLAB_SOURCE_AUTO: c_uint = 0;
/// Pressure source: watched, if it exists.
pub const USLAB_SOURCE_ON: c_uint = 1;
/// Pressure source: not watched.
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
    pub numa_policy: c_uint,
    pub numa_node: c_uint,
}

/// `uslab_shrink_control`.
#[repr(C)]
pub struct ShrinkControl {
    pub nr_to_scan: usize,
    pub priority: i32,
    pub flags: c_uint,
}

/// `count` or `scan` of a shrinker.
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

/// The callback of `uslab_visit_caches`; a result other than 0 ends the visit.
pub type CacheVisitor = unsafe extern "C" fn(*mut c_void, *const c_char, *const CacheStats) -> c_int;

/// `uslab_leaks`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Leaks {
    pub type_size: usize,
    pub objects: u64,
    pub bytes: u64,
    pub indirect_objects: u64,
    pub indirect_bytes: u64,
    pub suppressed_objects: u64,
    pub suppressed_bytes: u64,
    pub places: u64,
    pub misses_registers: u64,
}

/// The callback of `uslab_cache_visit`; a result other than 0 ends the visit.
pub type ObjectVisitor = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// `uslab_heap_stats`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HeapStats {
    pub type_size: usize,
    pub objects: u64,
    pub object_bytes: u64,
    pub slab_bytes: u64,
    pub large_objects: u64,
    pub large_bytes: u64,
}

/// The callback of `uslab_heap_visit`; a result other than 0 ends the visit.
pub type HeapVisitor = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;

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

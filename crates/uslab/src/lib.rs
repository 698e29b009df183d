//! The Linux slab allocator for user space: typed object caches with lock-free per-CPU fast paths, bulk allocation, and a
//! malloc on top of them.
//!
//! Start with [`Cache`] for objects of one type, [`CacheBuilder`] for options, [`RawCache`] for sizes known at run time.
#![no_std]
#![warn(missing_docs)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!(
    "uslab needs 64-bit Linux: restartable sequences, membarrier and futexes are its system calls"
);

#[cfg(any(feature = "std", test))]
extern crate std;

/// Sets the library up for the tests of a layer below the one that does it, which they may not name.
#[cfg(all(test, not(loom)))]
macro_rules! set_up {
    () => {
        assert!($crate::cache::start::ensure())
    };
}

#[cfg(not(loom))]
pub mod cache;
#[cfg(not(loom))]
pub mod malloc;
#[cfg(not(loom))]
pub mod os;
#[cfg(not(loom))]
pub mod pages;
#[cfg(not(loom))]
pub mod percpu;
#[cfg(not(loom))]
pub mod reclaim;
#[cfg(not(loom))]
pub mod rseq;
#[cfg(not(loom))]
pub mod slab;
#[cfg(not(loom))]
pub mod stats;
pub mod sync;

/// What the models run of the slabs (`tests/loom.rs`). The rest keeps its atomics in zeroed memory, where loom's, which must be
/// constructed, cannot stand.
#[cfg(loom)]
pub mod slab {
    pub mod words;
}

#[cfg(not(loom))]
pub use {
    cache::{
        Busy, Cache, CacheBox, CacheBuilder, ConstructedBox, CreateError, Flags, Prefilled, RawCache,
        RawPrefilled, mode, release_memory,
    },
    malloc::{Heap, Uslab},
    reclaim::{
        LimitError, RegisterError, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, reclaim,
        register_shrinker, set_limit,
    },
    rseq::Mode,
};

//! The Linux slab allocator for user space: typed object caches with lock-free per-CPU fast paths,
//! bulk allocation, and a malloc on top of them.
//!
//! ```text
//!   objects of one type or size    Cache, CacheBuilder, RawCache; Cache::local, Cache::prefill
//!   memory of any size             Uslab (the global allocator), malloc, Heap
//!   memory back under pressure     trim, set_limit, reclaim: shrinkers, LruCache, sources
//!   figures, profile, faults       stats, profile, debug
//! ```
//!
//! Start with [`Cache`] for objects of one type, [`CacheBuilder`] for options, [`RawCache`] for
//! sizes known at run time, and [`Uslab`] for a whole program. [`mod@reclaim`] has the caches that
//! shrink.
#![no_std]
#![warn(missing_docs)]
#![allow(rustdoc::private_intra_doc_links, reason = "items of `internal` name their neighbours")]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!(
    "uslab needs 64-bit Linux: restartable sequences, membarrier and futexes are its system calls"
);

#[cfg(any(feature = "std", test))]
extern crate std;

/// Sets the library up, for unit tests of the layers below `cache`, which must not name `cache`.
#[cfg(all(test, not(loom)))]
macro_rules! set_up {
    () => {
        assert!($crate::cache::start::ensure())
    };
}

#[cfg(not(loom))]
mod cache;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
pub mod debug;
#[cfg(not(loom))]
pub mod malloc;
#[cfg(not(loom))]
mod os;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod percpu;
#[cfg(not(loom))]
pub mod profile;
#[cfg(not(loom))]
pub mod reclaim;
#[cfg(not(loom))]
mod report;
#[cfg(not(loom))]
mod rseq;
#[cfg(not(loom))]
mod slab;
#[cfg(not(loom))]
pub mod stats;
mod sync;

/// The part of the slabs that the loom models run (`tests/loom.rs`). Loom's atomics must be
/// constructed, so they cannot stand in the zeroed memory of the other layers.
#[cfg(loom)]
mod slab {
    pub mod words;
}

#[cfg(all(not(loom), any(feature = "allocator-api2", feature = "allocator-api2-02")))]
pub use malloc::allocator::HeapAllocator;
#[cfg(not(loom))]
pub use {
    cache::{
        Boxes, Busy, Cache, CacheBox, CacheBuilder, ConstructedBox, CreateError, Flags, IntoBoxes, LocalBox,
        LocalCache, Prefilled, RawCache, RawLocal, RawPrefilled, mode, set_decay, set_huge_pages, trim,
    },
    malloc::{
        global::Uslab,
        heap::{Heap, HeapStats},
    },
    os::config::HugePages,
    os::numa::NumaPolicy,
    reclaim::{
        LimitError, RegisterError, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, reclaim,
        register_shrinker, set_limit,
    },
    rseq::Mode,
};

/// Items that other crates of this workspace, the C interfaces and the tests, use beyond the public
/// names. Not for programs; they change without notice.
#[doc(hidden)]
pub mod internal {
    /// The places at which tests hold sequences up, and the number of aborts.
    #[cfg(all(uslab_inject, not(loom), target_arch = "x86_64", not(target_env = "musl")))]
    pub use crate::rseq::{ABORTS, INJECT_TURNS};
    /// For the C interfaces and `libuslab_malloc.so`.
    #[cfg(not(loom))]
    pub use crate::{
        cache::account_all,
        counters::finish as finish_snapshot,
        debug::leaks::{at_exit as report_leaks_at_exit, is_alone_with_background},
        debug::regions::{Region, for_each_region},
        malloc::classes::{CLASSES, Class, MAX_SMALL_BYTES},
        os::{calls, errno, fault, file::process_id, report},
        pages::PAGE_BYTES,
        percpu::local::Window,
        profile::{start_from_environment as start_profile, write_at_exit as write_profile_at_exit},
        reclaim::sources::Sources,
        rseq::{Pushed, Slot, dummy_slots, lend, pop, pop_bulk, push_bulk, push_tested},
        slab::Constructor,
        stats::{finish_at_exit, report_at_exit as report_stats_at_exit},
    };
    /// The malloc family, with entries for callers that are known.
    #[cfg(not(loom))]
    pub mod entry {
        pub use crate::malloc::entry::*;
    }
    /// For the tests.
    #[cfg(not(loom))]
    pub use crate::{
        cache::{background, home_of, node_of_memory, policy_of_memory, rehearse_fork, start},
        counters::{header, layout, record, records},
        os::{
            clock::coarse_ms, cpu, invariant::switch_off as switch_checks_off, memory::page_bytes,
            numa::policy_at, sharing::count as groups, vdso,
        },
        pages::{
            CHUNK_BYTES, boot, has_free_memory, lock_for_fork as lock_pages,
            unlock_after_fork as unlock_pages,
        },
        percpu::adapt::bound_bytes,
        reclaim::{balance, sources},
        rseq::{MAX_CPUS, fake},
    };
    /// For the models.
    pub use crate::{slab::words, sync::atomic};
}

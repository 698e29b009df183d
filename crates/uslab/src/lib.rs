//! The Linux slab allocator for user space: typed object caches with lock-free per-CPU fast paths, bulk allocation, and a
//! malloc on top of them.
//!
//! Start with [`Cache`] for objects of one type, [`CacheBuilder`] for options, [`RawCache`] for sizes known at run time.
#![no_std]
#![warn(missing_docs)]

pub mod cache;
pub mod malloc;
pub mod os;
pub mod pages;
pub mod percpu;
pub mod rseq;
pub mod slab;
pub mod stats;
pub mod sync;

pub use cache::release_memory;
pub use cache::{
    Busy, Cache, CacheBox, CacheBuilder, ConstructedBox, CreateError, Flags, Prefilled, RawCache,
    RawPrefilled,
};
pub use malloc::{Heap, Uslab};
pub use rseq::{Mode, mode};

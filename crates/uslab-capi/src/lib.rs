//! `libuslab`: each function of `include/uslab.h`, and nothing else.
//!
//! ```text
//!   abi.rs        types and constants of the header      cache.rs     options, alloc, free, bulk
//!   versioned.rs  structures of other versions           sheaf.rs     prefilled sheaves
//!   handle.rs     the targets of opaque pointers         malloc.rs    the malloc family
//!   failure.rs    errno                                  heap.rs      private heaps
//!   text.rs       text in memory of uslab_malloc         shrinker.rs  shrinkers and reclaim
//!   lifecycle.rs  load and unload                        sources.rs   pressure sources
//!                                                        stats.rs     figures, JSON, slabinfo
//! ```
//!
//! A fast function is the library's inlined sequence and a tail call to a slow function. The slow
//! function handles flags other than 0, ended handles, and `errno`. It returns `EINVAL` for every
//! argument that it can recognise as wrong.
//!
//! No function here may use Rust's global allocator, or unwind: a panic that reaches the end of an
//! `extern "C"` function ends the process.

#![no_std]

mod abi;
mod cache;
mod debug;
mod failure;
mod guard;
mod handle;
mod heap;
mod leaks;
mod lifecycle;
mod malloc;
mod profile;
mod sheaf;
mod shrinker;
mod sources;
mod stats;
mod text;
mod versioned;

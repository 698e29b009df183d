//! The C interface of uslab: each function of `include/uslab.h`, and nothing else.
//!
//! ```text
//!   abi.rs        types and constants of the header          cache.rs      caches: options, alloc, free, bulk
//!   versioned.rs  structures of older and newer callers      sheaf.rs      prefilled sheaves
//!   handle.rs     what opaque pointers point to              malloc.rs     the malloc family
//!   failure.rs    errno                                      heap.rs       private heaps
//!   text.rs       text in memory of uslab_malloc             shrinker.rs   shrinkers and reclaim
//!   lifecycle.rs  load and unload                            sources.rs    pressure sources
//!                                                            stats.rs      figures, JSON, slabinfo
//! ```
//!
//! The fast functions are the sequence of the library, inlined, and a tail call to a slow function that does everything else: looks at
//! flags that are not 0, at handles that are no more, at `errno`. What a slow function can recognise as wrong is `EINVAL`.
//!
//! No function here may use Rust's own allocator, or unwind: all are `extern "C"`, at whose end a panic ends the process.
#![no_std]

mod abi;
mod cache;
mod failure;
mod handle;
mod heap;
mod lifecycle;
mod malloc;
mod sheaf;
mod shrinker;
mod sources;
mod stats;
mod text;
mod versioned;

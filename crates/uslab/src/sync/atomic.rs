//! The atomics facade: loom's types under `--cfg loom`, `core`'s in every other build.
//!
//! Only code that a loom model runs uses these types (the slab words). Loom's types must be
//! constructed, so they cannot stand in zeroed or static memory. Models of other code restate its
//! protocol (`tests/loom.rs`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI32, AtomicU64, Ordering};

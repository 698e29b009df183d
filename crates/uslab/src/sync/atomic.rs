//! The atomics facade: `core`'s in every build but the models', loom's under `--cfg loom`.
//!
//! Only code that a loom model runs takes its atomics from here (the slab words); the rest lives in zeroed or
//! static memory, where loom's types, which must be constructed, cannot stand, and is modelled by protocol instead
//! (`tests/loom.rs`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI32, AtomicU64, Ordering};

//! Caches for the program that evict their coldest entries when memory is needed.
//!
//! ```text
//!   LruCache   16 shards behind a mutex each ─┐
//!   Shared     any cache, behind a mutex      ├─ EvictColdest, EvictLock ─▶ evict() ─▶ dropped unlocked
//!   Locked     any cache, behind any lock     ┘
//!   adaptors   the caches of other crates: two functions each
//! ```
//!
//! `evict.rs` is the mechanism, `cache.rs` and `shard.rs` are [`LruCache`], `shared.rs` wraps other
//! caches, and `adaptors/` names those of other crates.

pub mod adaptors;
mod cache;
mod dropping;
mod evict;
mod shard;
mod shared;

pub use cache::{LruCache, LruStats};

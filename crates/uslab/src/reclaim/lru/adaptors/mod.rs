//! Adaptors that make caches of other crates shrinkers: the program keeps the crate's own type.
//!
//! ```text
//!   lru::LruCache ──────────┐
//!   schnellru::LruMap ──────┼── EvictColdest ──▶ Shared (a mutex), or any lock that can be tried ──▶ Shrinker
//!   the program's own cache ┘
//! ```
//!
//! Each adaptor has a feature with the crate's name: `lru`, `schnellru`. A program writes the same
//! two functions for a cache of its own. Adaptors exist only for caches that evict in their own
//! order without waiting for a lock. `docs/guide/caches-that-shrink.md` lists well-known crates
//! that cannot do that, and the reasons.
//!
//! An adaptor never removes arbitrary entries, and never waits for a lock, which the reclaiming
//! thread may hold.

#[cfg(feature = "lru")]
mod lru;
#[cfg(feature = "schnellru")]
mod schnellru;

pub use super::evict::{EvictColdest, EvictLock};
pub use super::shared::{Locked, Shared};

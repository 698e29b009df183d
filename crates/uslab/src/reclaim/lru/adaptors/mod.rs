//! Caches that programs already use, as shrinkers: the program keeps the crate's own type.
//!
//! ```text
//!   lru::LruCache ──────────┐
//!   schnellru::LruMap ──────┼── EvictColdest ──▶ Shared (a mutex), or any lock that can be tried ──▶ Shrinker
//!   the program's own cache ┘
//! ```
//!
//! Each crate's adaptor is behind a feature of the crate's name: `lru`, `schnellru`. They are
//! examples of what a program writes for its own cache: two functions. Only caches that evict in
//! their own order without waiting for a lock are here. `docs/guide/caches-that-shrink.md` says
//! which well-known crates cannot do that, and why.
//!
//! Must never: remove arbitrary entries and call it eviction; wait for a lock, which the reclaiming
//! thread might hold itself.

#[cfg(feature = "lru")]
mod lru;
#[cfg(feature = "schnellru")]
mod schnellru;

pub use super::evict::{EvictColdest, EvictLock};
pub use super::shared::{Locked, Shared};

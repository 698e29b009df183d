//! Caches that programs already use, as shrinkers: the crate's own type stays what the program works with.
//!
//! ```text
//!   lru::LruCache ────────┐
//!   schnellru::LruMap ────┼── EvictColdest ──▶ Shared (a mutex), or any lock that can be tried ──▶ Shrinker
//!   a cache of one's own ─┘
//! ```
//!
//! Each crate's is behind a feature of the crate's name: `lru`, `schnellru`. The rest is always there, for caches of the program's own.
//! Here stands only what evicts in the cache's own order without waiting for a lock: `docs/guide/caches-that-shrink.md` says which
//! well-known crates cannot do that, and why.
//!
//! Must never: remove arbitrary entries and call it eviction; wait for a lock, which the reclaiming thread might hold itself.

#[cfg(feature = "lru")]
mod lru;
#[cfg(feature = "schnellru")]
mod schnellru;
mod shared;

pub use shared::{EvictColdest, EvictLock, Locked, Shared};

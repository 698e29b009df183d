//! Caches: the objects of one type, served from per-CPU sheaves in front of slabs.
//!
//! ```text
//!  Cache<T>  typed, safe where it can be: CacheBox<T> owns an object; works as a `static`
//!     │
//!  RawCache  by size and alignment, chosen at run time
//!     │ both keep the address of the slots: the fast path is one load away from its sequence
//!     ▼
//!  core      CpuCache ─▶ Slabs ─▶ pages;   registry: id ─▶ core
//! ```
//!
//! Slow paths are `extern "C"`, which cannot unwind: the functions that fall through to them stay
//! free of landing pads, and C callers get tail calls.
//!
//! Constructed state: a cache with a constructor runs it once per object when its slab is made.
//! The freeing thread leaves it constructed, and the allocating thread finds it so (Bonwick 1994,
//! `kmem_cache_create`). Zeroing and a constructor exclude each other.

mod alloc;
pub mod background;
mod body;
mod builder;
mod fork;
pub(crate) mod hooks;
mod life;
mod looks;
mod prefilled;
mod raw;
pub mod registry;
pub mod start;
mod state;
#[cfg(test)]
mod tests;
mod trim;
mod typed;

pub use body::Core;
pub use builder::{CacheBuilder, Flags};
pub(crate) use life::publish_shared;
pub(crate) use looks::{Looks, TICK_MS};
pub use prefilled::{Prefilled, RawPrefilled};
pub(crate) use raw::destroy_whole;
pub use raw::{Busy, CreateError, RawCache, account_all};
pub use start::mode;
pub use trim::{release_memory, trim};
pub(crate) use trim::{trim_all, trim_idle, trim_some};
pub use typed::{Cache, CacheBox, ConstructedBox};

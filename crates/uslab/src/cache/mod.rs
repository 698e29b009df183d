//! Caches: the objects of one type, served from per-CPU sheaves in front of slabs.
//!
//! ```text
//!  Cache<T>  typed, safe where it can be: CacheBox<T> owns an object; works as a `static`
//!     │
//!  RawCache  by size and alignment, chosen at run time
//!     │ both keep the address of the slots, so the fast path is one load from its sequence
//!     ▼
//!  core      CpuCache ─▶ Slabs ─▶ pages;   registry: id ─▶ core
//! ```
//!
//! Slow paths are `extern "C"`, which cannot unwind. So their callers need no landing pads, and
//! calls from C become tail calls.
//!
//! Constructed state: a cache with a constructor runs it once for each object, when the object's
//! slab is created. The caller that frees an object must leave it constructed, and the next caller
//! finds it so (Bonwick 1994, `kmem_cache_create`). A cache with a constructor refuses to zero
//! objects.

mod alloc;
mod alone;
pub mod background;
mod body;
mod boxes;
mod builder;
mod class;
mod counted;
pub(crate) mod debugged;
mod error;
mod followed;
mod fork;
mod free;
pub(crate) mod gdb;
pub(crate) mod hooks;
mod late;
mod life;
mod live;
mod local;
mod prefilled;
mod profiled;
mod publish;
mod raw;
pub(crate) mod registry;
mod requests;
pub mod start;
mod state;
mod switch;
#[cfg(test)]
mod tests;
mod ticks;
mod trim;
mod typed;
mod validate;

pub use body::Core;
pub use boxes::{Boxes, IntoBoxes};
pub use builder::{CacheBuilder, Flags};
pub(crate) use class::{class_core, class_geometry};
pub(crate) use counted::drain_counted;
pub use error::{Busy, CreateError};
pub use fork::rehearse as rehearse_fork;
pub(crate) use life::publish_shared;
pub use live::{home_of, node_of_memory, policy_of_memory};
pub use local::{LocalBox, LocalCache, RawLocal};
pub use prefilled::{Prefilled, RawPrefilled};
pub(crate) use profiled::{Counter, begin_counting, end_counting};
pub(crate) use publish::publish;
pub(crate) use raw::destroy_whole;
pub(crate) use raw::with_accounts;
pub use raw::{RawCache, account_all};
pub(crate) use requests::{
    Profiler, install_profiler, pending_check as request_check, serve as serve_request,
};
pub use start::mode;
pub use switch::SwitchError;
pub(crate) use switch::switch;
pub(crate) use ticks::{TICK_MS, Ticks};
pub use trim::{set_decay, set_huge_pages, trim};
pub(crate) use trim::{trim_all, trim_idle, trim_some};
pub use typed::{Cache, CacheBox, ConstructedBox};
pub use validate::Summary;
pub(crate) use validate::{check_objects, validate};

//! Reclaim: the caches of a program give memory back in proportion, when it is asked for.
//!
//! A program's caches (parsed objects, rows, sessions, answers) are as large as somebody once guessed. Here each registers a
//! [`Shrinker`]: how many entries could go, and what one costs to make again. [`reclaim`] then takes from all of them, the same part
//! of each, weighted by that cost, until enough memory has gone back to the system. The mechanism is Linux's of 2002; [`balance`]
//! has the formula and what was mended in it.
//!
//! ```text
//!   reclaim(bytes) ─▶ what is free already: empty slabs, free pages
//!                  ─▶ priority 12: every shrinker, its share ─▶ sheaves, empty slabs, pages
//!                  ─▶ priority 11: twice the share …  0: everything                             until the bytes are there
//! ```
//!
//! Callbacks run on the thread that reclaims, without a lock of ours, one at a time for each shrinker, several shrinkers at once where
//! several threads reclaim. They may allocate and free: reclaim does not re-enter itself.
//!
//! Must never: hold a lock in a callback; wait for a callback, except to unregister it; run in a signal handler.

#[doc(hidden)]
pub mod balance;
mod budget;
#[cfg(feature = "std")]
mod lru;
mod pass;
mod reaper;
mod registry;
mod shrinker;
#[doc(hidden)]
pub mod sources;

pub(crate) use budget::short;
pub use budget::{LimitError, set_limit};
#[cfg(feature = "std")]
pub use lru::{LruCache, LruStats, adaptors};
pub use pass::reclaim;
pub(crate) use reaper::want_thread;
pub use reaper::{is_running as has_reaper, watch_pressure};
pub use shrinker::{
    RegisterError, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker,
};
pub use sources::Choice as PressureChoice;

/// Before a fork.
pub(crate) fn before_fork() {
    registry::note_forker();
}

/// After a fork; true in the child, in which no other thread is.
pub(crate) fn after_fork(child: bool) {
    if child {
        registry::reset_in_child();
        pass::reset_in_child();
        reaper::reset_in_child();
    }
}

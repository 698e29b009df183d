//! Reclaim: the caches of a program give memory back in proportion, when it is asked for.
//!
//! A program's caches (parsed objects, rows, sessions, answers) are as large as its author once
//! guessed. Here each registers a [`Shrinker`]: how many entries could go, and what one costs to
//! make again. [`reclaim`] then takes from all of them, the same part of each, weighted by that
//! cost, until enough memory has gone back to the system. The mechanism is Linux's of 2002;
//! [`balance`] has the formula and what was mended in it.
//!
//! ```text
//!   reclaim(bytes)         ─┐                     free pages, empty slabs,
//!   allocation at a limit  ─┼─▶ goal ─▶ ladder ─▶ entries at priority 12 … 0,
//!   pressure, soft limit   ─┘                     busy sheaves: until the goal is met
//! ```
//!
//! Callbacks run on the thread that reclaims, without a lock of this library, one at a time for
//! each shrinker, several shrinkers at once where several threads reclaim. They may allocate and
//! free: reclaim does not re-enter itself.
//!
//! The first shrinker, limit or choice of sources installs this layer's hooks; until then the core
//! does not know it.
//!
//! Must never: hold a lock in a callback; wait for a callback, except to unregister it; run in a
//! signal handler.

#[doc(hidden)]
pub mod balance;
mod budget;
mod callbacks;
mod ladder;
mod listener;
#[cfg(feature = "std")]
mod lru;
mod pass;
mod registry;
mod shrinker;
#[doc(hidden)]
pub mod sources;

use crate::cache::hooks::{self, Hooks};
use crate::cache::start;
use crate::malloc;

pub use crate::cache::background::is_running as has_reaper;
pub use budget::{LimitError, set_limit};
pub use callbacks::ShrinkControl;
pub use listener::watch_pressure;
#[cfg(feature = "std")]
pub use lru::{LruCache, LruStats, adaptors};
pub use pass::reclaim;
pub use shrinker::{RegisterError, Registration, Scan, Shrinker, ShrinkerOptions, register_shrinker};
pub use sources::Choice as PressureChoice;

/// What the core calls in this layer and, for forks, in `malloc`.
static HOOKS: Hooks = Hooks {
    before_fork: || {
        malloc::lock_for_fork();
        registry::note_forker();
    },
    after_fork: |child| {
        if child {
            registry::reset_in_child();
            listener::reset_in_child();
        }
        malloc::unlock_after_fork(child);
    },
    short: budget::short,
    beyond_soft: listener::keep_soft,
    listen: Some(listener::listen),
};

/// Has the core call this layer, from now on. Called by whatever gives it something to reclaim: the
/// first shrinker, limit or choice of sources.
fn install() {
    hooks::install(&HOOKS);
}

/// Sets the library up, as the shared libraries do when they are loaded, and has pressure heard if
/// `USLAB_PRESSURE` says of what kind. A program of Rust needs no such call: its first shrinker has
/// pressure heard.
#[doc(hidden)]
pub fn start() {
    if start::ensure() && start::pressure_is_named() {
        install();
    }
}

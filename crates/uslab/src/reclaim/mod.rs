//! Reclaim: when memory is needed, the program's caches give entries up in proportion.
//!
//! A program's caches (parsed objects, rows, sessions, answers) usually have a size that their
//! author once guessed. Here each cache registers a [`Shrinker`]: how many entries could go, and
//! how much an entry costs to make again. [`reclaim`] then takes the same part of each cache,
//! weighted by that cost, until enough memory has gone back to the system. The mechanism is that of
//! Linux since 2002; [`balance`] has the formula and its corrections.
//!
//! ```text
//!   reclaim(bytes)         ─┐                     free pages, empty slabs,
//!   allocation at a limit  ─┼─▶ goal ─▶ ladder ─▶ entries at priority 12 … 0,
//!   pressure, soft limit   ─┘                     busy sheaves: until the goal is met
//! ```
//!
//! Callbacks run on the thread that reclaims, without a lock of this library. Each shrinker runs
//! one callback at a time; if several threads reclaim, several shrinkers run at once. Callbacks may
//! allocate and free, because reclaim does not re-enter itself.
//!
//! The first shrinker, limit or choice of sources installs this layer's hooks. Until then the core
//! calls it only to set a limit for another process (`uslab limit`).
//!
//! This layer never holds a lock in a callback, and never runs in a signal handler. It waits for a
//! callback that runs on another thread in two cases: to unregister the shrinker, and for at most
//! 250 ms before an allocation fails.

#[doc(hidden)]
pub mod balance;
mod budget;
mod callbacks;
mod events;
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
use crate::cache::{background, start};
use crate::counters::Changer;
use crate::malloc;

pub use crate::cache::background::is_running as has_reaper;
pub use budget::{LimitError, set_limit};
pub use callbacks::ShrinkControl;
pub use listener::watch_pressure;
#[cfg(feature = "std")]
pub use lru::{LruCache, LruStats, adaptors};
pub use pass::reclaim;
pub(crate) use registry::for_each_registration;
pub use shrinker::{RegisterError, Registration, Scan, Shrinker, ShrinkerOptions, register_shrinker};
pub use sources::Choice as PressureChoice;

/// The functions of this layer and, for forks, of `malloc` that the core calls.
static HOOKS: Hooks = Hooks {
    note_fork: registry::note_forker,
    in_child: |was_alone| {
        if was_alone {
            registry::keep_in_child()
        } else {
            registry::reset_in_child()
        }
        listener::reset_in_child();
        (malloc::HOOKS.in_child)(was_alone);
    },
    short: budget::short,
    beyond_soft: listener::keep_soft,
    listen: Some(listener::listen),
    set_limit: set_limit_from_outside,
    ..malloc::HOOKS
};

/// The hooks of a shared library until its program uses this layer: another process may set limits.
static LOADED: Hooks = Hooks { set_limit: set_limit_from_outside, ..malloc::HOOKS };

fn set_limit_from_outside(soft_bytes: usize, hard_bytes: usize) -> Result<(), &'static str> {
    budget::set_limit_as(soft_bytes, hard_bytes, Changer::Request).map_err(LimitError::reason)
}

/// Installs the hooks, so that the core calls this layer. The first shrinker, limit or choice of
/// sources calls it.
fn install() {
    hooks::install(&HOOKS);
}

/// Does what the shared libraries do when they are loaded: reads the environment and the system,
/// lets other processes set limits (`uslab limit`), keeps those of `USLAB_LIMIT`, and watches
/// pressure if `USLAB_PRESSURE` names a source. A Rust program does not need this call: its first
/// shrinker or limit does the same.
#[doc(hidden)]
pub fn start() {
    start::know();
    hooks::install_first(&LOADED);
    if (start::pressure_is_named() || start::limit_is_named()) && start::ensure() {
        install();
        if listener::watches_from_start() {
            background::need();
        }
    }
}

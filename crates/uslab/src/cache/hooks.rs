//! Hooks: the core's calls into the layers above it, through one table of functions.
//!
//! ```text
//!   core ── HOOKS ──▶ null                 the core flushes, shrinks, purges and retries alone
//!                  ──▶ malloc's table      from the first heap or check on: locks for fork
//!                  ──▶ reclaim's table     from the first shrinker, limit or source on: all hooks
//! ```
//!
//! The first use of a layer installs its table; a program that uses no layer pays for none. The
//! table of a higher layer replaces that of a lower one, and includes its functions.
//!
//! The pointer changes under a lock that a fork holds from beginning to end. So the hooks after a
//! fork are the same as before it. The sampler, which malloc's hooks for forks read, changes under
//! the same lock.

use super::ticks::Ticks;
use super::trim;
use crate::os::invariant::Checked;
use crate::os::{self, Lock};
use crate::sync::Rank;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

/// Functions of the layers above. The core calls them without a lock, except in a fork and where a
/// cache ends.
pub(crate) struct Hooks {
    /// Takes the locks of the layers above. Fork calls it after it took the barns' locks and before
    /// it takes the slab lists'.
    pub before_fork: fn(),
    /// Undoes `before_fork`; the argument is true in the child.
    pub after_fork: fn(bool),
    /// Called before each fork, also one that takes no locks.
    pub note_fork: fn(),
    /// Called in each child, before `after_fork` if that is called. The argument is true if no
    /// other thread of the parent worked.
    pub in_child: fn(bool),
    /// Called if there are no pages for this many bytes. Frees some, bit by bit, until the attempt
    /// succeeds; returns false if it never did. May call back into the program.
    pub short: fn(usize, &mut dyn FnMut() -> bool) -> bool,
    /// Called if held memory exceeds the soft limit and no background thread runs.
    pub beyond_soft: fn(),
    /// Takes the background thread over, until it must end; `None` if it has nothing to listen for.
    pub listen: Option<fn(Ticks)>,
    /// Checks the structures of the layers above.
    pub check: fn() -> Checked,
    /// Checks debugged objects of the layers above; reports and counts those that the program
    /// overwrote.
    pub check_objects: fn() -> usize,
    /// Sets the soft and the hard limit, in bytes; the error is the reason for a refusal.
    pub set_limit: fn(usize, usize) -> Result<(), &'static str>,
}

impl Hooks {
    /// The hooks of the core without layers above.
    pub const ALONE: Hooks = Hooks {
        before_fork: || {},
        after_fork: |_| {},
        note_fork: || {},
        in_child: |_| {},
        short: trim::short,
        beyond_soft: trim::keep_soft,
        listen: None,
        check: || Ok(()),
        check_objects: || 0,
        set_limit: |_, _| {
            Err("the program was linked without limits: it sets none, and uses no part of uslab::reclaim")
        },
    };
}

static ALONE: Hooks = Hooks::ALONE;

static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(ptr::null_mut());
static CHANGING: Lock<()> = Lock::new(Rank::Init, ());

/// The installed table, or the core's own.
pub(crate) fn get() -> &'static Hooks {
    // SAFETY: null, or a table that lives for ever.
    unsafe { HOOKS.load(Acquire).as_ref() }.unwrap_or(&ALONE)
}

/// Installs `table` in place of any other one. The caller must hold no lock.
pub(crate) fn install(table: &'static Hooks) {
    if !ptr::eq(get(), table) {
        store(table, |_| true);
        // The background thread checks whether the new table takes it over.
        os::sleep::wake();
    }
}

/// Installs `table` if there is none. The caller must hold no lock.
pub(crate) fn install_first(table: &'static Hooks) {
    if HOOKS.load(Acquire).is_null() {
        store(table, <*mut Hooks>::is_null);
    }
}

/// Calls `change` while no fork is between its handlers. The caller must hold no lock, and `change`
/// must take none.
pub(crate) fn between_forks(change: impl FnOnce()) {
    let _errno = os::errno::Preserved::new();
    let _changing = CHANGING.lock();
    change();
}

#[cold]
fn store(table: &'static Hooks, replaces: impl FnOnce(*mut Hooks) -> bool) {
    between_forks(|| {
        if replaces(HOOKS.load(Acquire)) {
            HOOKS.store(ptr::from_ref(table).cast_mut(), Release);
        }
    });
}

pub(super) fn lock_for_fork() {
    CHANGING.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { CHANGING.reset_in_child() } else { CHANGING.release_after_fork() }
}

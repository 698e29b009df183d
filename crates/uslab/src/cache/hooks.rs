//! Calls upwards: what the core needs of the layers above it, which it does not know.
//!
//! ```text
//!   core ── HOOKS ──▶ null                 the core flushes, shrinks, purges and retries alone
//!                  ──▶ malloc's table      the first heap or check: locks for fork
//!                  ──▶ reclaim's table     the first shrinker, limit or choice of sources: all
//! ```
//!
//! The first user of a layer installs its table; a program that uses none pays for none. A higher
//! table includes what the lower one does, and replaces it.
//!
//! The pointer changes under a lock that a fork holds from beginning to end: so the hooks after a
//! fork are those of before it.

use super::looks::Looks;
use super::trim;
use crate::os::{self, Lock};
use crate::sync::Rank;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

/// Functions of the layers above. None is called with a lock held, but for fork's.
pub(crate) struct Hooks {
    /// Takes the locks of the layers above, between the barns' and the slab lists'.
    pub before_fork: fn(),
    /// Undoes it; true in the child.
    pub after_fork: fn(bool),
    /// There are no pages for so many bytes: frees some, bit by bit, until the attempt succeeds;
    /// false if it never did. May call back into the program.
    pub short: fn(usize, &mut dyn FnMut() -> bool) -> bool,
    /// Memory is beyond the soft limit and no background thread runs.
    pub beyond_soft: fn(),
    /// Takes the background thread over; `None` where it has nothing to listen for.
    pub listen: Option<fn(Looks) -> !>,
}

impl Hooks {
    /// What the core does alone.
    pub const ALONE: Hooks = Hooks {
        before_fork: || {},
        after_fork: |_| {},
        short: trim::short,
        beyond_soft: || {},
        listen: None,
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

/// Installs `table`, whatever was there. The caller must hold no lock.
pub(crate) fn install(table: &'static Hooks) {
    if !ptr::eq(get(), table) {
        store(table, |_| true);
        // The background thread looks whether it is to be taken over.
        os::sleep::wake();
    }
}

/// Installs `table` if there is none. The caller must hold no lock.
pub(crate) fn install_first(table: &'static Hooks) {
    if HOOKS.load(Acquire).is_null() {
        store(table, <*mut Hooks>::is_null);
    }
}

#[cold]
fn store(table: &'static Hooks, replaces: impl FnOnce(*mut Hooks) -> bool) {
    let _errno = os::errno::Preserved::new();
    let _changing = CHANGING.lock();
    if replaces(HOOKS.load(Acquire)) {
        HOOKS.store(ptr::from_ref(table).cast_mut(), Release);
    }
}

pub(super) fn lock_for_fork() {
    CHANGING.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { CHANGING.reset_in_child() } else { CHANGING.release_after_fork() }
}

//! The results of start-up: [`super::start`] writes them once, and the whole layer reads them.

use crate::os::Lock;
use crate::os::config::AtExit;
use crate::sync::Rank;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

pub(super) const NEW: u8 = 0;
pub(super) const KNOWN: u8 = 1;
pub(super) const READY: u8 = 2;

pub(super) static STATE: AtomicU8 = AtomicU8::new(NEW);
pub(super) static INIT: Lock<()> = Lock::new(Rank::Init, ());
pub(super) static CPUS: AtomicUsize = AtomicUsize::new(0);
pub(super) static NODES: AtomicUsize = AtomicUsize::new(0);

/// The number of slots of a cache, after start-up: one for each possible CPU, but at most
/// [`crate::rseq::MAX_CPUS`]. With more CPUs, or an unknown number, the process runs in locked mode
/// and its CPUs share slots.
pub fn cpus() -> usize {
    CPUS.load(Relaxed)
}

/// The number of nodes that are homes of objects, after start-up: the highest node with CPUs, plus
/// one.
pub fn nodes() -> usize {
    NODES.load(Relaxed)
}

/// The number of groups of CPUs, at least one for each node, after start-up: see
/// [`crate::os::sharing`].
pub fn groups() -> usize {
    crate::os::sharing::count()
}

/// Whether the library is set up. Does not set it up.
pub fn is_ready() -> bool {
    STATE.load(Acquire) == READY
}

/// The environment's settings for the background thread. Start-up reads them, not that thread,
/// which opens no file unless the program asks it to watch pressure. A program that closes all
/// descriptors, or expects certain numbers, would take a descriptor that comes and goes for its
/// own.
pub(super) static REAPER_FORBIDDEN: AtomicBool = AtomicBool::new(false);
pub(super) static PRESSURE_NAMED: AtomicBool = AtomicBool::new(false);

/// Whether `USLAB_GUARD` asks for guard pages, and whether for every allocation.
pub(super) static GUARD_NAMED: AtomicBool = AtomicBool::new(false);
pub(super) static GUARD_ALL: AtomicBool = AtomicBool::new(false);

/// Whether `USLAB_PROFILE` asks for a heap profile.
pub(super) static PROFILE_NAMED: AtomicBool = AtomicBool::new(false);

/// The limits that the environment or the program's string asks for, in bytes; 0 for none.
pub(super) static SOFT_BYTES: AtomicUsize = AtomicUsize::new(0);
pub(super) static HARD_BYTES: AtomicUsize = AtomicUsize::new(0);
pub(super) static REPORTS_AT_EXIT: AtomicBool = AtomicBool::new(false);

/// Whether `USLAB_LIMIT` asks for limits.
pub(crate) fn limit_is_named() -> bool {
    SOFT_BYTES.load(Relaxed) != 0 || HARD_BYTES.load(Relaxed) != 0
}

/// Whether `USLAB_STATS` asks for a report at exit.
pub(crate) fn reports_at_exit() -> bool {
    REPORTS_AT_EXIT.load(Relaxed)
}

/// Whether `USLAB_GUARD` asks for guard pages.
pub(crate) fn guard_is_named() -> bool {
    GUARD_NAMED.load(Relaxed)
}

/// Whether `USLAB_PROFILE` asks for a heap profile.
pub(crate) fn profile_is_named() -> bool {
    PROFILE_NAMED.load(Relaxed)
}

/// Whether `USLAB_GUARD` asks for guard pages around every allocation.
pub(crate) fn guards_all() -> bool {
    GUARD_ALL.load(Relaxed)
}

/// The effect of leaks at exit, as `USLAB_LEAKS` tells; 0 if they are not searched for.
pub(super) static LEAKS: AtomicU8 = AtomicU8::new(0);

/// Whether `USLAB_LEAKS` asks for a search at exit, and whether the process then ends with another
/// status.
pub(crate) fn leaks_at_exit() -> Option<AtExit> {
    [AtExit::Report, AtExit::Fail].into_iter().find(|effect| *effect as u8 == LEAKS.load(Relaxed))
}

/// Whether `USLAB_REAPER=0`.
pub(crate) fn reaper_is_forbidden() -> bool {
    REAPER_FORBIDDEN.load(Relaxed)
}

/// Whether `USLAB_PRESSURE` names a source.
pub(crate) fn pressure_is_named() -> bool {
    PRESSURE_NAMED.load(Relaxed)
}

pub(super) fn lock_for_fork() {
    INIT.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { INIT.reset_in_child() } else { INIT.release_after_fork() }
}

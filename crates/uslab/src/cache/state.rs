//! What start-up found out: written once by [`super::start`], read by the whole layer.

use crate::os::Lock;
use crate::sync::Rank;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

pub(super) const NEW: u8 = 0;
pub(super) const READY: u8 = 1;
pub(super) const FAILED: u8 = 2;

pub(super) static STATE: AtomicU8 = AtomicU8::new(NEW);
pub(super) static INIT: Lock<()> = Lock::new(Rank::Init, ());
pub(super) static CPUS: AtomicUsize = AtomicUsize::new(0);
pub(super) static NODES: AtomicUsize = AtomicUsize::new(0);

/// Slots that a cache has, after start-up: one for each possible CPU, but at most
/// [`crate::rseq::MAX_CPUS`]. Where there are more CPUs, or an unknown number, the process runs
/// locked and its CPUs share slots.
pub fn cpus() -> usize {
    CPUS.load(Relaxed)
}

/// Nodes, after start-up.
pub fn nodes() -> usize {
    NODES.load(Relaxed)
}

/// Whether the library is set up, without setting it up.
pub fn is_ready() -> bool {
    STATE.load(Acquire) == READY
}

/// What the environment says of the background thread. It is read at start-up, not by that thread,
/// which opens no file unless the program wants pressure watched: a descriptor that comes and goes
/// behind a program's back is taken for its own, where that closes all or fills in certain numbers.
pub(super) static REAPER_FORBIDDEN: AtomicBool = AtomicBool::new(false);
pub(super) static PRESSURE_NAMED: AtomicBool = AtomicBool::new(false);

/// Whether `USLAB_REAPER=0`.
pub(crate) fn reaper_is_forbidden() -> bool {
    REAPER_FORBIDDEN.load(Relaxed)
}

/// Whether `USLAB_PRESSURE` says anything.
pub(crate) fn pressure_is_named() -> bool {
    PRESSURE_NAMED.load(Relaxed)
}

pub(super) fn lock_for_fork() {
    INIT.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { INIT.reset_in_child() } else { INIT.release_after_fork() }
}

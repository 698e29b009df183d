//! How the background thread sleeps: for a while, or until somebody uses memory again.
//!
//! ```text
//!   AWAKE ──nap──▶ NAPPING ──time──▶ AWAKE
//!                          ──wake──▶ CALLED ──▶ AWAKE
//!   AWAKE ──rest──▶ RESTING ──note_activity, wake──▶ CALLED ──▶ AWAKE       no timer: an idle process costs nothing at all
//!   AWAKE ──wake──▶ CALLED: the next sleep ends at once
//! ```
//!
//! One word, and one thread that sleeps on it. [`note_activity`] stands in slow paths: a load and a branch.

use super::Futex;
use super::process::THREADS;
use crate::sync::Park;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};

const AWAKE: u32 = 0;
const NAPPING: u32 = 1;
const RESTING: u32 = 2;
const CALLED: u32 = 3;

/// The word, and whether there is a background thread at all, are forgotten in a fork child.
static STATE: &AtomicU32 = &THREADS.doze;

/// Says that there is a background thread, from now on.
pub fn begin() {
    THREADS.is_tended.store(true, Relaxed);
}

/// Whether there is a background thread, to which work can be left.
#[inline]
pub fn is_tended() -> bool {
    THREADS.is_tended.load(Relaxed)
}

/// Sleeps for `ms` milliseconds, or until [`wake`], which may have come before.
pub fn nap(ms: u64) {
    if STATE.compare_exchange(AWAKE, NAPPING, SeqCst, Relaxed).is_ok() {
        Futex::wait_for(STATE, NAPPING, ms);
    }
    STATE.store(AWAKE, SeqCst);
}

/// Sleeps until [`note_activity`] or [`wake`], unless there has been some: `still_quiet` looks again, after it is known to all that the
/// sleeper wants to be told.
pub fn rest(still_quiet: impl FnOnce() -> bool) {
    if STATE.compare_exchange(AWAKE, RESTING, SeqCst, Relaxed).is_ok() {
        fence(SeqCst);
        if still_quiet() {
            while STATE.load(Relaxed) == RESTING {
                Futex::wait(STATE, RESTING);
            }
        }
    }
    STATE.store(AWAKE, SeqCst);
}

/// Sleeps for `ms` milliseconds: for any thread, and nobody can end it.
pub fn pause(ms: u64) {
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    Futex::wait_for(&NOBODY, 0, ms);
}

/// Somebody used memory in a way that leaves more or less of it free. May be called under locks and from anywhere.
#[inline]
pub fn note_activity() {
    if STATE.load(Relaxed) == RESTING {
        wake();
    }
}

/// Ends the sleep now, or the next one before it begins.
#[cold]
pub fn wake() {
    if matches!(STATE.swap(CALLED, SeqCst), NAPPING | RESTING) {
        Futex::wake_all(STATE);
    }
}

/// In a fork child: the sleeper is not here.
pub fn reset_in_child() {
    STATE.store(AWAKE, Relaxed);
    THREADS.is_tended.store(false, Relaxed);
}

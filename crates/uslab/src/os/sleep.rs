//! How the background thread sleeps: for a while, or until the program uses memory again.
//!
//! ```text
//!   AWAKE ──for_ms──▶ TIMED ──time──▶ AWAKE
//!                           ──wake──▶ CALLED ──▶ AWAKE
//!   AWAKE ──until_activity──▶ IDLE ──note_activity, wake──▶ CALLED ──▶ AWAKE     no timer, unless
//!                                  ──request──▶ AWAKE                            it publishes
//!   AWAKE ──wake──▶ CALLED: the next sleep ends at once
//! ```
//!
//! One word, and one thread that sleeps on it. An idle process has no timer and costs nothing. Only
//! where other processes may write a request does the thread poll for one, twice a second.
//! [`note_activity`] stands in slow paths: a load and a branch.

use super::background::{self, rest};
use super::process::THREADS;
use super::{Futex, membarrier};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};

const AWAKE: u32 = 0;
const TIMED: u32 = 1;
const IDLE: u32 = 2;
const CALLED: u32 = 3;

/// The word, and whether there is a background thread at all, are forgotten in a fork child.
static STATE: &AtomicU32 = &THREADS.sleep;

/// Records that there is a background thread from now on.
pub fn begin() {
    background::begin();
    THREADS.has_background_thread.store(true, Relaxed);
}

/// Whether there is a background thread, to which work can be left.
#[inline]
pub fn has_background_thread() -> bool {
    THREADS.has_background_thread.load(Relaxed)
}

/// Sleeps for `ms` milliseconds, or until [`wake`], which may have come before. Does not sleep once
/// the process's first thread has ended: its end wakes this thread only once, and that wake may
/// have ended an earlier sleep.
pub fn for_ms(ms: u64) {
    let must_end = THREADS.first_has_ended.load(SeqCst);
    if !must_end && STATE.compare_exchange(AWAKE, TIMED, SeqCst, Relaxed).is_ok() {
        rest(|| Futex::wait_for(STATE, TIMED, ms));
    }
    awake();
}

/// Ends a sleep. The exchange reads the word that it overwrites: if that is CALLED, this thread
/// sees from then on all that the caller of [`wake`] wrote before. A store would not read it.
fn awake() {
    STATE.swap(AWAKE, SeqCst);
}

/// Time between two polls for a request.
const POLL_MS: u64 = 500;

/// Sleeps until [`note_activity`] or [`wake`]. Calls `still_idle` after the state is IDLE, and
/// returns at once if that returns false. A thread of the program changes memory and then reads the
/// state, without a barrier between the two. The barrier here makes the change visible to
/// `still_idle` if that thread read the old state, so no activity is missed. Calls `is_asked`, if
/// there is one, twice a second, and returns once that returns true.
pub fn until_activity(still_idle: impl FnOnce() -> bool, is_asked: Option<fn() -> bool>) {
    if STATE.compare_exchange(AWAKE, IDLE, SeqCst, Relaxed).is_ok() {
        fence(SeqCst);
        // Refused, as in locked mode, it leaves a window as long as a store buffer takes to empty.
        let _: bool = membarrier::restart_all();
        if still_idle() {
            while STATE.load(Relaxed) == IDLE && !is_asked.is_some_and(|is_asked| is_asked()) {
                match is_asked {
                    None => rest(|| Futex::sleep(STATE, IDLE)),
                    Some(_) => rest(|| Futex::wait_for(STATE, IDLE, POLL_MS)),
                }
            }
        }
    }
    awake();
}

/// Sleeps for `ms` milliseconds, on any thread; no call ends it early.
pub fn pause(ms: u64) {
    pause_us(ms * 1000);
}

/// As [`pause`], for `us` microseconds.
pub fn pause_us(us: u64) {
    static NEVER_WOKEN: AtomicU32 = AtomicU32::new(0);
    Futex::wait_for_us(&NEVER_WOKEN, 0, us);
}

/// Records that the program changed how much memory is free. To be called after the change: the
/// thread that this wakes looks only once. May be called under locks and from anywhere.
#[inline]
pub fn note_activity() {
    if STATE.load(Relaxed) == IDLE {
        wake();
    }
}

/// Ends the sleep now, or the next one before it begins.
#[cold]
pub fn wake() {
    if matches!(STATE.swap(CALLED, SeqCst), TIMED | IDLE) {
        Futex::wake_all(STATE);
    }
}

/// Records that there is no background thread any more.
pub fn end() {
    THREADS.has_background_thread.store(false, Relaxed);
}

/// In a fork child: the thread that slept is not here.
pub fn reset_in_child() {
    STATE.store(AWAKE, Relaxed);
    THREADS.has_background_thread.store(false, Relaxed);
    background::reset_in_child();
}

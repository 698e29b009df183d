//! How a fork keeps the background thread from changing anything.
//!
//! ```text
//!   thread   rests := true ─▶ sleeps ─▶ rests := false ─▶ holders 0? ─no─▶ rests on
//!   fork     holders + 1 ─▶ rests? ─yes─▶ copies the memory ─▶ holders - 1, wakes
//! ```
//!
//! All four accesses are sequentially consistent: either the thread sees the fork, or the fork sees
//! that the thread does not rest.

use super::process::THREADS;
use super::{calls, thread};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Records that the calling thread is the background thread.
pub(super) fn begin() {
    THREADS.background_id.store(thread::own_id(), Relaxed);
}

/// Whether the calling thread is the background thread.
pub(super) fn is_background_thread() -> bool {
    THREADS.has_background_thread.load(Relaxed) && THREADS.background_id.load(Relaxed) == thread::own_id()
}

/// Runs `sleep` on the background thread: a system call that sleeps, and no more. The thread
/// changes nothing of the library meanwhile, and a fork may keep it so beyond the end of the
/// sleep.
pub(super) fn rest<T>(sleep: impl FnOnce() -> T) -> T {
    THREADS.rests.store(true, SeqCst);
    let result = sleep();
    loop {
        THREADS.rests.store(false, SeqCst);
        let holders = THREADS.holders.load(SeqCst);
        if holders == 0 {
            return result;
        }
        THREADS.rests.store(true, SeqCst);
        calls::futex_wait(&THREADS.holders, holders, None);
    }
}

/// Keeps the background thread at [`rest`] until [`release`]; `is_there` tells whether there is
/// one. False, with nothing changed, if it works and goes on for 50 ms.
pub fn hold(is_there: bool) -> bool {
    const TRIES: u32 = 50;
    const TRY_US: u64 = 1000;
    let holders = THREADS.holders.fetch_add(1, SeqCst) + 1;
    for _ in 0..TRIES {
        if !is_there || THREADS.rests.load(SeqCst) {
            return true;
        }
        calls::futex_wait(&THREADS.holders, holders, Some(TRY_US));
    }
    release();
    false
}

/// Undoes [`hold`]. In a fork child, where there are no holders, it does nothing.
pub fn release() {
    let _ = THREADS.holders.fetch_update(SeqCst, SeqCst, |holders| holders.checked_sub(1));
    calls::futex_wake(&THREADS.holders, i32::MAX);
}

/// In a fork child: the thread is not here.
pub(super) fn reset_in_child() {
    THREADS.rests.store(false, Relaxed);
    THREADS.holders.store(0, Relaxed);
}

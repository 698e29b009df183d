//! The background thread, as locks and forks see it: which thread it is, and when it rests.

use super::process::THREADS;
use super::thread;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Records that the calling thread is the background thread.
pub(super) fn begin() {
    THREADS.background_id.store(thread::own_id(), Relaxed);
}

/// Whether the calling thread is the background thread.
pub(super) fn is_background_thread() -> bool {
    THREADS.has_background_thread.load(Relaxed) && THREADS.background_id.load(Relaxed) == thread::own_id()
}

/// Runs `sleep` on the background thread: a system call that sleeps, and no more. The thread holds
/// no lock, and changes nothing of the library meanwhile. A fork may keep it so beyond the end of
/// the sleep.
pub(super) fn rest<T>(sleep: impl FnOnce() -> T) -> T {
    THREADS.rest.rest(sleep)
}

/// Runs `sleep` on the background thread, which waits for the lock of `word`. It may hold other
/// locks.
pub(super) fn wait_for_lock(word: &AtomicU32, sleep: impl FnOnce()) {
    // SAFETY: the library's locks live for ever; this one at least as long as the wait, and a fork
    // uses the word only while the thread waits.
    let word: &'static AtomicU32 = unsafe { core::mem::transmute::<&AtomicU32, &'static AtomicU32>(word) };
    THREADS.rest.wait_for_lock(word, sleep);
}

/// Keeps the background thread at rest until [`release`]; `is_there` tells whether there is one.
/// False, with nothing changed, if the background thread does not come to rest within 50 ms. The
/// caller is the only other thread.
pub fn hold(is_there: bool) -> bool {
    if is_there {
        return THREADS.rest.hold();
    }
    THREADS.rest.hold_none();
    true
}

/// Undoes [`hold`]. In a fork child, where there are no holders, it does nothing.
pub fn release() {
    THREADS.rest.release();
}

/// In a fork child: the thread is not here.
pub(super) fn reset_in_child() {
    THREADS.rest.reset();
}

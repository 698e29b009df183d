//! Fork handlers, and the one lock of the C library that they take.

use super::weak;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Registers the three fork handlers. False if the C library has no memory for them.
///
/// May call `malloc`, which may be this library's: the caller must hold no lock that an allocation
/// takes.
pub fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> bool {
    // SAFETY: the handlers live as long as the process: the object pins itself (`os::pin`).
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

/// Locks the C library's list of open streams until [`unlock_streams`].
///
/// glibc's `fork` takes that lock after the prepare handlers. A thread that holds it may wait for a
/// stream (`fflush(NULL)`), and the stream's holder may be inside `malloc` (`getline`). So this
/// lock must be taken before any lock that makes `malloc` wait. It is recursive.
pub fn lock_streams() {
    weak::lock_streams();
}

/// Undoes [`lock_streams`].
///
/// # Safety
/// The calling thread must have called [`lock_streams`]; `child` must be true in a fork child and
/// nowhere else. glibc resets the lock itself in the child of a threaded process, and leaves it as
/// it is in others.
pub unsafe fn unlock_streams(child: bool) {
    // SAFETY: the caller's promise. A fork child has one thread.
    unsafe { if child { weak::reset_streams() } else { weak::unlock_streams() } }
}

/// Whether this process is the child of a fork with other threads.
static HAS_LOST_THREADS: AtomicBool = AtomicBool::new(false);

/// Notes, in the child of a fork, that the parent had other threads.
pub fn note_threads_lost() {
    HAS_LOST_THREADS.store(true, Relaxed);
}

/// Whether threads of the parent may have had objects in flight that this process lost: its slabs
/// may have objects that are neither free nor live.
pub fn has_lost_threads() -> bool {
    HAS_LOST_THREADS.load(Relaxed)
}

/// Whether `check` returns true in a fork child; for tests. The check may use this library only:
/// other threads of the parent may have left any other lock taken.
#[cfg(test)]
pub fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `check`, under the rule above, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!check())) };
    }
    let mut status = -1;
    let waited = super::calls::wait_for(child, &mut status, 0);
    waited == child && status == 0
}

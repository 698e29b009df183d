//! Fork handlers, and the one lock of the C library that they take.

use super::weak;

/// Registers the three handlers; false if the C library has no memory for them.
///
/// May call `malloc`, which is us: the caller must be able to serve it.
pub fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> bool {
    // The `libc` crate declares the arguments as unsafe functions; ours are safe to call at any time.
    // SAFETY: the handlers live as long as the process: the object pins itself (`os::pin`).
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

/// Keeps other threads out of the C library's list of streams until [`unlock_streams`].
///
/// glibc's `fork` takes that list's lock after the prepare handlers. A thread that holds it may
/// wait for a stream (`fflush(NULL)`), whose holder may be inside `malloc` (`getline`). So the list
/// must be locked before anything that makes `malloc` wait. The lock is recursive.
pub fn lock_streams() {
    weak::lock_streams();
}

/// Undoes [`lock_streams`].
///
/// # Safety
/// The thread must have called it; `child` must be true in a fork child and nowhere else. glibc
/// resets the lock itself in the child of a threaded process, and leaves it as it is in others.
pub unsafe fn unlock_streams(child: bool) {
    // SAFETY: the caller's promise. A fork child has one thread.
    unsafe { if child { weak::reset_streams() } else { weak::unlock_streams() } }
}

/// Whether `check` holds in a fork child, in which it may use this library and nothing else: other threads of the parent may have left locked what they had locked. For
/// tests.
#[cfg(test)]
pub fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child does what is said above, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!check())) };
    }
    let mut status = -1;
    // SAFETY: `status` is a valid place.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    waited == child && status == 0
}

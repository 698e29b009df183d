//! Fork handlers, and the one lock of the C library that they take.

use super::weak;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A fork handler.
type Handler = extern "C" fn();

/// Registers the three fork handlers, for the life of the process. False if the C library has no
/// memory for them.
///
/// glibc's `pthread_atfork` names the object that calls it. When the object's destructors run, at
/// the exit of the process, glibc forgets its handlers, even those of a fork that another thread
/// has begun: `prepare` has taken the locks, and `parent` would never release them. So this names
/// no object.
///
/// May call `malloc`, which may be this library's: the caller must hold no lock that an allocation
/// takes.
pub fn register(prepare: Handler, parent: Handler, child: Handler) -> bool {
    // SAFETY: the handlers live as long as the process: the object pins itself (`os::pin`).
    unsafe { register_for_no_object(prepare, parent, child) == 0 }
}

/// [`register`]; returns an error number, or 0.
///
/// # Safety
/// The handlers must live as long as the process.
#[cfg(target_env = "gnu")]
unsafe fn register_for_no_object(prepare: Handler, parent: Handler, child: Handler) -> c_int {
    unsafe extern "C" {
        /// What `pthread_atfork` calls, part of the interface between glibc and objects.
        fn __register_atfork(
            prepare: Option<Handler>,
            parent: Option<Handler>,
            child: Option<Handler>,
            object: *mut core::ffi::c_void,
        ) -> c_int;
    }
    // SAFETY: the caller's promise; no object is named by NULL.
    unsafe { __register_atfork(Some(prepare), Some(parent), Some(child), core::ptr::null_mut()) }
}

/// As above: musl forgets no handlers.
///
/// # Safety
/// As above.
#[cfg(not(target_env = "gnu"))]
unsafe fn register_for_no_object(prepare: Handler, parent: Handler, child: Handler) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) }
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

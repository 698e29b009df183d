//! The end of the process's first thread, which may come before that of the process.
//!
//! The C library ends a process with its last thread: a program, or a child that a thread forked,
//! may leave its work to other threads and end the first one by `pthread_exit`. A thread of this
//! library would keep such a process alive for ever. So the background thread ends once the first
//! thread has ended. The C library then ends the process with the program's last thread, as it
//! would without the library.
//!
//! A key of thread-specific data reports that end: its destructor runs when the thread ends, and
//! not when the process exits. [`watch`] never allocates as long as the program has few keys.
//!
//! The background thread may still be the last one to end. The C library then runs the program's
//! exit handlers on it. So it takes over the first thread's blocked signals: see
//! [`take_over_signals`].
//!
//! Limit: if another thread loads the library, or makes a raw `fork` system call in the parent, the
//! library watches the first thread only if that thread starts the background thread.

use super::process::{self, Relation, THREADS};
use super::{file, signal, sleep, thread};
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The key and one; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// The signals that the first thread blocked when it ended.
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// Watches for the end of the calling thread, which matters if it is the process's first one.
/// Called when the library is loaded, before another thread can call it.
pub fn watch() {
    if KEY.load(Relaxed) == 0 {
        let mut key: libc::pthread_key_t = 0;
        // SAFETY: the place for the key is valid, and the destructor stays mapped: see `os::pin`.
        if unsafe { libc::pthread_key_create(&mut key, Some(ended)) } != 0 {
            return;
        }
        KEY.store(key + 1, Relaxed);
    }
    // The destructor runs for values that are not null.
    let value = ptr::from_ref(&KEY).cast();
    // SAFETY: the key was made above, and is never deleted. Without memory nothing is watched.
    unsafe { libc::pthread_setspecific(KEY.load(Relaxed) - 1, value) };
}

/// [`watch`], if the calling thread is the process's first one. A system call; may be repeated.
pub fn watch_if_first() {
    if is_first() {
        watch();
    }
}

/// Whether the calling thread is the process's first one.
fn is_first() -> bool {
    thread::id() == file::process_id()
}

/// In a fork child the calling thread is the first one.
pub fn reset_in_child() {
    THREADS.first_has_ended.store(false, SeqCst);
    watch();
}

/// Whether the first thread has ended.
pub fn has_ended() -> bool {
    THREADS.first_has_ended.load(SeqCst)
}

/// If the first thread has ended, blocks the signals that it blocked, and no others. A library
/// thread must call this last: it may be the process's last thread, whose exit handlers may need
/// signals.
///
/// The program's handlers may run on the calling thread from now on, but not for a signal that the
/// first thread blocked: a program that waits for signals on one thread (`sigwait`) blocks them in
/// each thread, since a signal that any thread leaves unblocked could end the process.
pub fn take_over_signals() {
    if has_ended() {
        signal::restore(BLOCKED.load(Relaxed));
    }
}

/// The end of a watched thread.
///
/// # Safety
/// The C library must call it, as a key's destructor.
unsafe extern "C" fn ended(_: *mut c_void) {
    if is_first() && process::relation() != Relation::Sharing {
        BLOCKED.store(signal::blocked(), Relaxed);
        THREADS.first_has_ended.store(true, SeqCst);
        sleep::wake();
    }
}

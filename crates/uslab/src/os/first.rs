//! The end of the process's first thread, which may come before that of the process.
//!
//! The C library ends a process with its last thread: a program may leave its work to other threads
//! and end the first one by `pthread_exit`. So may a child that a thread forked. A thread of this
//! library would keep such a process for ever. So the background thread ends once the first thread
//! has ended, and the C library finds the last thread of the program as it would without it.
//!
//! A key of thread-specific data tells of that end: its destructor runs when the thread ends, and
//! not when the process exits. [`watch`] never allocates as long as the program has few keys.

use super::process::{self, Relation, THREADS};
use super::{file, sleep, thread};
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// The key and one; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Watches for the end of the calling thread, which matters if it is the process's first one.
/// Called when the library is loaded.
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

/// In a fork child the calling thread is the first one.
pub fn reset_in_child() {
    THREADS.first_has_ended.store(false, SeqCst);
    watch();
}

/// Whether the first thread has ended.
pub fn has_ended() -> bool {
    THREADS.first_has_ended.load(SeqCst)
}

/// The end of a watched thread.
///
/// # Safety
/// The C library must call it, as a key's destructor.
unsafe extern "C" fn ended(_: *mut c_void) {
    if thread::id() == file::process_id() && process::relation() != Relation::Sharing {
        THREADS.first_has_ended.store(true, SeqCst);
        sleep::wake();
    }
}

//! A function that a thread calls at its end: a destructor of thread-specific data.

use core::ffi::c_void;
use core::ptr::without_provenance_mut;
use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

type Function = extern "C" fn(*mut c_void);

/// The key plus 1; 0 before it is made.
static KEY: AtomicU64 = AtomicU64::new(0);

/// Has the calling thread call `function` at its end; false if the process has no more keys. All
/// calls must name the same function. With musl this takes no memory, and once a call has returned
/// true it is safe in signal handlers.
pub fn expect(function: Function) -> bool {
    let Some(key) = key(function) else { return false };
    // SAFETY: the key exists, and any value but NULL will do.
    unsafe { libc::pthread_setspecific(key, without_provenance_mut::<c_void>(1)) == 0 }
}

fn key(function: Function) -> Option<libc::pthread_key_t> {
    let known = KEY.load(Acquire);
    if known != 0 {
        return Some((known - 1) as libc::pthread_key_t);
    }
    let mut key = 0;
    // SAFETY: a place for a key, and a function that any thread may call.
    if unsafe { libc::pthread_key_create(&mut key, Some(function as unsafe extern "C" fn(*mut c_void))) } != 0
    {
        return None;
    }
    match KEY.compare_exchange(0, u64::from(key) + 1, AcqRel, Acquire) {
        Ok(_) => Some(key),
        Err(others) => {
            // SAFETY: just made, and no thread has a value for it.
            unsafe { libc::pthread_key_delete(key) };
            Some((others - 1) as libc::pthread_key_t)
        }
    }
}

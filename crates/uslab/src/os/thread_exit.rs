//! A function that a thread calls at its end: a destructor of thread-specific data.

use core::ffi::c_void;
use core::ptr::without_provenance_mut;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

static KEY: AtomicU32 = AtomicU32::new(0);

/// Makes the key for `function`; false if the process has no more keys. Must be called once.
pub fn begin(function: unsafe extern "C" fn(*mut c_void)) -> bool {
    let mut key = 0;
    // SAFETY: a place for a key, and a function that any thread may call.
    let is_made = unsafe { libc::pthread_key_create(&mut key, Some(function)) == 0 };
    KEY.store(key, Relaxed);
    is_made
}

/// Has the calling thread call the function at its end. With musl this stores a pointer in the
/// thread's block, and is safe in signal handlers.
pub fn expect() {
    // SAFETY: the key exists, and any value but NULL will do.
    unsafe { libc::pthread_setspecific(KEY.load(Relaxed), without_provenance_mut::<c_void>(1)) };
}

//! `errno`, and the values that say that a call failed.

use core::ffi::c_int;
use core::ptr;
use uslab::internal::errno;

/// Sets `errno` and is null.
#[cold]
pub fn null<T>(error: c_int) -> *mut T {
    errno::set(error);
    ptr::null_mut()
}

/// Sets `errno` and is the error, for functions that return 0 or an error.
#[cold]
pub fn code(error: c_int) -> c_int {
    errno::set(error);
    error
}

/// Sets `errno` and is false.
#[cold]
pub fn no(error: c_int) -> bool {
    errno::set(error);
    false
}

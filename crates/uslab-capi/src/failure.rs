//! Results of failed calls: each function sets `errno` and returns the value for its type.

use core::ffi::c_int;
use core::ptr;
use uslab::internal::errno;

/// Sets `errno` and returns null.
#[cold]
pub fn null<T>(error: c_int) -> *mut T {
    errno::set(error);
    ptr::null_mut()
}

/// Sets `errno` and returns the error number, for functions that return 0 on success.
#[cold]
pub fn code(error: c_int) -> c_int {
    errno::set(error);
    error
}

/// Sets `errno` and returns false.
#[cold]
pub fn no(error: c_int) -> bool {
    errno::set(error);
    false
}

//! Debugging of running caches.

use crate::failure;
use core::ffi::{CStr, c_char, c_int};
use uslab::debug::{self, SwitchError};

/// # Safety
/// `selection` must be a string, or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_debug(selection: *const c_char) -> c_int {
    if selection.is_null() {
        return failure::code(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let selection = unsafe { CStr::from_ptr(selection) };
    let Ok(selection) = selection.to_str() else { return failure::code(libc::EINVAL) };
    match debug::switch(selection) {
        Ok(_) => 0,
        Err(SwitchError::NoSuchCache) => failure::code(libc::ENOENT),
        Err(SwitchError::FromStart) => failure::code(libc::EBUSY),
        Err(SwitchError::NoBarrier) => failure::code(libc::EPERM),
        Err(SwitchError::OutOfMemory) => failure::code(libc::ENOMEM),
        Err(_) => failure::code(libc::EINVAL),
    }
}

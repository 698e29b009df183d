//! The heap profile.

use crate::failure;
use core::ffi::c_int;
use uslab::profile::{self, ProfileError};

#[unsafe(no_mangle)]
extern "C" fn uslab_profile_start(period_bytes: usize) -> c_int {
    code(profile::start(period_bytes))
}

#[unsafe(no_mangle)]
extern "C" fn uslab_profile_stop() {
    profile::stop();
}

#[unsafe(no_mangle)]
extern "C" fn uslab_profile_write(fd: c_int) -> c_int {
    // SAFETY: the caller of the C function names a descriptor that it may write to.
    code(unsafe { profile::write_to(fd) })
}

fn code(result: Result<(), ProfileError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(ProfileError::OutOfMemory) => failure::code(libc::ENOMEM),
        Err(ProfileError::Write(number)) => failure::code(number),
        Err(_) => failure::code(libc::ENODATA),
    }
}

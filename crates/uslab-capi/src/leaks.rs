//! The search for leaked objects.

use crate::abi::Leaks;
use crate::{failure, versioned};
use core::ffi::c_int;
use uslab::debug::{self, SearchError};

/// # Safety
/// `out` must be null or as many bytes as its `type_size` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_find_leaks(out: *mut Leaks) -> c_int {
    let mut leaks = Leaks {
        type_size: 0,
        objects: 0,
        bytes: 0,
        indirect_objects: 0,
        indirect_bytes: 0,
        suppressed_objects: 0,
        suppressed_bytes: 0,
        places: 0,
        misses_registers: 0,
    };
    // The structure is checked before anything is reported.
    // SAFETY: the caller's promise.
    if let Err(error) = unsafe { fill(out, &leaks) } {
        return failure::code(error);
    }
    let found = match debug::find_leaks() {
        Ok(found) => found,
        Err(error) => return failure::code(number(error)),
    };
    leaks.objects = found.objects as u64;
    leaks.bytes = found.bytes as u64;
    leaks.indirect_objects = found.indirect_objects as u64;
    leaks.indirect_bytes = found.indirect_bytes as u64;
    leaks.suppressed_objects = found.suppressed_objects as u64;
    leaks.suppressed_bytes = found.suppressed_bytes as u64;
    leaks.places = found.places as u64;
    leaks.misses_registers = found.misses_registers.into();
    // SAFETY: the caller's promise.
    match unsafe { fill(out, &leaks) } {
        Ok(()) => 0,
        Err(error) => failure::code(error),
    }
}

/// Fills the caller's structure, if there is one.
///
/// # Safety
/// As [`uslab_find_leaks`].
unsafe fn fill(out: *mut Leaks, leaks: &Leaks) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    if out.is_null() { Ok(()) } else { unsafe { versioned::write(out, leaks) } }
}

fn number(error: SearchError) -> c_int {
    match error {
        SearchError::NotTracked => libc::ENODATA,
        SearchError::OutOfMemory => libc::ENOMEM,
        SearchError::NoProc => libc::EACCES,
        _ => libc::EAGAIN,
    }
}

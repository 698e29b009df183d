//! Structures that grow, exchanged with callers that were compiled with an older or a newer header.
//!
//! The first word of each structure is the caller's `sizeof`. Fields that an older caller lacks
//! count as 0, the default. Fields that only a newer caller has must be 0, since this library does
//! not know them.

use core::ffi::c_int;

/// Upper bound on a structure's size. The caller of a larger `type_size` has not initialised it,
/// and gets an error.
const MAX_BYTES: usize = 4096;

/// Reads the caller's structure into this library's version of it.
///
/// # Errors
/// EINVAL: a null or misaligned pointer, an impossible size, or an unknown field that is not 0.
///
/// # Safety
/// `given` must be null or point to as many bytes as its first word says. `T` must start with a
/// `usize`, be `repr(C)`, and be valid as zeroes.
pub unsafe fn read<T: Copy>(given: *const T) -> Result<T, c_int> {
    // SAFETY: the caller's promise; every structure has a first word.
    let bytes = unsafe { caller_bytes(given) }?;
    let known = bytes.min(size_of::<T>());
    // SAFETY: `bytes` bytes are the caller's, of which `known` fit `T`; the rest of `T` is valid as
    // zeroes.
    unsafe {
        let tail = core::slice::from_raw_parts(given.cast::<u8>().add(known), bytes - known);
        if tail.iter().any(|&byte| byte != 0) {
            return Err(libc::EINVAL);
        }
        let mut value = core::mem::MaybeUninit::<T>::zeroed();
        core::ptr::copy_nonoverlapping(given.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known);
        Ok(value.assume_init())
    }
}

/// Fills the caller's structure, except its size. An older caller gets the fields that it has; the
/// additional fields of a newer caller are zeroed.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// As [`read`], and the bytes must be writable.
pub unsafe fn write<T: Copy>(given: *mut T, value: &T) -> Result<(), c_int> {
    // SAFETY: as in `read`.
    let bytes = unsafe { caller_bytes(given) }?;
    let known = bytes.min(size_of::<T>());
    let head = size_of::<usize>();
    // SAFETY: `bytes` bytes are the caller's, at least a word; `known` of them are in `value` too.
    unsafe {
        let (from, to) = ((&raw const *value).cast::<u8>(), given.cast::<u8>());
        core::ptr::copy_nonoverlapping(from.add(head), to.add(head), known - head);
        to.add(known).write_bytes(0, bytes - known);
    }
    Ok(())
}

/// # Safety
/// As [`read`].
unsafe fn caller_bytes<T>(given: *const T) -> Result<usize, c_int> {
    if given.is_null() || !given.is_aligned() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { given.cast::<usize>().read() };
    if (size_of::<usize>()..=MAX_BYTES).contains(&bytes) { Ok(bytes) } else { Err(libc::EINVAL) }
}

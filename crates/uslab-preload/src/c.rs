//! The C functions: `malloc`, `free` and the rest of the family, with the errors of C23 and POSIX.

use crate::caller::Unknown;
use core::ffi::{c_int, c_void};
use core::ptr;
use uslab::internal::entry as malloc;

fn fail(errno: c_int) -> *mut c_void {
    uslab::internal::errno::set(errno);
    ptr::null_mut()
}

/// C23 7.24.3.6.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    malloc::malloc_for::<Unknown>(size).cast()
}

/// C23 7.24.3.2.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    malloc::calloc_for::<Unknown>(count, size).cast()
}

/// C23 7.24.3.3.
///
/// # Safety
/// As in the standard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    // SAFETY: the caller's promise is that of the standard.
    unsafe { malloc::free_as::<{ malloc::MALLOC }>(pointer.cast()) }
}

/// C23 7.24.3.7. Size 0 is as in the C library, which programs expect: glibc frees and returns
/// null; for musl it is a size like any other.
///
/// # Safety
/// As in the standard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe {
        if cfg!(target_env = "gnu") && size == 0 && !pointer.is_null() {
            free(pointer);
            return ptr::null_mut();
        }
        malloc::realloc_for::<Unknown>(pointer.cast(), size).cast()
    }
}

/// `realloc` of `count · size` bytes; ENOMEM where that overflows (POSIX.1-2024).
///
/// # Safety
/// As `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(pointer: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as above.
        Some(bytes) => unsafe { realloc(pointer, bytes) },
        None => fail(libc::ENOMEM),
    }
}

/// C23 7.24.3.1: EINVAL where the alignment is not a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    malloc::aligned_alloc_for::<Unknown>(align, size).cast()
}

/// POSIX.1-2024: the error is returned, `errno` and `*result` are kept on failure.
///
/// # Safety
/// `result` must be valid to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let _errno = uslab::internal::errno::Preserved::new();
    let object = malloc::aligned_alloc_for::<Unknown>(align, size);
    if object.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *result = object.cast() };
    0
}

/// The old name of `aligned_alloc`. Rounds any alignment up to a power of two, as glibc does.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => malloc::aligned_alloc_for::<Unknown>(align, size).cast(),
        None => fail(libc::EINVAL),
    }
}

/// A page-aligned object.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(uslab::internal::page_bytes(), size)
}

/// A page-aligned object of whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = uslab::internal::page_bytes();
    match size.max(1).checked_next_multiple_of(page) {
        Some(bytes) => memalign(page, bytes),
        None => fail(libc::ENOMEM),
    }
}

/// Usable bytes, at least those asked for; 0 for null and for pointers that this library does not
/// know.
///
/// # Safety
/// `pointer` must be null or come from one of these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> usize {
    // SAFETY: C asks for null or an object in use.
    unsafe { malloc::usable_size(pointer.cast()) }
}

/// C23 7.24.3.4.
///
/// # Safety
/// As in the standard: `size` is the one asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(pointer: *mut c_void, size: usize) {
    if !pointer.is_null() {
        // SAFETY: not null; the caller's promise.
        unsafe { malloc::free_sized_tested::<{ malloc::MALLOC }>(pointer.cast(), size) }
    }
}

/// C23 7.24.3.5.
///
/// # Safety
/// As in the standard: alignment and size are those asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(pointer: *mut c_void, align: usize, size: usize) {
    if !pointer.is_null() {
        // SAFETY: not null; the caller's promise.
        unsafe { malloc::free_aligned_sized_tested::<{ malloc::MALLOC }>(pointer.cast(), align, size) }
    }
}

/// Returns all free memory to the system but about `pad` bytes. Returns 1 if any went, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    let _errno = uslab::internal::errno::Preserved::new();
    c_int::from(uslab::trim(pad) > 0)
}

/// The old name of [`free`], which glibc keeps for programs linked before 2.26.
///
/// # Safety
/// As in the standard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(pointer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free(pointer) }
}

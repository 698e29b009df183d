//! `operator new` and `operator delete`, every form, by their Itanium names.
//!
//! Where there is no memory the standard's loop runs: call the new-handler and try again; without one throw `std::bad_alloc`. Both are
//! functions of the C++ library, which a C program does not have, so they are looked up when they are needed.

use core::ffi::{CStr, c_void};
use uslab::malloc;

/// Alignment that plain `operator new` guarantees.
const DEFAULT_ALIGN: usize = 16;

/// A function of the C++ library, if the process has one.
fn lookup(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is NUL-terminated; RTLD_DEFAULT is always valid.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// Calls the program's new-handler; false if it has none. The handler may throw, through here.
fn call_new_handler() -> bool {
    // std::get_new_handler()
    let Some(get) = lookup(c"_ZSt15get_new_handlerv") else { return false };
    // SAFETY: the C++ library's function of that name has this type.
    let get: extern "C" fn() -> Option<extern "C-unwind" fn()> = unsafe { core::mem::transmute(get) };
    match get() {
        Some(handler) => {
            handler();
            true
        }
        None => false,
    }
}

#[cold]
#[inline(never)]
fn new_slow(size: usize, align: usize, throws: bool) -> *mut c_void {
    loop {
        let object = malloc::aligned_alloc(align, size);
        if !object.is_null() {
            return object.cast();
        }
        if !call_new_handler() {
            break;
        }
    }
    if throws {
        // std::__throw_bad_alloc()
        if let Some(throw) = lookup(c"_ZSt17__throw_bad_allocv") {
            // SAFETY: the C++ library's function of that name has this type; it throws.
            let throw: extern "C-unwind" fn() -> ! = unsafe { core::mem::transmute(throw) };
            throw();
        }
        uslab::os::report::say(format_args!("operator new: no memory for {size} bytes, and no way to throw"));
        uslab::os::report::abort();
    }
    core::ptr::null_mut()
}

#[inline(always)]
fn new(size: usize, throws: bool) -> *mut c_void {
    let object = malloc::malloc(size);
    if object.is_null() { new_slow(size, DEFAULT_ALIGN, throws) } else { object.cast() }
}

#[inline(always)]
fn new_aligned(size: usize, align: usize, throws: bool) -> *mut c_void {
    let object = malloc::aligned_alloc(align, size);
    if object.is_null() { new_slow(size, align, throws) } else { object.cast() }
}

/// `operator new(std::size_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _Znwm(size: usize) -> *mut c_void {
    new(size, true)
}

/// `operator new(std::size_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnwmRKSt9nothrow_t(size: usize, _: *const c_void) -> *mut c_void {
    new(size, false)
}

/// `operator new(std::size_t, std::align_val_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnwmSt11align_val_t(size: usize, align: usize) -> *mut c_void {
    new_aligned(size, align, true)
}

/// `operator new(std::size_t, std::align_val_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnwmSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    _: *const c_void,
) -> *mut c_void {
    new_aligned(size, align, false)
}

/// `operator new[](std::size_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _Znam(size: usize) -> *mut c_void {
    new(size, true)
}

/// `operator new[](std::size_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnamRKSt9nothrow_t(size: usize, _: *const c_void) -> *mut c_void {
    new(size, false)
}

/// `operator new[](std::size_t, std::align_val_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnamSt11align_val_t(size: usize, align: usize) -> *mut c_void {
    new_aligned(size, align, true)
}

/// `operator new[](std::size_t, std::align_val_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnamSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    _: *const c_void,
) -> *mut c_void {
    new_aligned(size, align, false)
}

/// `operator delete(void *)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPv(pointer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free(pointer) }
}

/// `operator delete(void *, const std::nothrow_t &)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvRKSt9nothrow_t(pointer: *mut c_void, _: *const c_void) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free(pointer) }
}

/// `operator delete(void *, std::size_t)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvm(pointer: *mut c_void, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free_sized(pointer, size) }
}

/// `operator delete(void *, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvSt11align_val_t(pointer: *mut c_void, _: usize) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free(pointer) }
}

/// `operator delete(void *, std::size_t, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvmSt11align_val_t(pointer: *mut c_void, size: usize, align: usize) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free_aligned_sized(pointer, align, size) }
}

/// `operator delete(void *, std::align_val_t, const std::nothrow_t &)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvSt11align_val_tRKSt9nothrow_t(
    pointer: *mut c_void,
    _: usize,
    _: *const c_void,
) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free(pointer) }
}

/// `operator delete[](void *)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPv(pointer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free(pointer) }
}

/// `operator delete[](void *, const std::nothrow_t &)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvRKSt9nothrow_t(pointer: *mut c_void, _: *const c_void) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free(pointer) }
}

/// `operator delete[](void *, std::size_t)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvm(pointer: *mut c_void, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free_sized(pointer, size) }
}

/// `operator delete[](void *, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvSt11align_val_t(pointer: *mut c_void, _: usize) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free(pointer) }
}

/// `operator delete[](void *, std::size_t, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvmSt11align_val_t(pointer: *mut c_void, size: usize, align: usize) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free_aligned_sized(pointer, align, size) }
}

/// `operator delete[](void *, std::align_val_t, const std::nothrow_t &)`.
///
/// # Safety
/// As in the C++ standard, [new.delete].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvSt11align_val_tRKSt9nothrow_t(
    pointer: *mut c_void,
    _: usize,
    _: *const c_void,
) {
    // SAFETY: the caller's promise.
    unsafe { crate::c::free(pointer) }
}

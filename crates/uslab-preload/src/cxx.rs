//! `operator new` and `operator delete`, every form, by their Itanium names.
//!
//! A program may replace some of the eight basic forms: `new`, `new[]`, `delete` and `delete[]`,
//! with and without an alignment. The standard promises that the other forms then call these, and
//! that the array forms call the single ones. This library's forms take precedence over the C++
//! library's, so they must keep that promise:
//!
//! ```text
//!   new(nothrow)                        ─▶ new          new[](nothrow)    ─▶ new[]    ─▶ new
//!   delete(size), delete(nothrow)       ─▶ delete       delete[](size), … ─▶ delete[] ─▶ delete
//! ```
//!
//! The library finds out once whether the program has replaced any. Only then do they call each
//! other so.
//!
//! If memory is used up, the standard's loop runs: call the new-handler and retry; without a
//! new-handler, throw `std::bad_alloc`. Functions of the C++ library throw and catch. This library
//! looks them up when an allocation fails, since a C program has none.

use crate::weak::{self, GetNewHandler, ThrowBadAlloc};
use core::ffi::{CStr, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8};
use uslab::internal::entry as malloc;

/// Alignment that plain `operator new` guarantees.
const DEFAULT_ALIGN: usize = 16;

type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
type NothrowNew = unsafe extern "C-unwind" fn(usize, *const c_void) -> *mut c_void;
type AlignedNothrowNew = unsafe extern "C-unwind" fn(usize, usize, *const c_void) -> *mut c_void;
type AlignedNew = unsafe extern "C-unwind" fn(usize, usize) -> *mut c_void;
type Delete = unsafe extern "C-unwind" fn(*mut c_void);
type AlignedDelete = unsafe extern "C-unwind" fn(*mut c_void, usize);

/// The C++ libraries that may define the functions which [`lookup`] finds.
const CXX_LIBRARIES: [&CStr; 3] = [c"libstdc++.so.6", c"libc++abi.so.1", c"libc++.so.1"];

/// Finds the function called `name`: the next after this library's (`next`), or the first. Where a
/// program in C has opened a plug-in in C++ for itself, it looks into the plug-in's C++ library.
fn lookup(name: &CStr, next: bool) -> Option<*mut c_void> {
    let find = |from| {
        // SAFETY: the name is NUL-terminated, and the handle valid.
        let symbol = unsafe { libc::dlsym(from, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    };
    find(if next { libc::RTLD_NEXT } else { libc::RTLD_DEFAULT }).or_else(|| {
        CXX_LIBRARIES.iter().find_map(|library| {
            // The handle stays open, and the library in memory: it is a plug-in's, which goes on.
            // SAFETY: the name is NUL-terminated. The call loads nothing, so it runs no code.
            let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
            (!handle.is_null()).then(|| find(handle)).flatten()
        })
    })
}

/// Whether the program has replaced a basic operator; found when the library is loaded, or at an
/// earlier use of a form that must know it.
static OPERATORS: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const STANDARD: u8 = 1;
const REPLACED: u8 = 2;

/// The basic operators that other forms of this library call, by their places in [`BOUND`].
#[derive(Clone, Copy)]
enum Basic {
    New,
    Delete,
    DeleteArray,
    AlignedNew,
    AlignedDelete,
    AlignedDeleteArray,
}

/// The basic operators that the process uses: the program's where it has replaced them, else this
/// library's. Null until [`check_replaced`] has looked.
static BOUND: [AtomicPtr<c_void>; 6] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 6];

/// Whether the other forms may allocate and free directly: the program has replaced no basic
/// operator.
#[inline(always)]
fn are_standard() -> bool {
    OPERATORS.load(Relaxed) == STANDARD || check_replaced()
}

/// Finds out whether the program has replaced a basic operator. No later load changes the answer.
#[cold]
#[inline(never)]
pub extern "C" fn check_replaced() -> bool {
    if OPERATORS.load(Acquire) == UNKNOWN {
        // In the order of `Basic`. The dynamic loader has bound these names: to this library's
        // functions, or to the program's, which take precedence.
        let bound = [
            _Znwm as *mut c_void,
            _ZdlPv as *mut c_void,
            _ZdaPv as *mut c_void,
            _ZnwmSt11align_val_t as *mut c_void,
            _ZdlPvSt11align_val_t as *mut c_void,
            _ZdaPvSt11align_val_t as *mut c_void,
        ];
        // The C++ library's forms call these two.
        let others = [_Znam as *mut c_void, _ZnamSt11align_val_t as *mut c_void];
        BOUND.iter().zip(bound).for_each(|(place, function)| place.store(function, Relaxed));
        let all_here = bound.iter().chain(&others).all(|&function| crate::caller::is_own(function.addr()));
        OPERATORS.store(if all_here { STANDARD } else { REPLACED }, Release);
    }
    OPERATORS.load(Acquire) == STANDARD
}

/// The operator that the process uses, once [`check_replaced`] has looked.
fn bound(basic: Basic) -> *mut c_void {
    BOUND[basic as usize].load(Relaxed)
}

/// Calls the operator `new` without an alignment.
#[cold]
fn call_new(size: usize) -> *mut c_void {
    // SAFETY: `check_replaced` found it under a name of this type, and it is never null.
    let new = unsafe { core::mem::transmute::<*mut c_void, New>(bound(Basic::New)) };
    // SAFETY: any size is allowed.
    unsafe { new(size) }
}

/// Calls the operator `new` with an alignment.
#[cold]
fn call_aligned_new(size: usize, align: usize) -> *mut c_void {
    // SAFETY: as above.
    let new = unsafe { core::mem::transmute::<*mut c_void, AlignedNew>(bound(Basic::AlignedNew)) };
    // SAFETY: any size is allowed; the alignment is the caller's.
    unsafe { new(size, align) }
}

/// Calls the operator `basic`, one of `delete` without an alignment.
///
/// # Safety
/// The pointer must be null, or come from the form of `new` that belongs to `basic`.
#[cold]
unsafe fn call_delete(basic: Basic, pointer: *mut c_void) {
    // SAFETY: as above.
    let delete = unsafe { core::mem::transmute::<*mut c_void, Delete>(bound(basic)) };
    // SAFETY: the caller's promise.
    unsafe { delete(pointer) }
}

/// Calls the operator `basic`, one of `delete` with an alignment.
///
/// # Safety
/// As [`call_delete`].
#[cold]
unsafe fn call_aligned_delete(basic: Basic, pointer: *mut c_void, align: usize) {
    // SAFETY: as above.
    let delete = unsafe { core::mem::transmute::<*mut c_void, AlignedDelete>(bound(basic)) };
    // SAFETY: the caller's promise.
    unsafe { delete(pointer, align) }
}

/// Calls the program's new-handler; returns false if it has none. The handler may throw through
/// this frame.
fn call_new_handler() -> bool {
    let get = weak::functions().get_new_handler.or_else(|| {
        let get = lookup(c"_ZSt15get_new_handlerv", false)?;
        // SAFETY: `std::get_new_handler` has this type.
        Some(unsafe { core::mem::transmute::<*mut c_void, GetNewHandler>(get) })
    });
    match get.and_then(|get| get()) {
        Some(handler) => {
            handler();
            true
        }
        None => false,
    }
}

/// Retries after each call of the new-handler; throws `std::bad_alloc` without one.
#[cold]
#[inline(never)]
fn new_or_throw<const FAMILY: u8>(size: usize, align: usize) -> *mut c_void {
    loop {
        let object = malloc::aligned_alloc_as::<FAMILY>(align, size);
        if !object.is_null() {
            return object.cast();
        }
        if !call_new_handler() {
            throw_bad_alloc(size);
        }
    }
}

/// Throws `std::bad_alloc`; without a C++ library, reports and aborts.
fn throw_bad_alloc(size: usize) -> ! {
    let throw = weak::functions().throw_bad_alloc.or_else(|| {
        let throw = lookup(c"_ZSt17__throw_bad_allocv", false)?;
        // SAFETY: `std::__throw_bad_alloc` has this type.
        Some(unsafe { core::mem::transmute::<*mut c_void, ThrowBadAlloc>(throw) })
    });
    if let Some(throw) = throw {
        throw();
    }
    uslab::internal::report::print(format_args!(
        "operator new: no memory for {size} bytes, and no C++ library to throw std::bad_alloc"
    ));
    uslab::internal::report::abort();
}

/// Calls the C++ library's form of a nothrow operator, which calls the throwing form and catches.
/// Where it lies in the program itself, unseen, calls the program's throwing form, if that has one.
#[cold]
#[inline(never)]
fn nothrow(name: &CStr, size: usize, tag: *const c_void) -> *mut c_void {
    let Some(form) = lookup(name, true) else {
        return if are_standard() { core::ptr::null_mut() } else { call_new(size) };
    };
    // SAFETY: the function of that name has this type.
    unsafe { core::mem::transmute::<*mut c_void, NothrowNew>(form)(size, tag) }
}

/// [`nothrow`] for the aligned forms.
#[cold]
#[inline(never)]
fn nothrow_aligned(name: &CStr, size: usize, align: usize, tag: *const c_void) -> *mut c_void {
    let Some(form) = lookup(name, true) else {
        return if are_standard() { core::ptr::null_mut() } else { call_aligned_new(size, align) };
    };
    // SAFETY: the function of that name has this type.
    unsafe { core::mem::transmute::<*mut c_void, AlignedNothrowNew>(form)(size, align, tag) }
}

#[inline(always)]
fn new<const FAMILY: u8>(size: usize) -> *mut c_void {
    let object = malloc::malloc_for::<malloc::Operator<FAMILY>>(size);
    if object.is_null() { new_or_throw::<FAMILY>(size, DEFAULT_ALIGN) } else { object.cast() }
}

#[inline(always)]
fn new_aligned<const FAMILY: u8>(size: usize, align: usize) -> *mut c_void {
    let object = malloc::aligned_alloc_as::<FAMILY>(align, size);
    if object.is_null() { new_or_throw::<FAMILY>(size, align) } else { object.cast() }
}

/// Frees memory of one family; null is allowed.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[inline(always)]
unsafe fn free<const FAMILY: u8>(pointer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { malloc::free_as::<FAMILY>(pointer.cast()) }
}

/// # Safety
/// As [`free`].
#[inline(always)]
unsafe fn free_sized<const FAMILY: u8>(pointer: *mut c_void, size: usize) {
    if !pointer.is_null() {
        // SAFETY: not null; the caller's promise.
        unsafe { malloc::free_sized_tested::<FAMILY>(pointer.cast(), size) }
    }
}

/// # Safety
/// As [`free`].
#[inline(always)]
unsafe fn free_aligned_sized<const FAMILY: u8>(pointer: *mut c_void, align: usize, size: usize) {
    if !pointer.is_null() {
        // SAFETY: not null; the caller's promise.
        unsafe { malloc::free_aligned_sized_tested::<FAMILY>(pointer.cast(), align, size) }
    }
}

/// `operator new(std::size_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _Znwm(size: usize) -> *mut c_void {
    new::<{ malloc::NEW }>(size)
}

/// `operator new(std::size_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnwmRKSt9nothrow_t(size: usize, tag: *const c_void) -> *mut c_void {
    if are_standard() {
        let object = malloc::malloc_for::<malloc::Operator<{ malloc::NEW }>>(size);
        if !object.is_null() {
            return object.cast();
        }
    }
    nothrow(c"_ZnwmRKSt9nothrow_t", size, tag)
}

/// `operator new(std::size_t, std::align_val_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnwmSt11align_val_t(size: usize, align: usize) -> *mut c_void {
    new_aligned::<{ malloc::NEW }>(size, align)
}

/// `operator new(std::size_t, std::align_val_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnwmSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    tag: *const c_void,
) -> *mut c_void {
    if are_standard() {
        let object = malloc::aligned_alloc_as::<{ malloc::NEW }>(align, size);
        if !object.is_null() {
            return object.cast();
        }
    }
    nothrow_aligned(c"_ZnwmSt11align_val_tRKSt9nothrow_t", size, align, tag)
}

/// `operator new[](std::size_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _Znam(size: usize) -> *mut c_void {
    if are_standard() { new::<{ malloc::NEW_ARRAY }>(size) } else { call_new(size) }
}

/// `operator new[](std::size_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnamRKSt9nothrow_t(size: usize, tag: *const c_void) -> *mut c_void {
    if are_standard() {
        let object = malloc::malloc_for::<malloc::Operator<{ malloc::NEW_ARRAY }>>(size);
        if !object.is_null() {
            return object.cast();
        }
    }
    nothrow(c"_ZnamRKSt9nothrow_t", size, tag)
}

/// `operator new[](std::size_t, std::align_val_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnamSt11align_val_t(size: usize, align: usize) -> *mut c_void {
    if !are_standard() {
        return call_aligned_new(size, align);
    }
    new_aligned::<{ malloc::NEW_ARRAY }>(size, align)
}

/// `operator new[](std::size_t, std::align_val_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnamSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    tag: *const c_void,
) -> *mut c_void {
    if are_standard() {
        let object = malloc::aligned_alloc_as::<{ malloc::NEW_ARRAY }>(align, size);
        if !object.is_null() {
            return object.cast();
        }
    }
    nothrow_aligned(c"_ZnamSt11align_val_tRKSt9nothrow_t", size, align, tag)
}

/// `operator delete(void *)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPv(pointer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW }>(pointer) }
}

/// `operator delete(void *, const std::nothrow_t &)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvRKSt9nothrow_t(pointer: *mut c_void, _: *const c_void) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_delete(Basic::Delete, pointer) };
    }
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW }>(pointer) }
}

/// `operator delete(void *, std::size_t)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvm(pointer: *mut c_void, size: usize) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_delete(Basic::Delete, pointer) };
    }
    // SAFETY: the caller's promise.
    unsafe { free_sized::<{ malloc::NEW }>(pointer, size) }
}

/// `operator delete(void *, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvSt11align_val_t(pointer: *mut c_void, _: usize) {
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW }>(pointer) }
}

/// `operator delete(void *, std::size_t, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvmSt11align_val_t(pointer: *mut c_void, size: usize, align: usize) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_aligned_delete(Basic::AlignedDelete, pointer, align) };
    }
    // SAFETY: the caller's promise.
    unsafe { free_aligned_sized::<{ malloc::NEW }>(pointer, align, size) }
}

/// `operator delete(void *, std::align_val_t, const std::nothrow_t &)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdlPvSt11align_val_tRKSt9nothrow_t(
    pointer: *mut c_void,
    align: usize,
    _: *const c_void,
) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_aligned_delete(Basic::AlignedDelete, pointer, align) };
    }
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW }>(pointer) }
}

/// `operator delete[](void *)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPv(pointer: *mut c_void) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_delete(Basic::Delete, pointer) };
    }
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW_ARRAY }>(pointer) }
}

/// `operator delete[](void *, const std::nothrow_t &)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvRKSt9nothrow_t(pointer: *mut c_void, _: *const c_void) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_delete(Basic::DeleteArray, pointer) };
    }
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW_ARRAY }>(pointer) }
}

/// `operator delete[](void *, std::size_t)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvm(pointer: *mut c_void, size: usize) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_delete(Basic::DeleteArray, pointer) };
    }
    // SAFETY: the caller's promise.
    unsafe { free_sized::<{ malloc::NEW_ARRAY }>(pointer, size) }
}

/// `operator delete[](void *, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvSt11align_val_t(pointer: *mut c_void, align: usize) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_aligned_delete(Basic::AlignedDelete, pointer, align) };
    }
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW_ARRAY }>(pointer) }
}

/// `operator delete[](void *, std::size_t, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvmSt11align_val_t(pointer: *mut c_void, size: usize, align: usize) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_aligned_delete(Basic::AlignedDeleteArray, pointer, align) };
    }
    // SAFETY: the caller's promise.
    unsafe { free_aligned_sized::<{ malloc::NEW_ARRAY }>(pointer, align, size) }
}

/// `operator delete[](void *, std::align_val_t, const std::nothrow_t &)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvSt11align_val_tRKSt9nothrow_t(
    pointer: *mut c_void,
    align: usize,
    _: *const c_void,
) {
    if !are_standard() {
        // SAFETY: the caller's promise.
        return unsafe { call_aligned_delete(Basic::AlignedDeleteArray, pointer, align) };
    }
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW_ARRAY }>(pointer) }
}

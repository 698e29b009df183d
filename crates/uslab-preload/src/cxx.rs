//! `operator new` and `operator delete`, every form, by their Itanium names.
//!
//! A program may replace `operator new(size_t)` and `operator delete(void *)` alone; the standard
//! promises that all other forms then call its own two. This library's forms take precedence over
//! the C++ library's, so they must keep that promise. They look up once whether the program has
//! replaced the two, and then call the program's.
//!
//! If memory is used up, the standard's loop runs: call the new-handler and retry; without a
//! new-handler, throw `std::bad_alloc`. Functions of the C++ library throw and catch. This library
//! looks them up when an allocation fails, since a C program has none.

use core::ffi::{CStr, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8};
use uslab::internal::entry as malloc;

/// Alignment that plain `operator new` guarantees.
const DEFAULT_ALIGN: usize = 16;

type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
type NothrowNew = unsafe extern "C-unwind" fn(usize, *const c_void) -> *mut c_void;
type AlignedNothrowNew = unsafe extern "C-unwind" fn(usize, usize, *const c_void) -> *mut c_void;
type Delete = unsafe extern "C-unwind" fn(*mut c_void);

/// Finds the function called `name`: the next after this library's (`next`), or the first.
fn lookup(name: &CStr, next: bool) -> Option<*mut c_void> {
    let from = if next { libc::RTLD_NEXT } else { libc::RTLD_DEFAULT };
    // SAFETY: the name is NUL-terminated; both handles are always valid.
    let symbol = unsafe { libc::dlsym(from, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// Whether the program has replaced the two basic operators; found at the first use of another
/// form.
static OPERATORS: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const STANDARD: u8 = 1;
const REPLACED: u8 = 2;
/// The program's two operators, if it has replaced them.
static PROGRAM_NEW: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static PROGRAM_DELETE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Whether the other forms may allocate and free directly: the program has not replaced the two
/// basic operators.
#[inline(always)]
fn are_standard() -> bool {
    OPERATORS.load(Relaxed) == STANDARD || check_replaced()
}

#[cold]
#[inline(never)]
extern "C" fn check_replaced() -> bool {
    if OPERATORS.load(Acquire) == UNKNOWN {
        // The dynamic loader has bound these names: to this library's functions, or to the
        // program's, which take precedence.
        let (new, delete) = (_Znwm as *mut c_void, _ZdlPv as *mut c_void);
        PROGRAM_NEW.store(new, Relaxed);
        PROGRAM_DELETE.store(delete, Relaxed);
        let here = object_of(check_replaced as *const c_void);
        let all_here = object_of(new) == here && object_of(delete) == here;
        OPERATORS.store(if all_here { STANDARD } else { REPLACED }, Release);
    }
    OPERATORS.load(Acquire) == STANDARD
}

/// Load address of the library or program that contains `function`.
fn object_of(function: *const c_void) -> *mut c_void {
    // SAFETY: all-zero is a valid `Dl_info`, which `dladdr` fills in or leaves alone.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        libc::dladdr(function, &mut info);
        info.dli_fbase
    }
}

/// The program's `operator new`.
#[cold]
fn program_new(size: usize) -> *mut c_void {
    // SAFETY: `check_replaced` found it under the name of this type, and it is never null.
    let new = unsafe { core::mem::transmute::<*mut c_void, New>(PROGRAM_NEW.load(Relaxed)) };
    // SAFETY: any size is allowed.
    unsafe { new(size) }
}

/// The program's `operator delete`.
#[cold]
fn program_delete(pointer: *mut c_void) {
    // SAFETY: as above.
    let delete = unsafe { core::mem::transmute::<*mut c_void, Delete>(PROGRAM_DELETE.load(Relaxed)) };
    // SAFETY: the pointer came from the program's `operator new`, through a form of this library.
    unsafe { delete(pointer) }
}

/// Calls the program's new-handler; returns false if it has none. The handler may throw through
/// this frame.
fn call_new_handler() -> bool {
    // std::get_new_handler()
    let Some(get) = lookup(c"_ZSt15get_new_handlerv", false) else { return false };
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
    // std::__throw_bad_alloc()
    if let Some(throw) = lookup(c"_ZSt17__throw_bad_allocv", false) {
        // SAFETY: the C++ library's function of that name has this type; it throws.
        let throw: extern "C-unwind" fn() -> ! = unsafe { core::mem::transmute(throw) };
        throw();
    }
    uslab::internal::report::print(format_args!(
        "operator new: no memory for {size} bytes, and no C++ library to throw std::bad_alloc"
    ));
    uslab::internal::report::abort();
}

/// Calls the C++ library's form of a nothrow operator, which calls the throwing form and catches.
#[cold]
#[inline(never)]
fn nothrow(name: &CStr, size: usize, tag: *const c_void) -> *mut c_void {
    let Some(form) = lookup(name, true) else { return core::ptr::null_mut() };
    // SAFETY: the function of that name has this type.
    unsafe { core::mem::transmute::<*mut c_void, NothrowNew>(form)(size, tag) }
}

/// [`nothrow`] for the aligned forms.
#[cold]
#[inline(never)]
fn nothrow_aligned(name: &CStr, size: usize, align: usize, tag: *const c_void) -> *mut c_void {
    let Some(form) = lookup(name, true) else { return core::ptr::null_mut() };
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
    let object = malloc::aligned_alloc_as::<{ malloc::NEW }>(align, size);
    if object.is_null() {
        nothrow_aligned(c"_ZnwmSt11align_val_tRKSt9nothrow_t", size, align, tag)
    } else {
        object.cast()
    }
}

/// `operator new[](std::size_t)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _Znam(size: usize) -> *mut c_void {
    if are_standard() { new::<{ malloc::NEW_ARRAY }>(size) } else { program_new(size) }
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
    new_aligned::<{ malloc::NEW_ARRAY }>(size, align)
}

/// `operator new[](std::size_t, std::align_val_t, const std::nothrow_t &)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _ZnamSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    tag: *const c_void,
) -> *mut c_void {
    let object = malloc::aligned_alloc_as::<{ malloc::NEW_ARRAY }>(align, size);
    if object.is_null() {
        nothrow_aligned(c"_ZnamSt11align_val_tRKSt9nothrow_t", size, align, tag)
    } else {
        object.cast()
    }
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
        return program_delete(pointer);
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
        return program_delete(pointer);
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
    _: usize,
    _: *const c_void,
) {
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
        return program_delete(pointer);
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
        return program_delete(pointer);
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
        return program_delete(pointer);
    }
    // SAFETY: the caller's promise.
    unsafe { free_sized::<{ malloc::NEW_ARRAY }>(pointer, size) }
}

/// `operator delete[](void *, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvSt11align_val_t(pointer: *mut c_void, _: usize) {
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW_ARRAY }>(pointer) }
}

/// `operator delete[](void *, std::size_t, std::align_val_t)`.
///
/// # Safety
/// As in the C++ standard, \[new.delete\].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _ZdaPvmSt11align_val_t(pointer: *mut c_void, size: usize, align: usize) {
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
    _: usize,
    _: *const c_void,
) {
    // SAFETY: the caller's promise.
    unsafe { free::<{ malloc::NEW_ARRAY }>(pointer) }
}

//! The malloc family under uslab's own names.

use crate::abi::{USLAB_NORECLAIM, USLAB_ZERO};
use crate::failure;
use core::ffi::{c_uint, c_void};
use uslab::internal::entry as malloc;

/// All flags of an allocation.
pub const ALLOC_FLAGS: c_uint = USLAB_ZERO | USLAB_NORECLAIM;

#[unsafe(no_mangle)]
extern "C" fn uslab_malloc(size: usize) -> *mut c_void {
    malloc::malloc_for::<malloc::Program>(size).cast()
}

#[unsafe(no_mangle)]
extern "C" fn uslab_malloc_flags(size: usize, flags: c_uint) -> *mut c_void {
    if flags & !ALLOC_FLAGS != 0 {
        return failure::null(libc::EINVAL);
    }
    let zero = flags & USLAB_ZERO != 0;
    if flags & USLAB_NORECLAIM == 0 {
        let object = if zero {
            malloc::zeroed_for::<malloc::Program>(size)
        } else {
            malloc::malloc_for::<malloc::Program>(size)
        };
        return object.cast();
    }
    let object =
        if zero { malloc::zeroed_noreclaim(malloc::ALIGN, size) } else { malloc::malloc_noreclaim(size) };
    object.cast()
}

#[unsafe(no_mangle)]
extern "C" fn uslab_calloc(count: usize, size: usize) -> *mut c_void {
    malloc::calloc_for::<malloc::Program>(count, size).cast()
}

/// # Safety
/// As `realloc` of C. Any size is allowed; 0 does not free.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { malloc::realloc_for::<malloc::Program>(pointer.cast(), size).cast() }
}

/// # Safety
/// As `free` of C.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_free(pointer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { malloc::free(pointer.cast()) }
}

#[unsafe(no_mangle)]
extern "C" fn uslab_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    malloc::aligned_alloc_for::<malloc::Program>(align, size).cast()
}

#[unsafe(no_mangle)]
extern "C" fn uslab_aligned_alloc_flags(align: usize, size: usize, flags: c_uint) -> *mut c_void {
    if flags & !ALLOC_FLAGS != 0 {
        return failure::null(libc::EINVAL);
    }
    let zero = flags & USLAB_ZERO != 0;
    if flags & USLAB_NORECLAIM != 0 {
        let object = if zero {
            malloc::zeroed_noreclaim(align, size)
        } else {
            malloc::aligned_alloc_noreclaim(align, size)
        };
        return object.cast();
    }
    let object = malloc::aligned_alloc_for::<malloc::Program>(align, size);
    if zero && !object.is_null() {
        // SAFETY: the object was just allocated and has at least `size` bytes.
        unsafe { object.write_bytes(0, size) };
    }
    object.cast()
}

/// # Safety
/// As `free_sized` of C.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_free_sized(pointer: *mut c_void, size: usize) {
    if !pointer.is_null() {
        // SAFETY: not null; the caller's promise.
        unsafe { malloc::free_sized_tested::<{ malloc::ANY }>(pointer.cast(), size) }
    }
}

/// # Safety
/// As `free_aligned_sized` of C.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_free_aligned_sized(pointer: *mut c_void, align: usize, size: usize) {
    if !pointer.is_null() {
        // SAFETY: not null; the caller's promise.
        unsafe { malloc::free_aligned_sized_tested::<{ malloc::ANY }>(pointer.cast(), align, size) }
    }
}

/// # Safety
/// No other thread may free an object at `pointer` meanwhile.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_usable_size(pointer: *const c_void) -> usize {
    // SAFETY: the header asks for null, a foreign pointer, or an object in use.
    unsafe { malloc::usable_size(pointer.cast()) }
}

/// Usable bytes of an allocation of `size` bytes; `size` itself if no allocation is so large.
#[unsafe(no_mangle)]
extern "C" fn uslab_good_size(size: usize) -> usize {
    malloc::good_size(size)
}

/// # Safety
/// `objects` must have room for `n` pointers.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_malloc_bulk(size: usize, n: usize, objects: *mut *mut c_void) -> bool {
    if n == 0 {
        return true;
    }
    if let Some(error) = refuse(objects, n) {
        return failure::no(error);
    }
    // SAFETY: the caller's promise; nulls first, since the caller's array need not be initialised.
    let objects = unsafe {
        objects.write_bytes(0, n);
        core::slice::from_raw_parts_mut(objects.cast(), n)
    };
    malloc::malloc_bulk(size, objects)
}

/// # Safety
/// As `free` of C, for each of the `n` pointers at `objects`.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_free_bulk(n: usize, objects: *const *mut c_void) {
    if n == 0 {
        return;
    }
    if let Some(error) = refuse(objects, n) {
        uslab::internal::errno::set(error);
        return;
    }
    let _errno = uslab::internal::errno::Preserved::new();
    // SAFETY: the caller's promise.
    unsafe { malloc::free_bulk(core::slice::from_raw_parts(objects.cast(), n)) };
}

/// The error if `objects` cannot be an array of `n` pointers; ENOMEM if the address space has no
/// room for that many.
pub fn refuse<T>(objects: *const T, n: usize) -> Option<i32> {
    if objects.is_null() || !objects.is_aligned() {
        Some(libc::EINVAL)
    } else if n > isize::MAX as usize / size_of::<T>() {
        Some(libc::ENOMEM)
    } else {
        None
    }
}

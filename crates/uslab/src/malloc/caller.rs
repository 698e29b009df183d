//! The slow ends of `malloc`, `calloc` and `realloc`, and whose calls may start the background
//! thread.
//!
//! A thread is started only for a call of the program: the C library calls the malloc family with
//! locks of its own held, which a new thread needs. So each function knows its [`Caller`], in
//! its type; where that is not known before, as for the C functions, the slow path ends in the
//! caller's own function, which finds out. Must never: ask on the fast path.

use super::classes::{Class, MAX_SMALL_BYTES};
use super::{ALIGN, free, large, out_of_memory, small};
use crate::cache::background;
use crate::rseq;
use core::ptr;

/// Who asks, and may therefore be used to start the background thread: see [`crate::cache`]. Each
/// function is the end of a slow path, and says to the one of [`serve`], [`serve_zeroed`] and
/// [`serve_resized`] whether that is the program.
pub trait Caller {
    /// The end of [`super::malloc_for`]: [`serve`], or [`serve_program`].
    extern "C" fn serve(size: usize) -> *mut u8;

    /// The end of [`super::zeroed_for`].
    extern "C" fn serve_zeroed(size: usize) -> *mut u8;

    /// The end of [`super::realloc_for`].
    ///
    /// # Safety
    /// As [`serve_resized`].
    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8;
}

/// The C library, perhaps, with locks of its own held: it must not be made to start threads.
pub struct AnyCaller;

impl Caller for AnyCaller {
    #[inline]
    extern "C" fn serve(size: usize) -> *mut u8 {
        serve(size)
    }

    extern "C" fn serve_zeroed(size: usize) -> *mut u8 {
        serve_zeroed(size, || false)
    }

    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { serve_resized(pointer, size, old, || false) }
    }
}

/// The program.
pub struct Program;

impl Caller for Program {
    #[inline]
    extern "C" fn serve(size: usize) -> *mut u8 {
        serve_program(size)
    }

    extern "C" fn serve_zeroed(size: usize) -> *mut u8 {
        serve_zeroed(size, || true)
    }

    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { serve_resized(pointer, size, old, || true) }
    }
}

/// What no sheaf of this CPU can serve.
#[inline(never)]
pub extern "C" fn serve(size: usize) -> *mut u8 {
    match Class::of(size) {
        Some(class) => small::alloc(class),
        None => large::alloc(size, ALIGN).map_or_else(out_of_memory, |(object, _)| object),
    }
}

/// The same, and the background thread is started if there is much memory and none yet. Only for
/// the program itself: the C library may hold locks that a new thread needs.
#[inline(never)]
pub extern "C" fn serve_program(size: usize) -> *mut u8 {
    background::begin_if_large();
    serve(size)
}

/// What this CPU's sheaves have of `size` bytes; null where they have none, or the size is none of
/// a class.
#[inline]
fn pop_any(size: usize) -> *mut u8 {
    match small::slots_for(size).or_else(|| small::slots_for_larger(size)) {
        // SAFETY: as in `malloc`.
        Some(slots) => unsafe { rseq::pop(slots) },
        None => ptr::null_mut(),
    }
}

/// [`serve_program`] or [`serve`], by what `is_program` returns; it is asked only on the slow
/// path.
#[inline]
fn serve_for(size: usize, is_program: impl FnOnce() -> bool) -> *mut u8 {
    let object = pop_any(size);
    if !object.is_null() {
        return object;
    }
    if is_program() { serve_program(size) } else { serve(size) }
}

/// [`super::zeroed_for`] where the fast path has nothing. `is_program` returns whether the
/// background thread may be started: the caller is the program.
#[inline]
pub fn serve_zeroed(size: usize, is_program: impl FnOnce() -> bool) -> *mut u8 {
    if size <= MAX_SMALL_BYTES {
        let object = serve_for(size, is_program);
        if !object.is_null() {
            // SAFETY: the object is ours and at least `size` bytes.
            unsafe { object.write_bytes(0, size) };
        }
        return object;
    }
    if is_program() {
        background::begin_if_large();
    }
    let Some((object, known_zero)) = large::alloc(size, ALIGN) else { return out_of_memory() };
    if !known_zero {
        // SAFETY: as above.
        unsafe { object.write_bytes(0, size) };
    }
    object
}

/// [`super::realloc_for`] of an object of `old` bytes that cannot simply stay as it is;
/// `is_program` as in [`serve_zeroed`].
///
/// # Safety
/// As [`super::realloc`]; `old` must be what may be used at `pointer`, which must not be null.
#[inline]
pub unsafe fn serve_resized(
    pointer: *mut u8,
    size: usize,
    old: usize,
    is_program: impl FnOnce() -> bool,
) -> *mut u8 {
    let new = if size <= MAX_SMALL_BYTES {
        serve_for(size, is_program)
    } else {
        if old > MAX_SMALL_BYTES && large::resize(pointer, size) {
            return pointer;
        }
        if is_program() {
            background::begin_if_large();
        }
        if old > MAX_SMALL_BYTES
            && let Some(moved) = large::move_to(pointer, size)
        {
            return moved;
        }
        serve(size)
    };
    if !new.is_null() {
        // SAFETY: both are at least that long, and different objects.
        unsafe {
            ptr::copy_nonoverlapping(pointer, new, old.min(size));
            free(pointer);
        }
    }
    new
}

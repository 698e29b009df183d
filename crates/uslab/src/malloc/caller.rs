//! The last steps of `malloc`, `calloc` and `realloc`, and the rule for which calls may start the
//! background thread.
//!
//! Only a call from the program may start the thread, because the C library calls the malloc family
//! while it holds locks that a new thread needs. So each function has its [`Caller`] as a type
//! parameter. The C functions do not know their caller beforehand: there the slow path ends in a
//! function of the preload library, which determines the caller. The fast path never does that.

use super::classes::{Class, MAX_SMALL_BYTES};
use super::entry::{ALIGN, MALLOC, free_as, out_of_memory};
use super::medium::{self, Medium};
use super::profiled::{self, Kind};
use super::sampled;
use super::{large, small};
use crate::cache::debugged::{Family, Request};
use crate::cache::{Core, background, registry};
use crate::pages;
use crate::rseq;
use core::ptr::{self, NonNull};

/// The caller of a malloc function: the program, whose call may start the background thread (see
/// [`crate::cache`]), or possibly the C library. Each method is the last step of a slow path: it
/// calls [`serve`], [`serve_zeroed`] or [`serve_resized`] with the information whether the caller
/// is the program.
pub trait Caller {
    /// The way in which the caller frees objects by their size.
    const FREED: Freed;
    /// The number of the family that it allocates for.
    const FAMILY: u8 = MALLOC;

    /// Takes a sample for this caller; `None` if this allocation is not to be a sample.
    #[doc(hidden)]
    fn sample(size: usize, align: usize) -> Option<NonNull<u8>> {
        sample(Self::FREED, size, align, Family::of(Self::FAMILY), Kind::Plain)
    }

    /// The last step of [`super::entry::malloc_for`]: [`serve`] or [`serve_program`].
    extern "C" fn serve(size: usize) -> *mut u8;

    /// The last step of [`super::entry::zeroed_for`].
    extern "C" fn serve_zeroed(size: usize) -> *mut u8;

    /// The last step of [`super::entry::realloc_for`].
    ///
    /// # Safety
    /// As [`serve_resized`].
    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8;
}

/// The way in which a caller frees objects by their size. It decides which objects may be sampled:
/// see [`super::sampled`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freed {
    /// With the tests of [`super::entry::free_sized_tested`]: C and C++.
    Tested,
    /// By [`super::entry::free_sized`]: Rust.
    Untested,
}

/// Takes a sample, for guard pages or the heap profile, or an object that the profile counted;
/// `None` if the caller is to go on without.
#[inline]
fn sample(freed: Freed, size: usize, align: usize, family: Family, kind: Kind) -> Option<NonNull<u8>> {
    let guarded = match freed {
        Freed::Tested => sampled::take(size, align, family),
        Freed::Untested => sampled::take_for_rust(size, align),
    };
    guarded.or_else(|| profiled::take(size, align, family, kind))
}

/// An unknown caller in Rust. It may be the C library with locks held, so its calls start no
/// thread.
pub struct AnyCaller;

impl Caller for AnyCaller {
    const FREED: Freed = Freed::Untested;

    extern "C" fn serve(size: usize) -> *mut u8 {
        serve_as(size, Self::FREED, Family::Malloc)
    }

    extern "C" fn serve_zeroed(size: usize) -> *mut u8 {
        serve_zeroed(size, Self::FREED, || false)
    }

    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { serve_resized(pointer, size, old, Self::FREED, || false) }
    }
}

/// A program in Rust, by way of [`crate::Uslab`]: its calls may start the background thread.
pub struct Rust;

impl Caller for Rust {
    const FREED: Freed = Freed::Untested;

    extern "C" fn serve(size: usize) -> *mut u8 {
        background::begin_if_large();
        serve_as(size, Self::FREED, Family::Malloc)
    }

    extern "C" fn serve_zeroed(size: usize) -> *mut u8 {
        serve_zeroed(size, Self::FREED, || true)
    }

    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { serve_resized(pointer, size, old, Self::FREED, || true) }
    }
}

/// A program in C or C++, never the C library: its calls may start the background thread.
pub struct Program;

impl Caller for Program {
    const FREED: Freed = Freed::Tested;

    #[inline]
    extern "C" fn serve(size: usize) -> *mut u8 {
        serve_program(size)
    }

    extern "C" fn serve_zeroed(size: usize) -> *mut u8 {
        serve_zeroed(size, Self::FREED, || true)
    }

    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { serve_resized(pointer, size, old, Self::FREED, || true) }
    }
}

/// `operator new`, or another function of the program that allocates for the family `FAMILY`.
pub struct Operator<const FAMILY: u8>;

impl<const FAMILY: u8> Caller for Operator<FAMILY> {
    const FREED: Freed = Freed::Tested;
    const FAMILY: u8 = FAMILY;

    extern "C" fn serve(size: usize) -> *mut u8 {
        background::begin_if_large();
        serve_as(size, Self::FREED, Family::of(FAMILY))
    }

    extern "C" fn serve_zeroed(size: usize) -> *mut u8 {
        serve_zeroed(size, Self::FREED, || true)
    }

    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { serve_resized(pointer, size, old, Self::FREED, || true) }
    }
}

/// Allocates `size` bytes that no sheaf of this CPU can serve; null with ENOMEM.
#[inline(never)]
pub extern "C" fn serve(size: usize) -> *mut u8 {
    serve_as(size, Freed::Tested, Family::Malloc)
}

#[inline(always)]
fn serve_as(size: usize, freed: Freed, family: Family) -> *mut u8 {
    if let Some(object) = sample(freed, size, ALIGN, family, Kind::Plain) {
        return object.as_ptr();
    }
    if let Some(class) = Class::of(size) {
        return small::alloc(class, Request { bytes: size, family });
    }
    match Medium::of(size) {
        Some(class) => medium::alloc_slow(class, size, ALIGN, family),
        None => serve_large(size, family),
    }
}

fn serve_large(size: usize, family: Family) -> *mut u8 {
    large::alloc(size, ALIGN, family).map_or_else(out_of_memory, |(object, _)| object)
}

/// Whether [`serve_program`] would do more than [`serve`]: else the caller need not be known.
#[inline]
pub fn is_caller_asked() -> bool {
    background::is_wanted()
}

/// [`serve`], after it starts the background thread if the arena is large and no thread runs yet.
/// Only for calls of the program: the C library may hold locks that a new thread needs.
#[inline(never)]
pub extern "C" fn serve_program(size: usize) -> *mut u8 {
    background::begin_if_large();
    serve(size)
}

/// Pops an object of `size` bytes from this CPU's main sheaf. Null if that is empty, or if no class
/// serves the size.
#[inline]
fn pop_any(size: usize) -> *mut u8 {
    match small::slots_for(size).or_else(|| small::slots_for_larger(size)) {
        // SAFETY: as in `malloc`.
        Some(slots) => unsafe { rseq::pop(slots) },
        None => ptr::null_mut(),
    }
}

/// Allocates `size` bytes. If `is_program` returns true, which only the slow path asks, the call
/// may start the background thread.
#[inline]
fn serve_for(size: usize, freed: Freed, is_program: impl FnOnce() -> bool) -> *mut u8 {
    let object = pop_any(size);
    if !object.is_null() {
        return object;
    }
    if is_program() {
        background::begin_if_large();
    }
    serve_as(size, freed, Family::Malloc)
}

/// The slow path of [`super::entry::zeroed_for`]. `is_program` returns whether the caller is the
/// program, so that the call may start the background thread.
#[inline]
pub fn serve_zeroed(size: usize, freed: Freed, is_program: impl FnOnce() -> bool) -> *mut u8 {
    if size <= MAX_SMALL_BYTES {
        let object = serve_for(size, freed, is_program);
        if !object.is_null() {
            // SAFETY: the object was just allocated and has at least `size` bytes.
            unsafe { object.write_bytes(0, size) };
        }
        return object;
    }
    let object = medium::pop(size);
    if !object.is_null() {
        // SAFETY: as above.
        unsafe { object.write_bytes(0, size) };
        return object;
    }
    if is_program() {
        background::begin_if_large();
    }
    if let Some(object) = sample(freed, size, ALIGN, Family::Malloc, Kind::Zeroed) {
        // SAFETY: as above.
        unsafe { object.write_bytes(0, size) };
        return object.as_ptr();
    }
    match large::alloc(size, ALIGN, Family::Malloc) {
        // SAFETY: as above; no other code knows the object yet.
        Some(object) => unsafe { large::zeroed(object, size) },
        None => out_of_memory(),
    }
}

/// Whether the hardened object at `pointer` got `size` bytes in its place: its class is that of the
/// size.
#[inline]
fn stays(pointer: *mut u8, size: usize) -> bool {
    let core = pages::owner_of(pointer).and_then(|owner| registry::cache(owner.id()));
    let is_of_class = |core: &&Core| Class::of(size).is_some_and(|class| class.bytes() == core.user_bytes());
    let request = Request { bytes: size, family: Family::Malloc };
    core.filter(is_of_class).is_some_and(|core| core.resize_in_place(pointer, request))
}

/// The slow path of [`super::entry::realloc_for`], for an object of `old` bytes whose class changes
/// or that is large. `is_program` as in [`serve_zeroed`].
///
/// # Safety
/// As [`super::entry::realloc`]. `pointer` must not be null, and `old` must be its usable size.
#[inline]
pub unsafe fn serve_resized(
    pointer: *mut u8,
    size: usize,
    old: usize,
    freed: Freed,
    is_program: impl FnOnce() -> bool,
) -> *mut u8 {
    if size <= MAX_SMALL_BYTES && stays(pointer, size) {
        return pointer;
    }
    let new = if size <= MAX_SMALL_BYTES {
        serve_for(size, freed, is_program)
    } else {
        // First: an object at the end of the arena may grow in place for ever.
        if is_program() {
            background::begin_if_large();
        }
        if old > MAX_SMALL_BYTES {
            if profiled::stays(pointer, size, old) {
                return pointer;
            }
            let sample = profiled::detach(pointer);
            if large::resize(pointer, size) || medium::resize(pointer, size) {
                profiled::note_resized(pointer, size, old, sample);
                return pointer;
            }
            if let Some(moved) = large::move_to(pointer, size) {
                profiled::note_resized(moved, size, old, sample);
                return moved;
            }
            profiled::reattach(pointer, sample);
        }
        // A run that has grown once grows again, in place where it can.
        sample(freed, size, ALIGN, Family::Malloc, Kind::Grown)
            .map_or_else(|| serve_large(size, Family::Malloc), NonNull::as_ptr)
    };
    if !new.is_null() {
        // SAFETY: both objects are at least that long, and they are distinct.
        unsafe {
            ptr::copy_nonoverlapping(pointer, new, old.min(size));
            free_as::<MALLOC>(pointer);
        }
    }
    new
}

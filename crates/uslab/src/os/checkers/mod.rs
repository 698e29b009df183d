//! Memory checkers of other projects: valgrind and AddressSanitizer learn which bytes a program may
//! use.
//!
//! To a checker the arena is one mapping, of which every byte may be used. With the features
//! `valgrind` and `asan` the library tells it of each object. Then the checker reports uses of
//! freed objects, accesses beside objects and, under valgrind, leaks, with its own stacks.
//!
//! ```text
//!   slab made ──▶ hide ──▶ object allocated ──▶ allocated ─┐
//!                              ▲                           ▼
//!   slab gone ◀── show ◀───────┴──────────── freed ◀── object freed
//! ```
//!
//! Without these features every function is empty, and [`IS_ON`] is false: no instruction is left.

#[cfg(feature = "asan")]
mod asan;
#[cfg(feature = "valgrind")]
mod valgrind;

/// Whether the library was built for a checker. Then every cache is debugged, so that each call
/// takes the slow path, which calls these functions.
pub const IS_ON: bool = cfg!(any(feature = "valgrind", feature = "asan"));

/// `bytes` bytes at `object`, which were hidden, are an object in use. `is_defined` is true if the
/// caller may read them before it has written them.
pub fn allocated(object: usize, bytes: usize, is_defined: bool) {
    #[cfg(feature = "valgrind")]
    valgrind::allocated(object, bytes, is_defined);
    #[cfg(feature = "asan")]
    asan::show(object, bytes);
    let _ = (object, bytes, is_defined);
}

/// The object that [`allocated`] told of is free.
pub fn freed(object: usize, bytes: usize) {
    #[cfg(feature = "valgrind")]
    valgrind::freed(object);
    #[cfg(feature = "asan")]
    asan::hide(object, bytes);
    let _ = (object, bytes);
}

/// No code may use these bytes.
pub fn hide(start: usize, bytes: usize) {
    #[cfg(feature = "valgrind")]
    valgrind::hide(start, bytes);
    #[cfg(feature = "asan")]
    asan::hide(start, bytes);
    let _ = (start, bytes);
}

/// All code may use these bytes again.
pub fn show(start: usize, bytes: usize) {
    #[cfg(feature = "valgrind")]
    valgrind::show(start, bytes);
    #[cfg(feature = "asan")]
    asan::show(start, bytes);
    let _ = (start, bytes);
}

/// Pointers in this range keep what they point to from being a leak. Mappings may come and go in
/// it.
pub fn add_roots(start: usize, bytes: usize) {
    // valgrind looks for pointers in all mappings.
    #[cfg(feature = "asan")]
    asan::add_roots(start, bytes);
    let _ = (start, bytes);
}

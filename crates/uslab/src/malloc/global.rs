//! `Uslab`: the global allocator for Rust programs.

use super::classes::Class;
use super::entry;
use crate::cache::debugged;
use core::alloc::{GlobalAlloc, Layout};

/// The general allocator as Rust's global one.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: uslab::Uslab = uslab::Uslab;
/// # fn main() { assert_eq!(vec![1, 2, 3].len(), 3); }
/// ```
///
/// Rust passes size and alignment to `dealloc`, so freeing a small object needs no look at the page
/// map. Methods may be called from any thread and in fork children, but not from a signal handler
/// that interrupted one of them. An allocation may take locks, make system calls and run reclaim
/// callbacks on its slow path. A null result means that memory is used up even after reclaim, or
/// that the alignment exceeds 1 GiB. Inside a shrinker's callback an allocation does not reclaim.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uslab;

// SAFETY: the functions of `malloc` return distinct memory of at least the requested size and
// alignment, preserve contents in `realloc`, and never unwind.
unsafe impl GlobalAlloc for Uslab {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= super::ALIGN {
            return entry::malloc_for::<entry::Rust>(layout.size());
        }
        super::aligned_alloc(layout.align(), layout.size())
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; the class follows from the layout as it did in `alloc`.
        unsafe { super::free_aligned_sized(pointer, layout.align(), layout.size()) };
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= super::ALIGN {
            return entry::zeroed_for::<entry::Rust>(layout.size());
        }
        let object = super::aligned_alloc(layout.align(), layout.size());
        if !object.is_null() {
            // SAFETY: the object was just allocated with that size.
            unsafe { object.write_bytes(0, layout.size()) };
        }
        object
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let old = Class::of_aligned(layout.size(), layout.align());
        let is_same = old.is_some() && old == Class::of_aligned(size, layout.align());
        if is_same && !debugged::selects_malloc() {
            return pointer;
        }
        if old.is_none() && layout.align() <= super::ALIGN {
            // SAFETY: the caller's promise.
            return unsafe { entry::realloc_for::<entry::Rust>(pointer, size) };
        }
        // SAFETY: the caller promises a valid layout for the new size.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both objects are at least that long, and they are distinct.
            unsafe {
                core::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
        }
        new
    }
}

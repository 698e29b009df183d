//! The `Allocator` trait of the crate allocator-api2, for [`Uslab`], heaps and caches.
//!
//! Crates take one of two versions of it: hashbrown and bumpalo 0.2, newer ones 0.4. The features
//! `allocator-api2-02` and `allocator-api2` choose; both may be on.
//!
//! A block grows and shrinks in place if both sizes have one size class. One of [`Uslab`] also
//! grows where the pages behind it are free.

use super::classes::Class;
use super::global::Uslab;
use super::heap::Heap;
use crate::cache::{Cache, RawCache};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

/// The allocator of a heap, for collections: a reference to the heap. Alignment and size follow
/// [`Heap::alloc`].
pub type HeapAllocator<'a> = &'a Heap;

/// A source of memory, as the implementations of both versions need it.
///
/// # Safety
/// As for `Allocator`.
unsafe trait Source: Copy {
    fn take(self, layout: Layout) -> Option<NonNull<[u8]>>;

    /// # Safety
    /// As `Allocator::deallocate`.
    unsafe fn give(self, pointer: NonNull<u8>, layout: Layout);

    /// Whether a block of layout `old` has room for `new` where it lies.
    fn fits(self, old: Layout, new: Layout) -> bool;

    /// Gives a block the layout `new`: where it lies, or elsewhere with its first bytes copied.
    ///
    /// # Safety
    /// As `Allocator::grow` or `Allocator::shrink`.
    unsafe fn resize(self, pointer: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<[u8]>> {
        if self.fits(old, new) && (pointer.as_ptr() as usize).is_multiple_of(new.align()) {
            return Some(NonNull::slice_from_raw_parts(pointer, new.size()));
        }
        let block = self.take(new)?;
        // SAFETY: both blocks have that many bytes, and are distinct; the caller's promise.
        unsafe {
            block.cast::<u8>().copy_from_nonoverlapping(pointer, old.size().min(new.size()));
            self.give(pointer, old);
        }
        Some(block)
    }
}

// SAFETY: the functions of `malloc` return distinct memory; every `Uslab` is the same allocator.
unsafe impl Source for Uslab {
    fn take(self, layout: Layout) -> Option<NonNull<[u8]>> {
        if layout.size() == 0 {
            let nowhere = NonNull::new(core::ptr::without_provenance_mut(layout.align()))?;
            return Some(NonNull::slice_from_raw_parts(nowhere, 0));
        }
        // SAFETY: the size is not 0.
        let object = unsafe { self.alloc(layout) };
        Some(NonNull::slice_from_raw_parts(NonNull::new(object)?, layout.size()))
    }

    unsafe fn give(self, pointer: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.dealloc(pointer.as_ptr(), layout) };
        }
    }

    fn fits(self, _: Layout, _: Layout) -> bool {
        false
    }

    unsafe fn resize(self, pointer: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<[u8]>> {
        if old.size() > 0 && new.size() > 0 && old.align() == new.align() {
            // SAFETY: the caller's promise. `realloc` keeps the block where it has room.
            let object = unsafe { self.realloc(pointer.as_ptr(), old, new.size()) };
            return Some(NonNull::slice_from_raw_parts(NonNull::new(object)?, new.size()));
        }
        let block = self.take(new)?;
        // SAFETY: both blocks have that many bytes, and are distinct; the caller's promise.
        unsafe {
            block.cast::<u8>().copy_from_nonoverlapping(pointer, old.size().min(new.size()));
            self.give(pointer, old);
        }
        Some(block)
    }
}

// SAFETY: a heap's memory stays valid while the heap is borrowed, and the reference borrows it.
// Copies of the reference are the same allocator.
unsafe impl Source for &'_ Heap {
    fn take(self, layout: Layout) -> Option<NonNull<[u8]>> {
        let object = self.alloc(layout.size(), layout.align())?;
        Some(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    unsafe fn give(self, pointer: NonNull<u8>, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.free(pointer) };
    }

    fn fits(self, old: Layout, new: Layout) -> bool {
        // A later free finds the block's class by its layout alone: the class must stay.
        let class = |layout: Layout| Class::of_aligned(layout.size(), layout.align());
        class(old).is_some() && class(old) == class(new)
    }
}

// SAFETY: as above. `take` refuses layouts that do not fit the cache's objects, and a cache with a
// constructor, whose objects must stay constructed.
unsafe impl Source for &'_ RawCache {
    fn take(self, layout: Layout) -> Option<NonNull<[u8]>> {
        if !self.fits(layout, layout) || self.core().is_constructed() {
            return None;
        }
        Some(NonNull::slice_from_raw_parts(self.alloc()?, self.usable_bytes()))
    }

    unsafe fn give(self, pointer: NonNull<u8>, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.free(pointer) };
    }

    fn fits(self, _: Layout, new: Layout) -> bool {
        new.size() <= self.usable_bytes() && self.core().is_aligned_to(new.align())
    }
}

// SAFETY: as above, for constructors too.
unsafe impl<T> Source for &'_ Cache<T> {
    fn take(self, layout: Layout) -> Option<NonNull<[u8]>> {
        let object = self.fits(layout, layout).then(|| self.alloc())??.cast();
        if self.core_if_set_up().is_some_and(|core| core.is_constructed()) {
            // SAFETY: just allocated.
            unsafe { self.give(object, layout) };
            return None;
        }
        Some(NonNull::slice_from_raw_parts(object, size_of::<T>()))
    }

    unsafe fn give(self, pointer: NonNull<u8>, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.free(pointer.cast()) };
    }

    fn fits(self, _: Layout, new: Layout) -> bool {
        new.size() <= size_of::<T>() && new.align() <= align_of::<T>()
    }
}

/// The four implementations of one version of the trait.
macro_rules! implement {
    ($version:ident; $([$($generic:ident)?] $source:ty),*) => {$(
        // SAFETY: as for `Source`.
        unsafe impl $(<$generic>)? $version::alloc::Allocator for $source {
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                self.take(layout).ok_or($version::alloc::AllocError)
            }

            unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
                // SAFETY: the caller's promise.
                unsafe { self.give(pointer, layout) };
            }

            unsafe fn grow(
                &self,
                pointer: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: the caller's promise.
                unsafe { self.resize(pointer, old, new) }.ok_or($version::alloc::AllocError)
            }

            unsafe fn shrink(
                &self,
                pointer: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: the caller's promise.
                unsafe { self.resize(pointer, old, new) }.ok_or($version::alloc::AllocError)
            }
        }
    )*};
}

#[cfg(feature = "allocator-api2")]
implement!(allocator_api2; [] Uslab, [] &Heap, [] &RawCache, [T] &Cache<T>);
#[cfg(feature = "allocator-api2-02")]
implement!(hashbrown_memory; [] Uslab, [] &Heap, [] &RawCache, [T] &Cache<T>);

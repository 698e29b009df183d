//! The `Allocator` trait of allocator-api2 for heaps and caches, under the feature
//! `allocator-api2`.
#![cfg(feature = "allocator-api2")]

use super::heap::Heap;
use crate::cache::RawCache;
use allocator_api2::alloc::{AllocError, Allocator, Layout};
use core::ptr::NonNull;

/// The allocator of a heap, for collections: a reference to the heap. Alignment and size follow
/// [`Heap::alloc`].
pub type HeapAllocator<'a> = &'a Heap;

// SAFETY: a heap's memory stays valid while the heap is borrowed, and the reference borrows it.
// Copies of the reference are the same allocator.
unsafe impl Allocator for &'_ Heap {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let object = self.alloc(layout.size(), layout.align()).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.free(pointer) };
    }
}

// SAFETY: as above. `allocate` refuses layouts that do not fit the cache's objects.
unsafe impl Allocator for &'_ RawCache {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let bytes = self.usable_bytes();
        if layout.size() > bytes || !self.core().is_aligned_to(layout.align()) {
            return Err(AllocError);
        }
        let object = self.alloc().ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, bytes))
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.free(pointer) };
    }
}

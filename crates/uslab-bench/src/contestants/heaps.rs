//! Private heaps, which are destroyed with all that is in them: uslab's and mimalloc's.
//!
//! mimalloc v3 is the one peer with such heaps that any thread may use. jemalloc's arenas are made
//! for a few at a time: there can be 4095. Each heap is called as its users call it, through
//! functions that the compiler cannot look into.

use super::Contestant;
use super::linked::Mimalloc;
use super::uslab::UslabMalloc;
use libmimalloc_sys as mi;
use std::ptr::{NonNull, null_mut};
use uslab::Heap;

/// An allocator with private heaps.
pub trait Heaps: 'static {
    /// Its unique name in tables.
    const NAME: &'static str;

    /// Its malloc, for what lives beside the heaps.
    type Malloc: Contestant;

    type Heap;

    fn create() -> Option<Self::Heap>;

    /// Memory for `size` bytes, or null.
    fn alloc(heap: &Self::Heap, size: usize) -> *mut u8;

    /// Frees the heap and all of its objects.
    ///
    /// # Safety
    /// No object of the heap is used any more.
    unsafe fn destroy(heap: Self::Heap);
}

pub struct UslabHeaps;

/// As aligned as malloc.
const ALIGN: usize = 16;

#[inline(never)]
extern "C" fn heap_alloc(heap: &Heap, size: usize) -> *mut u8 {
    heap.alloc(size, ALIGN).map_or(null_mut(), NonNull::as_ptr)
}

impl Heaps for UslabHeaps {
    const NAME: &'static str = "uslab heap";

    type Malloc = UslabMalloc;
    type Heap = Heap;

    fn create() -> Option<Heap> {
        Heap::new()
    }

    #[inline(always)]
    fn alloc(heap: &Heap, size: usize) -> *mut u8 {
        heap_alloc(heap, size)
    }

    unsafe fn destroy(heap: Heap) {
        drop(heap);
    }
}

pub struct MimallocHeaps;

impl Heaps for MimallocHeaps {
    const NAME: &'static str = Mimalloc::NAME;

    type Malloc = Mimalloc;
    type Heap = NonNull<mi::mi_heap_t>;

    fn create() -> Option<Self::Heap> {
        // SAFETY: it has no conditions.
        NonNull::new(unsafe { mi::mi_heap_new() })
    }

    #[inline(always)]
    fn alloc(heap: &Self::Heap, size: usize) -> *mut u8 {
        // SAFETY: the heap lives until `destroy`, which takes it by value.
        unsafe { mi::mi_heap_malloc(heap.as_ptr(), size).cast() }
    }

    unsafe fn destroy(heap: Self::Heap) {
        // SAFETY: the heap lives, and the caller uses none of its objects.
        unsafe { mi::mi_heap_destroy(heap.as_ptr()) };
    }
}

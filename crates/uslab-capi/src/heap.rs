//! Private heaps: `uslab_heap_*`.

use crate::abi::{HeapStats, HeapVisitor};
use crate::handle::{self, Handle, Kind};
use crate::{failure, versioned};
use core::ffi::{c_char, c_int, c_void};
use core::ops::ControlFlow;
use uslab::Heap;
use uslab::internal::{Class, entry as malloc, errno};

impl Kind for Heap {
    const KIND: u64 = u64::from_le_bytes(*b"uslabhep");
}

/// The C type.
type Object = Handle<Heap>;

#[unsafe(no_mangle)]
extern "C" fn uslab_heap_create() -> *mut Object {
    make(Heap::new())
}

/// # Safety
/// `name` must be null or NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_create_named(name: *const c_char) -> *mut Object {
    // SAFETY: the caller's promise.
    match unsafe { handle::name(name) } {
        Some(name) => make(Heap::named(name)),
        None => failure::null(libc::EINVAL),
    }
}

fn make(heap: Option<Heap>) -> *mut Object {
    match heap {
        Some(heap) => Handle::make(heap).unwrap_or_else(|_| failure::null(libc::ENOMEM)),
        None => failure::null(libc::ENOMEM),
    }
}

/// # Safety
/// `heap` must be null or a heap; `out` null, or as many bytes as its `type_size` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_get_stats(heap: *const Object, out: *mut HeapStats) -> c_int {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(heap) }) else { return failure::code(libc::EINVAL) };
    let stats = inside.stats();
    let filled = HeapStats {
        type_size: 0,
        objects: stats.objects as u64,
        object_bytes: stats.object_bytes as u64,
        slab_bytes: stats.slab_bytes as u64,
        large_objects: stats.large_objects as u64,
        large_bytes: stats.large_bytes as u64,
    };
    // SAFETY: the caller's promise.
    match unsafe { versioned::write(out, &filled) } {
        Ok(()) => 0,
        Err(error) => failure::code(error),
    }
}

/// The visitor runs with no lock held, so it may call any function.
///
/// # Safety
/// `heap` must be null or a heap, `visit` null or callable with `context`.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_visit(
    heap: *const Object,
    visit: Option<HeapVisitor>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(heap) }) else { return failure::code(libc::EINVAL) };
    let Some(visit) = visit else { return failure::code(libc::EINVAL) };
    let mut end = 0;
    inside.for_each_live(|object, bytes| {
        // SAFETY: the caller's promise.
        end = unsafe { visit(context, object.as_ptr().cast(), bytes) };
        if end == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    end
}

/// # Safety
/// `heap` must be null or a heap. No thread may use the heap or its memory any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_destroy(heap: *mut Object) {
    // SAFETY: the caller's promise.
    if !heap.is_null() && unsafe { Handle::take(heap) }.is_none() {
        errno::set(libc::EINVAL);
    }
}

/// # Safety
/// `heap` must be null or a heap.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_malloc(heap: *const Object, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { uslab_heap_aligned_alloc(heap, malloc::ALIGN, size) }
}

/// # Safety
/// As [`uslab_heap_malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_aligned_alloc(heap: *const Object, align: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(heap) }) else { return failure::null(libc::EINVAL) };
    if !align.is_power_of_two() {
        return failure::null(libc::EINVAL);
    }
    match inside.alloc(size, align) {
        Some(object) => object.as_ptr().cast(),
        None => failure::null(libc::ENOMEM),
    }
}

/// # Safety
/// As [`uslab_heap_malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_calloc(heap: *const Object, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return failure::null(libc::ENOMEM) };
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(heap) }) else { return failure::null(libc::EINVAL) };
    match inside.alloc_zeroed(bytes, malloc::ALIGN) {
        Some(object) => object.as_ptr().cast(),
        None => failure::null(libc::ENOMEM),
    }
}

/// # Safety
/// As [`uslab_heap_malloc`]; `pointer` must be null or come from this heap.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_realloc(
    heap: *const Object,
    pointer: *mut c_void,
    size: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        if pointer.is_null() || Handle::get(heap).is_none() {
            return uslab_heap_malloc(heap, size);
        }
        let old = malloc::usable_size(pointer.cast());
        if old == 0 {
            return failure::null(libc::EINVAL);
        }
        if Class::of(size).is_some_and(|class| class.bytes() == old) {
            return pointer;
        }
        let new = uslab_heap_malloc(heap, size);
        if !new.is_null() {
            core::ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast::<u8>(), old.min(size));
            malloc::free(pointer.cast());
        }
        new
    }
}

/// # Safety
/// As [`uslab_heap_malloc`]; `pointer` must be null or come from this heap and not be used any
/// more.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_heap_free(heap: *const Object, pointer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        if Handle::get(heap).is_none() {
            return errno::set(libc::EINVAL);
        }
        malloc::free(pointer.cast());
    }
}

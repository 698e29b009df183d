//! The fast paths as plain functions, for `cargo xtask golden`: it disassembles this program and
//! compares what a call executes with the golden file.

use core::ptr::NonNull;
use uslab::{Cache, malloc};

type Object = [u64; 32];
static CACHE: Cache<Object> = Cache::new("golden");

/// A typed cache's allocation.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn golden_cache_alloc() -> *mut Object {
    CACHE.alloc().map_or(core::ptr::null_mut(), NonNull::as_ptr)
}

/// A typed cache's free.
///
/// # Safety
/// `object` must come from [`golden_cache_alloc`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn golden_cache_free(object: NonNull<Object>) {
    // SAFETY: the caller's promise.
    unsafe { CACHE.free(object) }
}

/// `malloc` of a size known at run time.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn golden_malloc(size: usize) -> *mut u8 {
    malloc::malloc(size)
}

/// `free`, by the page map.
///
/// # Safety
/// `pointer` must come from [`golden_malloc`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn golden_free(pointer: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { malloc::free(pointer) }
}

/// `free` with the size.
///
/// # Safety
/// `pointer` must come from [`golden_malloc`] with this size.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn golden_free_sized(pointer: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { malloc::free_sized(pointer, size) }
}

fn main() {
    // Calls each function, so that the linker keeps it.
    let object = golden_cache_alloc();
    let memory = golden_malloc(64);
    let sized = golden_malloc(64);
    if let Some(object) = NonNull::new(object) {
        // SAFETY: each object is freed where it was allocated, once.
        unsafe {
            golden_cache_free(object);
            golden_free(memory);
            golden_free_sized(sized, 64);
        }
    }
}

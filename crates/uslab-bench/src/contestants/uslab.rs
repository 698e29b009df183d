//! uslab, as its users call it.
//!
//! Its typed caches are a `static Cache<T>` a size, in two ways of calling. *Inlined* is how Rust uses
//! it, the fast path in the caller's loop; it is the subject of the typed rows. *Called* is the same
//! code behind a C function, as C programs meet it, so that the tables show what inlining is worth.
//!
//! Its malloc is always behind C functions, which hold what `uslab_malloc` and `uslab_free` of the C
//! library hold, compiled on their own as for the peers.
//!
//! Must never: give a cache what a user's `static Cache<T>` has not (prefill, a tuned capacity); let
//! the compiler see a size and a call of malloc together, which no peer's caller can.

use super::{About, Contestant};

/// The object sizes there is a cache for.
pub const SIZES: &[usize] = &[16, 64, 256, 1024, 4096];

/// The workspace has one version for all its crates. The mode stands with each run.
fn about(name: &str, build: &str) -> About {
    About::new(name, env!("CARGO_PKG_VERSION"), build)
}

macro_rules! typed_cache {
    ($module:ident, $size:literal) => {
        pub mod $module {
            use super::{About, Contestant, about};
            use std::ptr::NonNull;
            use std::slice;
            use uslab::Cache;

            /// As aligned as what malloc returns.
            #[repr(C, align(16))]
            struct Object([u8; $size]);

            static CACHE: Cache<Object> = Cache::new(concat!("bench-", $size));

            #[inline(always)]
            fn allocate() -> *mut u8 {
                CACHE.alloc().map_or(std::ptr::null_mut(), |object| object.as_ptr().cast())
            }

            /// # Safety
            /// `object` is live and of `CACHE`.
            #[inline(always)]
            unsafe fn release(object: *mut u8) {
                // SAFETY: the caller's promise; a live object is not null.
                unsafe { CACHE.free(NonNull::new_unchecked(object.cast())) }
            }

            pub struct Inlined;

            impl Contestant for Inlined {
                const NAME: &'static str = "uslab cache";

                fn about() -> About {
                    about(Self::NAME, "Cache<T> as a static, inlined in Rust")
                }

                #[inline(always)]
                fn alloc(_size: usize) -> *mut u8 {
                    allocate()
                }

                #[inline(always)]
                unsafe fn free(pointer: *mut u8, _size: usize) {
                    // SAFETY: the caller's promise is the same.
                    unsafe { release(pointer) }
                }

                #[inline(always)]
                fn alloc_bulk(_size: usize, objects: &mut [*mut u8]) -> bool {
                    let (data, n) = (objects.as_mut_ptr().cast::<*mut Object>(), objects.len());
                    // SAFETY: the same pointers, of another pointee; `objects` is borrowed for as long.
                    CACHE.alloc_bulk(unsafe { slice::from_raw_parts_mut(data, n) })
                }

                #[inline(always)]
                unsafe fn free_bulk(_size: usize, objects: &[*mut u8]) {
                    let (data, n) = (objects.as_ptr().cast::<*mut Object>(), objects.len());
                    // SAFETY: the same pointers, of another pointee; each is live and of CACHE by the
                    // caller's promise.
                    unsafe { CACHE.free_bulk(slice::from_raw_parts(data, n)) }
                }

                fn flush(_size: usize) {
                    CACHE.shrink();
                }
            }

            pub struct Called;

            #[inline(never)]
            extern "C" fn called_alloc() -> *mut u8 {
                allocate()
            }

            /// # Safety
            /// As for `release`.
            #[inline(never)]
            unsafe extern "C" fn called_free(object: *mut u8) {
                // SAFETY: the caller's promise is the same.
                unsafe { release(object) }
            }

            impl Contestant for Called {
                const NAME: &'static str = "uslab cache, called";

                fn about() -> About {
                    about(Self::NAME, "Cache<T> as a static, each operation behind a C function")
                }

                #[inline(always)]
                fn alloc(_size: usize) -> *mut u8 {
                    called_alloc()
                }

                #[inline(always)]
                unsafe fn free(pointer: *mut u8, _size: usize) {
                    // SAFETY: the caller's promise is the same.
                    unsafe { called_free(pointer) }
                }

                #[inline(always)]
                fn alloc_bulk(size: usize, objects: &mut [*mut u8]) -> bool {
                    Inlined::alloc_bulk(size, objects)
                }

                #[inline(always)]
                unsafe fn free_bulk(size: usize, objects: &[*mut u8]) {
                    // SAFETY: the caller's promise is the same.
                    unsafe { Inlined::free_bulk(size, objects) }
                }

                fn flush(size: usize) {
                    Inlined::flush(size);
                }
            }
        }
    };
}

typed_cache!(cache_16, 16);
typed_cache!(cache_64, 64);
typed_cache!(cache_256, 256);
typed_cache!(cache_1024, 1024);
typed_cache!(cache_4096, 4096);

pub struct UslabMalloc;

/// How the library runs in this process. It chooses when it is first used, and says "locked" before: so it is
/// used first.
pub fn mode() -> uslab::Mode {
    let pointer = malloc(1);
    // SAFETY: allocated a line above; null is allowed.
    unsafe { free(pointer) };
    uslab::mode()
}

#[inline(never)]
extern "C" fn malloc(size: usize) -> *mut u8 {
    uslab::malloc::malloc_for::<uslab::malloc::Program>(size)
}

/// # Safety
/// `pointer` is live and from `malloc`.
#[inline(never)]
unsafe extern "C" fn free(pointer: *mut u8) {
    // SAFETY: the caller's promise is the same.
    unsafe { uslab::malloc::free(pointer) }
}

/// # Safety
/// `pointer` is live and from `malloc(size)`.
#[inline(never)]
unsafe extern "C" fn free_sized(pointer: *mut u8, size: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { uslab::malloc::free_sized(pointer, size) }
}

impl Contestant for UslabMalloc {
    const NAME: &'static str = "uslab malloc";

    fn about() -> About {
        about(Self::NAME, "malloc and free, each behind a C function")
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        malloc(size)
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { free(pointer) }
    }

    #[inline(always)]
    unsafe fn free_sized(pointer: *mut u8, size: usize) {
        // SAFETY: the caller's promise, and `size` is what was asked for.
        unsafe { free_sized(pointer, size) }
    }

    #[inline(always)]
    fn alloc_bulk(size: usize, objects: &mut [*mut u8]) -> bool {
        uslab::malloc::malloc_bulk(size, objects)
    }

    #[inline(always)]
    unsafe fn free_bulk(_size: usize, objects: &[*mut u8]) {
        // SAFETY: the caller's promise is the same.
        unsafe { uslab::malloc::free_bulk(objects) }
    }
}

//! uslab's typed caches: a `static Cache<T>` a size, in two ways of calling. *Inlined* is how Rust uses it,
//! the fast path in the caller's loop; it is the subject of the typed rows. *Called* is the same code behind
//! a C function, as C programs meet it, so that the tables show what inlining alone is worth.
//!
//! Must never: be given anything a user's `static Cache<T>` has not (no prefill, no tuned capacity).

use super::{About, Contestant, Entry};

/// The object sizes there is a cache for.
pub const SIZES: &[usize] = &[16, 64, 256, 1024, 4096];

/// The typed cache of `size`: inlined, then called. `None`: there is none of that size.
pub fn entries(size: usize) -> Option<[Entry; 2]> {
    Some(match size {
        16 => cache_16::ENTRIES,
        64 => cache_64::ENTRIES,
        256 => cache_256::ENTRIES,
        1024 => cache_1024::ENTRIES,
        4096 => cache_4096::ENTRIES,
        _ => return None,
    })
}

fn about(name: &'static str, build: &str) -> About {
    About { name, version: super::uslab_malloc::version(), build: build.into(), warning: String::new() }
}

macro_rules! typed_cache {
    ($module:ident, $size:literal) => {
        mod $module {
            use super::{About, Contestant, Entry, about};
            use std::ptr::NonNull;
            use std::slice;
            use uslab::Cache;

            pub const ENTRIES: [Entry; 2] = [Entry::of::<Inlined>(), Entry::of::<Called>()];

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

            struct Inlined;

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

            struct Called;

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

//! uslab, as its users call it.
//!
//! Its typed caches are a `static Cache<T>` a size, called in two ways. *Inlined* has the fast path
//! in the caller's loop, as in Rust programs; it is the subject of the typed rows. *Called* is the
//! same code behind a C function, as in C programs, and shows the gain of inlining.
//!
//! Its malloc is always behind C functions with the code of the C library's `uslab_malloc` and
//! `uslab_free`, compiled on their own as for the peers.
//!
//! Must never: give a cache an advantage over a user's `static Cache<T>` (prefill, a tuned
//! capacity); let the compiler see a size and a call of malloc together, which it cannot for peers.

use super::{About, Contestant};
use std::ptr::NonNull;
use std::slice;
use uslab::Cache;

/// The workspace has one version for all its crates. The mode stands with each run.
pub(super) fn about(name: &str, build: &str) -> About {
    About::new(name, env!("CARGO_PKG_VERSION"), build)
}

/// As aligned as what malloc returns.
#[repr(C, align(16))]
pub struct Object<const SIZE: usize>([u8; SIZE]);

/// The cache of objects of a size of [`SIZES`].
pub trait Cached: Sized + 'static {
    fn cache() -> &'static Cache<Self>;
}

macro_rules! caches {
    ($($size:literal),*) => {
        /// The object sizes there is a cache for.
        pub const SIZES: &[usize] = &[$($size),*];

        $(
            impl Cached for Object<$size> {
                #[inline(always)]
                fn cache() -> &'static Cache<Self> {
                    static CACHE: Cache<Object<$size>> = Cache::new(concat!("bench-", $size));
                    &CACHE
                }
            }
        )*
    };
}

caches!(16, 64, 256, 1024, 4096);

/// The cache of `Object<SIZE>`, inlined or called.
pub struct Typed<const SIZE: usize, const CALLED: bool>;

#[inline(always)]
fn allocate<const SIZE: usize>() -> *mut u8
where
    Object<SIZE>: Cached,
{
    Object::<SIZE>::cache().alloc().map_or(std::ptr::null_mut(), |object| object.as_ptr().cast())
}

/// # Safety
/// `object` is live and of the cache.
#[inline(always)]
unsafe fn release<const SIZE: usize>(object: *mut u8)
where
    Object<SIZE>: Cached,
{
    // SAFETY: the caller's promise; a live object is not null.
    unsafe { Object::<SIZE>::cache().free(NonNull::new_unchecked(object.cast())) }
}

#[inline(never)]
extern "C" fn called_alloc<const SIZE: usize>() -> *mut u8
where
    Object<SIZE>: Cached,
{
    allocate::<SIZE>()
}

/// # Safety
/// As for `release`.
#[inline(never)]
unsafe extern "C" fn called_free<const SIZE: usize>(object: *mut u8)
where
    Object<SIZE>: Cached,
{
    // SAFETY: the caller's promise is the same.
    unsafe { release::<SIZE>(object) }
}

impl<const SIZE: usize, const CALLED: bool> Contestant for Typed<SIZE, CALLED>
where
    Object<SIZE>: Cached,
{
    const NAME: &'static str = if CALLED { "uslab cache, called" } else { "uslab cache" };

    fn about() -> About {
        let way = if CALLED { "each operation behind a C function" } else { "inlined in Rust" };
        about(Self::NAME, &format!("Cache<T> as a static, {way}"))
    }

    #[inline(always)]
    fn alloc(_size: usize) -> *mut u8 {
        if CALLED { called_alloc::<SIZE>() } else { allocate::<SIZE>() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { if CALLED { called_free::<SIZE>(pointer) } else { release::<SIZE>(pointer) } }
    }

    #[inline(always)]
    fn alloc_bulk(_size: usize, objects: &mut [*mut u8]) -> bool {
        let (data, n) = (objects.as_mut_ptr().cast::<*mut Object<SIZE>>(), objects.len());
        // SAFETY: the same pointers, of another pointee; `objects` is borrowed for as long.
        Object::cache().alloc_bulk(unsafe { slice::from_raw_parts_mut(data, n) })
    }

    #[inline(always)]
    unsafe fn free_bulk(_size: usize, objects: &[*mut u8]) {
        let (data, n) = (objects.as_ptr().cast::<*mut Object<SIZE>>(), objects.len());
        // SAFETY: the same pointers, of another pointee; each is live and of the cache by the
        // caller's promise.
        unsafe { Object::cache().free_bulk(slice::from_raw_parts(data, n)) }
    }

    fn flush(_size: usize) {
        Object::<SIZE>::cache().shrink();
    }
}

pub struct UslabMalloc;

/// The library's mode in this process. The library chooses it at its first use, and reports
/// "locked" before; so this uses it first.
pub fn mode() -> uslab::Mode {
    let pointer = malloc(1);
    // SAFETY: allocated a line above; null is allowed.
    unsafe { free(pointer) };
    uslab::mode()
}

#[inline(never)]
extern "C" fn malloc(size: usize) -> *mut u8 {
    uslab::internal::entry::malloc_for::<uslab::internal::entry::Program>(size)
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

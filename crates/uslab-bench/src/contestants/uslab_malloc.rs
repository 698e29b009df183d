//! uslab's general allocator, as a program meets it: each call a plain call of a C function that is compiled
//! on its own, as for the peers. The functions here hold what `uslab_malloc` and `uslab_free` of the C
//! library hold; link-time optimisation may not inline them.
//!
//! Must never: let the compiler see size and call together, which no peer's caller can.

use super::{About, Contestant, Entry};

pub const CALLED: Entry = Entry::of::<UslabMalloc>();

pub struct UslabMalloc;

/// The version of the library in this program: the workspace has one for all its crates. The mode stands with
/// each run.
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").into()
}

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
        About {
            name: Self::NAME,
            version: version(),
            build: "malloc and free, each behind a C function".into(),
            warning: String::new(),
        }
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

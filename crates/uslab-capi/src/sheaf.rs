//! Prefilled sheaves: `uslab_cache_prefill` and `uslab_sheaf_*`.

use crate::abi::{USLAB_NORECLAIM, USLAB_ZERO};
use crate::cache::{self, Cache};
use crate::failure;
use crate::handle::{Handle, Kind};
use core::ffi::{c_int, c_uint, c_void};
use uslab::RawPrefilled;

/// The target of a `uslab_sheaf *`. Its objects count as live, so the cache cannot be destroyed
/// before the sheaf is returned.
pub struct Sheaf {
    store: RawPrefilled<'static>,
    cache: &'static Cache,
}

impl Kind for Sheaf {
    const KIND: u64 = u64::from_le_bytes(*b"uslabshf");
}

/// Prefills as the flags ask, which the caller has checked.
fn prefill(cache: &'static Cache, flags: c_uint, n: usize) -> Option<RawPrefilled<'static>> {
    if flags & USLAB_NORECLAIM == 0 { cache.raw.prefill(n) } else { cache.raw.prefill_noreclaim(n) }
}

/// # Safety
/// `cache` must be null or a cache.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_prefill(
    cache: *const Handle<Cache>,
    flags: c_uint,
    n: usize,
) -> *mut Handle<Sheaf> {
    // SAFETY: the caller's promise. The cache is not destroyed while the sheaf holds objects, and
    // no function reads it when the sheaf holds none.
    let Some(cache) = (unsafe { Handle::get(cache) }) else { return failure::null(libc::EINVAL) };
    if flags & !USLAB_NORECLAIM != 0 {
        return failure::null(libc::EINVAL);
    }
    let Some(store) = prefill(cache, flags, n) else { return failure::null(libc::ENOMEM) };
    let inside = Sheaf { store, cache };
    // Without memory, `make` returns the sheaf, and its drop frees the objects.
    let handle =
        if flags & USLAB_NORECLAIM == 0 { Handle::make(inside) } else { Handle::make_noreclaim(inside) };
    handle.unwrap_or_else(|_| failure::null(libc::ENOMEM))
}

/// # Safety
/// `sheaf` must be null or a sheaf that no other thread uses meanwhile.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_sheaf_alloc(sheaf: *mut Handle<Sheaf>, flags: c_uint) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get_mut(sheaf) }) else { return failure::null(libc::EINVAL) };
    if inside.store.is_empty() {
        return failure::null(libc::ENOMEM);
    }
    if cache::refuses_flags(inside.cache, flags) {
        return failure::null(libc::EINVAL);
    }
    let Some(object) = inside.store.alloc() else { return failure::null(libc::ENOMEM) };
    if flags & USLAB_ZERO != 0 {
        // SAFETY: the object is the caller's, of that many bytes.
        unsafe { object.write_bytes(0, inside.cache.raw.core().user_bytes()) };
    }
    object.as_ptr().cast()
}

/// # Safety
/// As [`uslab_sheaf_alloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_sheaf_count(sheaf: *const Handle<Sheaf>) -> usize {
    // SAFETY: the caller's promise.
    unsafe { Handle::get(sheaf) }.map_or(0, |inside| inside.store.len())
}

/// # Safety
/// As [`uslab_sheaf_alloc`], and the cache must live.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_sheaf_refill(sheaf: *mut Handle<Sheaf>, flags: c_uint, n: usize) -> c_int {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get_mut(sheaf) }) else { return failure::code(libc::EINVAL) };
    if flags & !USLAB_NORECLAIM != 0 {
        return failure::code(libc::EINVAL);
    }
    if inside.store.len() >= n {
        return 0;
    }
    let Some(store) = prefill(inside.cache, flags, n) else { return failure::code(libc::ENOMEM) };
    inside.store = store;
    0
}

/// # Safety
/// `sheaf` must be null or a sheaf that no thread uses any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_sheaf_return(sheaf: *mut Handle<Sheaf>) {
    if sheaf.is_null() {
        return;
    }
    let errno = uslab::internal::errno::Preserved::new();
    // SAFETY: the caller's promise.
    if unsafe { Handle::take(sheaf) }.is_none() {
        drop(errno);
        uslab::internal::errno::set(libc::EINVAL);
    }
}

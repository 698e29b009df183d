//! Sheaves of the program: `uslab_cache_prefill`, `uslab_cache_local` and `uslab_sheaf_*`.
//!
//! A handle begins with the address of the window that pops and pushes go through, so that both
//! kinds share the fast functions.

use crate::abi::{USLAB_NORECLAIM, USLAB_ZERO};
use crate::cache::{self, Cache};
use crate::failure;
use crate::handle::{Handle, Kind};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::NonNull;
use uslab::internal::{Window, errno};
use uslab::{RawLocal, RawPrefilled};

/// The target of a `uslab_sheaf *`. Objects of a prefilled one count as live, so the cache cannot
/// be destroyed before the sheaf is returned.
#[repr(C)]
pub struct Sheaf {
    /// The window of the fast functions: `own`, or that of the local sheaf. Null until the first
    /// slow call, because a handle's address is known only then.
    window: *const Window,
    /// The window on a prefilled sheaf.
    own: Window,
    store: Store,
    cache: &'static Cache,
}

enum Store {
    /// A known number of objects, some of them perhaps popped or pushed through the window.
    Prefilled(RawPrefilled<'static>),
    /// As many as are needed.
    Local(RawLocal<'static>),
}

impl Kind for Sheaf {
    const KIND: u64 = u64::from_le_bytes(*b"uslabshf");
}

impl Sheaf {
    fn new(store: Store, cache: &'static Cache) -> Sheaf {
        Sheaf { window: core::ptr::null(), own: Window::closed(), store, cache }
    }

    /// Opens the window for the fast functions. The sheaf stays at its address from now on.
    fn open(&mut self) {
        self.window = match &mut self.store {
            Store::Prefilled(store) => {
                // SAFETY: `close` closes it before the store is used, or ends.
                unsafe { store.open(&self.own) };
                &self.own
            }
            Store::Local(store) => store.window(),
        };
    }

    /// Runs `change` while the store knows all its objects.
    fn change<R>(&mut self, change: impl FnOnce(&mut Store, &'static Cache) -> R) -> R {
        self.close();
        let result = change(&mut self.store, self.cache);
        self.open();
        result
    }

    /// Lets the store know all its objects.
    fn close(&mut self) {
        if let Store::Prefilled(store) = &mut self.store {
            // SAFETY: `open` opened it for this store, or it is closed.
            unsafe { store.close(&mut self.own) };
        }
    }
}

impl Drop for Sheaf {
    fn drop(&mut self) {
        self.close();
    }
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
    let inside = Sheaf::new(Store::Prefilled(store), cache);
    // Without memory, `make` returns the sheaf, and its drop frees the objects.
    let handle =
        if flags & USLAB_NORECLAIM == 0 { Handle::make(inside) } else { Handle::make_noreclaim(inside) };
    handle.unwrap_or_else(|_| failure::null(libc::ENOMEM))
}

/// # Safety
/// `cache` must be null or a cache.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_local(cache: *const Handle<Cache>, flags: c_uint) -> *mut Handle<Sheaf> {
    // SAFETY: the caller's promise; the header asks that the cache outlives the sheaf.
    let Some(cache) = (unsafe { Handle::get(cache) }) else { return failure::null(libc::EINVAL) };
    if flags & !USLAB_NORECLAIM != 0 {
        return failure::null(libc::EINVAL);
    }
    let Some(store) = cache.raw.local() else { return failure::null(libc::ENOMEM) };
    let inside = Sheaf::new(Store::Local(store), cache);
    let handle =
        if flags & USLAB_NORECLAIM == 0 { Handle::make(inside) } else { Handle::make_noreclaim(inside) };
    handle.unwrap_or_else(|_| failure::null(libc::ENOMEM))
}

/// The word that tells whether a pointer that is not null is a sheaf's handle.
///
/// # Safety
/// As [`Handle::get`].
#[inline(always)]
unsafe fn is_sheaf(sheaf: *mut Handle<Sheaf>) -> bool {
    // SAFETY: the caller's promise: memory of a handle, which starts with the word.
    unsafe { !sheaf.is_null() && sheaf.cast::<u64>().read_unaligned() == Sheaf::KIND }
}

/// # Safety
/// `sheaf` must be null or a sheaf that no other thread uses meanwhile.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_sheaf_alloc(sheaf: *mut Handle<Sheaf>, flags: c_uint) -> *mut c_void {
    // A pop never reclaims, so USLAB_NORECLAIM concerns the slow path alone.
    // SAFETY: the caller's promise; the words of a sheaf that lives.
    if flags & !USLAB_NORECLAIM == 0 && unsafe { is_sheaf(sheaf) } {
        // SAFETY: as above; null or a window of the sheaf, which is the caller's alone.
        if let Some(object) = unsafe { (*sheaf).value.window.as_ref().and_then(|window| window.pop()) } {
            return object.as_ptr().cast();
        }
    }
    // SAFETY: the caller's promise.
    unsafe { alloc_slow(sheaf, flags) }
}

/// # Safety
/// As [`uslab_sheaf_alloc`].
#[cold]
#[inline(never)]
unsafe extern "C" fn alloc_slow(sheaf: *mut Handle<Sheaf>, flags: c_uint) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get_mut(sheaf) }) else { return failure::null(libc::EINVAL) };
    if cache::has_unknown_flags(flags) {
        return failure::null(libc::EINVAL);
    }
    // A local sheaf takes more from its cache. A prefilled one does not, and the cache of one that
    // is used up may be gone.
    let is_used_up = |store: &mut Store, _| matches!(store, Store::Prefilled(store) if store.is_empty());
    if inside.change(is_used_up) {
        return failure::null(libc::ENOMEM);
    }
    if cache::refuses_flags(inside.cache, flags) {
        return failure::null(libc::EINVAL);
    }
    let object = inside.change(|store, _| match store {
        Store::Prefilled(store) => store.alloc(),
        Store::Local(store) if flags & USLAB_NORECLAIM != 0 => store.alloc_noreclaim(),
        Store::Local(store) => store.alloc(),
    });
    let Some(object) = object else { return failure::null(libc::ENOMEM) };
    if flags & USLAB_ZERO != 0 {
        // SAFETY: the object is the caller's, of that many bytes.
        unsafe { object.write_bytes(0, inside.cache.raw.core().user_bytes()) };
    }
    object.as_ptr().cast()
}

/// # Safety
/// As [`uslab_sheaf_alloc`]; `object` must be null or an object of the sheaf's cache that no thread
/// uses. The cache must live.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_sheaf_free(sheaf: *mut Handle<Sheaf>, object: *mut c_void) {
    // SAFETY: the caller's promise; the words of a sheaf that lives.
    if let Some(object) = NonNull::new(object.cast())
        // SAFETY: the caller's promise.
        && unsafe { is_sheaf(sheaf) }
    {
        // SAFETY: as above; null or a window of the sheaf, which is the caller's alone.
        if unsafe { (*sheaf).value.window.as_ref().is_some_and(|window| window.push(object)) } {
            return;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { free_slow(sheaf, object) }
}

/// # Safety
/// As [`uslab_sheaf_free`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(sheaf: *mut Handle<Sheaf>, object: *mut c_void) {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get_mut(sheaf) }) else { return errno::set(libc::EINVAL) };
    let Some(object) = NonNull::new(object.cast::<u8>()) else { return };
    let _errno = errno::Preserved::new();
    if inside.window.is_null() {
        inside.open();
        // SAFETY: just opened; the caller's promise.
        if unsafe { (*inside.window).push(object) } {
            return;
        }
    }
    inside.change(|store, cache| match store {
        // SAFETY: the caller's promise.
        Store::Prefilled(_) => unsafe { cache.raw.free(object) },
        // SAFETY: as above.
        Store::Local(store) => unsafe { store.free(object) },
    });
}

/// # Safety
/// As [`uslab_sheaf_alloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_sheaf_count(sheaf: *const Handle<Sheaf>) -> usize {
    // SAFETY: the caller's promise.
    unsafe { Handle::get(sheaf) }.map_or(0, |inside| match &inside.store {
        Store::Prefilled(_) if inside.own.is_open() => inside.own.count(),
        Store::Prefilled(store) => store.len(),
        Store::Local(store) => store.held(),
    })
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
    inside.change(|store, cache| {
        let Store::Prefilled(store) = store else { return failure::code(libc::EINVAL) };
        if store.len() < n {
            let Some(full) = prefill(cache, flags, n) else { return failure::code(libc::ENOMEM) };
            *store = full;
        }
        0
    })
}

/// # Safety
/// `sheaf` must be null or a sheaf that no thread uses any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_sheaf_return(sheaf: *mut Handle<Sheaf>) {
    if sheaf.is_null() {
        return;
    }
    let preserved = errno::Preserved::new();
    // SAFETY: the caller's promise.
    if unsafe { Handle::take(sheaf) }.is_none() {
        drop(preserved);
        errno::set(libc::EINVAL);
    }
}

//! Prefilled sheaves: objects reserved in advance, so that a known number of allocations cannot
//! fail.

use super::body::Core;
use super::hooks;
use crate::os;
use crate::pages::{self, PAGE_BYTES};
use crate::percpu::free_private;
use crate::percpu::local::Window;
use crate::percpu::sheaf::{self, Owned, Size};
use crate::rseq::{SHEAF_HEADER_BYTES, Sheaf};
use core::marker::PhantomData;
use core::ptr::NonNull;

/// Whether an allocation reclaims when memory is used up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reclaim {
    Yes,
    No,
}

/// A private sheaf of a [`super::RawCache`]: objects reserved for one thread at a time. Dropping it
/// returns the remaining objects to the cache, which may take locks and make system calls.
///
/// ```
/// let cache = uslab::CacheBuilder::new("node").build_raw(64).unwrap();
/// let mut nodes = cache.prefill(3).unwrap();
/// let node = nodes.alloc().unwrap(); // cannot fail, and so for two more
/// // SAFETY: from this cache, unused.
/// unsafe { cache.free(node) };
/// assert_eq!(nodes.len(), 2);
/// ```
pub struct RawPrefilled<'a> {
    sheaf: *mut Sheaf,
    core: &'static Core,
    cache: PhantomData<&'a ()>,
}

// SAFETY: the sheaf is the value's own, and objects may be freed on any thread.
unsafe impl Send for RawPrefilled<'_> {}

impl<'a> RawPrefilled<'a> {
    pub(super) fn new(core: &'static Core, n: usize, reclaim: Reclaim) -> Option<Self> {
        let sheaf = empty_sheaf(n, reclaim)?;
        // From here on, dropping `this` frees the sheaf.
        let this = RawPrefilled { sheaf, core, cache: PhantomData };
        let mut owned = Owned(sheaf);
        let places = &mut owned.places()[..n];
        let filled = match reclaim {
            Reclaim::Yes => core.alloc_bulk(places),
            Reclaim::No => core.alloc_bulk_noreclaim(places),
        };
        if !filled {
            return None;
        }
        owned.set_count(n);
        Some(this)
    }

    /// Returns the number of objects left.
    pub fn len(&self) -> usize {
        Owned(self.sheaf).count()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes an object, uninitialised or constructed; `None` if none is left. Makes no system call,
    /// takes no lock and never blocks.
    pub fn alloc(&mut self) -> Option<NonNull<u8>> {
        let mut out = [core::ptr::null_mut()];
        Owned(self.sheaf).pop_into(&mut out);
        NonNull::new(out[0])
    }

    /// Points `window` to the objects, for the C interface, unless frees must be checked. A free
    /// into the window leaves the object in use for the heap profile, like all objects of the
    /// sheaf.
    ///
    /// # Safety
    /// The window must be closed again, by [`RawPrefilled::close`] of this value, before any other
    /// use of this value and before its end.
    #[doc(hidden)]
    pub unsafe fn open(&mut self, window: &Window) {
        if !self.core.checks_frees() {
            // SAFETY: the sheaf is this value's own.
            unsafe { window.open(self.sheaf) };
        }
    }

    /// Takes over what was popped and pushed through `window`, and closes it.
    ///
    /// # Safety
    /// `window` must be closed, or have been opened by this value.
    #[doc(hidden)]
    pub unsafe fn close(&mut self, window: &mut Window) {
        let window = core::mem::replace(window, Window::closed());
        if window.is_open() {
            Owned(self.sheaf).set_count(window.count());
        }
    }
}

/// A sheaf with room for `n` objects, which may be large itself.
fn empty_sheaf(n: usize, reclaim: Reclaim) -> Option<*mut Sheaf> {
    let node = os::cpu::node_of(os::cpu::current());
    let mut sheaf = sheaf::alloc_holding(n.max(1), node);
    // No sheaf can hold more objects, so a reclaim would be in vain.
    if sheaf.is_null() && reclaim == Reclaim::Yes && n <= u32::MAX as usize {
        let _errno = os::errno::Preserved::new();
        let slab_bytes = sheaf::slabs()
            .get(usize::from(Size::holding(n).0))
            .map_or(0, |slabs| slabs.geometry().pages() * PAGE_BYTES);
        let bytes = n * size_of::<*mut u8>() + SHEAF_HEADER_BYTES;
        if pages::is_possible(bytes.div_ceil(PAGE_BYTES), 0) {
            (hooks::get().short)(bytes.max(slab_bytes), &mut || {
                sheaf = sheaf::alloc_holding(n.max(1), node);
                !sheaf.is_null()
            });
        }
    }
    (!sheaf.is_null()).then_some(sheaf)
}

impl Drop for RawPrefilled<'_> {
    fn drop(&mut self) {
        let mut owned = Owned(self.sheaf);
        if self.core.sees_frees() {
            // SAFETY: the objects are this value's own.
            unsafe { self.core.free_bulk(owned.objects()) };
            owned.set_count(0);
        }
        // SAFETY: the sheaf is this value's own, filled from this cache.
        unsafe { free_private(&self.core.cpu, self.sheaf) };
    }
}

/// A private sheaf of a [`super::Cache`]; see [`RawPrefilled`].
///
/// Its objects are of `T` alone, not of a type with shorter lifetimes:
///
/// ```compile_fail
/// fn shortens<'a>(sheaf: uslab::Prefilled<'a, &'static str>) -> uslab::Prefilled<'a, &'a str> {
///     sheaf
/// }
/// ```
pub struct Prefilled<'a, T> {
    raw: RawPrefilled<'a>,
    /// Invariant, as [`super::Cache`] is.
    typed: PhantomData<fn(T) -> T>,
}

impl<'a, T> Prefilled<'a, T> {
    pub(super) fn new(core: &'static Core, n: usize) -> Option<Self> {
        Some(Prefilled { raw: RawPrefilled::new(core, n, Reclaim::Yes)?, typed: PhantomData })
    }

    /// Returns the number of objects left.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// As [`RawPrefilled::alloc`]. The object is freed with [`super::Cache::free`].
    pub fn alloc(&mut self) -> Option<NonNull<T>> {
        self.raw.alloc().map(NonNull::cast)
    }
}

//! Sampled objects: a few allocations that a layer above serves, from memory of its own.
//!
//! ```text
//!   malloc ── no object in this CPU's sheaf ──▶ serve ──▶ sampler? ── null ──▶ the size class
//!                                                            └── object, its page owned by OWNER
//!   free ── page map ──▶ OWNER: dummy slots ──▶ slow path ──▶ sampler
//! ```
//!
//! The fast path does not know of them: an allocation is sampled only on the slow path, and the
//! owner of a sampled object's page has no sheaf, so that a free takes the slow path too.
//!
//! A sized free of a small object looks nothing up: it pushes the object into the sheaf of its
//! size's class. The C functions first test whether an object of that class can start at the
//! address. So while samples are possible, the slabs of these classes leave their last page unused
//! ([`tail_bytes`]), and the sampler serves these sizes from last pages of blocks as large as a
//! slab: the test fails there. Rust's sized free tests nothing; see [`take_for_rust`].

use super::classes::{Class, MAX_DIRECT_BYTES, SLAB_ORDER, STEP_BYTES};
use crate::cache::debugged::Family;
use crate::cache::registry::SAMPLED_ID;
use crate::cache::{hooks, start};
use crate::os;
use crate::pages;
use crate::rseq::Owner;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst};

/// The owner of the pages of sampled objects.
pub(crate) const OWNER: Owner = Owner::plain(SAMPLED_ID);

/// Largest object of which a sized free looks nothing up.
pub(crate) const MAX_UNSEEN_BYTES: usize = MAX_DIRECT_BYTES;
/// A sampled object of up to [`MAX_UNSEEN_BYTES`] starts in the last system page of a block of this
/// size, on whose multiple the block starts.
pub(crate) const BLOCK_BYTES: usize = pages::PAGE_BYTES << SLAB_ORDER;

/// The functions of the layer that serves sampled objects. They preserve `errno`.
pub(crate) struct Sampler {
    /// Returns an object of so many bytes on a boundary of the second argument, a power of two;
    /// null if this allocation is no sample.
    pub alloc: fn(usize, usize, Family) -> *mut u8,
    /// Frees the object at a pointer into a page that [`OWNER`] owns, or reports a misuse.
    pub free: fn(*mut u8),
    /// The requested bytes of the object that starts at a pointer into such a page, if one does.
    pub usable_bytes: fn(*const u8) -> Option<usize>,
    /// Takes the locks of the layer for a fork.
    pub before_fork: fn(),
    /// Undoes `before_fork`; the argument is true in the child.
    pub after_fork: fn(bool),
}

static SAMPLER: AtomicPtr<Sampler> = AtomicPtr::new(ptr::null_mut());

/// Whether a class up to [`MAX_UNSEEN_BYTES`] got a cache whose slabs use their last pages.
static HAS_FULL_SLABS: AtomicBool = AtomicBool::new(false);

fn sampler() -> Option<&'static Sampler> {
    // SAFETY: null, or a table that is never freed.
    unsafe { SAMPLER.load(SeqCst).as_ref() }
}

/// Installs the sampler, for the life of the process. The caller must hold no lock.
pub(crate) fn install(sampler: &'static Sampler) {
    super::install_hooks();
    // A fork takes the sampler's locks before it, and frees them after it.
    hooks::between_forks(|| SAMPLER.store(ptr::from_ref(sampler).cast_mut(), SeqCst));
}

/// Whether allocations may get guard pages, now or once the library is loaded.
pub(super) fn is_on() -> bool {
    start::guard_is_named() || sampler().is_some()
}

/// Bytes at the end of a slab that a class of objects of `bytes` bytes leaves unused.
pub(super) fn tail_bytes(bytes: usize) -> usize {
    if bytes > MAX_UNSEEN_BYTES {
        return 0;
    }
    if is_on() {
        return os::memory::page_bytes();
    }
    HAS_FULL_SLABS.store(true, SeqCst);
    // A sampler that was installed meanwhile may have taken samples already.
    if is_on() { os::memory::page_bytes() } else { 0 }
}

/// Takes a sample, for a caller whose frees look the object up or test its start: `size` bytes on a
/// boundary of `align`. `None` if this allocation is no sample.
#[inline]
pub(super) fn take(size: usize, align: usize, family: Family) -> Option<NonNull<u8>> {
    let sampler = sampler()?;
    if size <= MAX_UNSEEN_BYTES && align <= STEP_BYTES && HAS_FULL_SLABS.load(SeqCst) {
        return None;
    }
    NonNull::new((sampler.alloc)(size, align, family))
}

/// [`take`] for Rust: only objects whose sized free looks them up, and with all bytes of their size
/// class, because a `realloc` within the class leaves them in place.
#[inline]
pub(super) fn take_for_rust(size: usize, align: usize) -> Option<NonNull<u8>> {
    let sampler = sampler()?;
    if size <= MAX_UNSEEN_BYTES && align <= STEP_BYTES {
        return None;
    }
    let bytes = Class::of_aligned(size, align).map_or(size, Class::bytes);
    NonNull::new((sampler.alloc)(bytes, align, Family::Any))
}

/// Frees an object of the sampler.
pub(super) fn free(pointer: *mut u8) {
    if let Some(sampler) = sampler() {
        (sampler.free)(pointer);
    }
}

/// Usable bytes of an object of the sampler; `None` if none starts at `pointer`.
pub(super) fn usable_bytes(pointer: *const u8) -> Option<usize> {
    (sampler()?.usable_bytes)(pointer)
}

pub(super) fn lock_for_fork() {
    if let Some(sampler) = sampler() {
        (sampler.before_fork)();
    }
}

pub(super) fn unlock_after_fork(child: bool) {
    if let Some(sampler) = sampler() {
        (sampler.after_fork)(child);
    }
}

//! Caches of size classes, created by the first allocation from the class.

use super::body::Core;
use super::builder::CacheBuilder;
use super::life::{self, geometry};
use super::{debugged, registry, start};
use crate::pages::PAGE_BYTES;
use crate::slab::Geometry;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

/// The alignment of the objects of a class that packs them, unless its options name another.
const PACKED_ALIGN: usize = 16;

/// The cache that `place` points to. If that is null, creates the cache, with `options`, for
/// objects of `size` bytes. `None` if there is no memory.
pub(crate) fn class_core(
    options: &CacheBuilder<'_>,
    size: usize,
    place: &AtomicPtr<Core>,
) -> Option<&'static Core> {
    if !start::ensure() {
        return None;
    }
    let mut registry = registry::lock();
    // SAFETY: null or a core, which lives at its address for ever.
    if let Some(core) = unsafe { place.load(Acquire).as_ref() } {
        return Some(core);
    }
    // Objects with a record in front take as much more as their alignment.
    let is_packed = options.is_debuggable && debugged::packs(options.name);
    let align = if is_packed { PACKED_ALIGN } else { class_align(size) };
    let core = life::create(options, size, align, false, &mut registry).ok()?;
    place.store((&raw const *core).cast_mut(), Release);
    Some(core)
}

/// The geometry of the cache that [`class_core`] creates for objects of `size` bytes.
pub(crate) fn class_geometry(options: &CacheBuilder<'_>, size: usize) -> Option<Geometry> {
    geometry(options, size, class_align(size), None).ok()
}

/// The alignment that all objects of a class have: slabs are aligned to a page at least.
fn class_align(size: usize) -> usize {
    (1 << size.trailing_zeros()).min(PAGE_BYTES)
}

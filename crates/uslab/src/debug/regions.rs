//! The memory of the library's structures, for the test of wild writes.

pub use crate::os::region::Region;
use crate::{cache, pages};

/// Calls `visit` for each structure that an allocation or a free reads: slots, sheaves, barns,
/// lists, descriptors and bitmaps of slabs, caches, the registry, the page map, chunks, the buddy,
/// and the CPU page lists.
///
/// For tests. Takes the structures' locks one after another, and allocates nothing. No other thread
/// may use the library meanwhile.
pub fn for_each_region(mut visit: impl FnMut(Region)) {
    cache::registry::for_each_region(&mut visit);
    pages::for_each_region(&mut visit);
}

//! The memory of the page layer's structures; see [`crate::os::region`].

use super::{arena, buddy, cpu_pages};
use crate::os::region::{Region, Visit};
use crate::rseq::Owner;

/// Calls `visit` for the page map and the chunks within the bound, the buddy, and the CPU page
/// lists. No other thread may use the library.
pub fn for_each_region(visit: &mut Visit<'_>) {
    let [_, chunks, map, _] = arena::tables();
    let pages = arena::committed_bytes() / super::PAGE_BYTES;
    visit(Region { kind: "page map", start: map.start, bytes: pages * size_of::<Owner>() });
    let bytes = arena::chunks_committed() * size_of::<super::layout::Entry>();
    visit(Region { kind: "chunk", start: chunks.start, bytes });
    visit(Region::of("buddy", &*buddy::lock()));
    cpu_pages::for_each_region(visit);
}

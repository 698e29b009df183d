//! The page layer provides the memory of slabs and of large objects, in pages of 4 KiB.
//!
//! ```text
//!  one range of addresses, mapped piece by piece
//!  ┌─────────────┬────────┬──────┬──────────┬────────────────────────────────────────────────┐
//!  │ descriptors │ chunks │ boot │ page map │ data: chunk 0 │ chunk 1 │ …   (2 MiB each)         │
//!  │  64 B/page  │ 176 B  │      │ 8 B/page │ 512 pages of 4 KiB                              │
//!  └─────────────┴────────┴──────┴──────────┴────────────────────────────────────────────────┘
//! ```
//!
//! * The **arena** is one range of addresses, so that "is this pointer ours" is one compare and its
//!   page is one shift. No mapping reserves the range: it was free when the arena chose it, and
//!   each chunk, with its metadata, is mapped when it is needed (see `layout`).
//! * The **page map** holds each page's owner, a [`crate::rseq::Owner`], which leads `free`
//!   straight to the cache's slots.
//! * Each page has 64 bytes of **descriptor**, which its owner uses as it likes. This layer does
//!   not know slabs.
//! * The **buddy** finds aligned runs of pages in 512-bit maps, fullest chunk first, so that whole
//!   chunks come free.
//! * **Homes** tell whose memory a chunk has: a node's, or that of a memory policy (see `home`).
//! * **Huge pages** back chunks where a heap is dense and grows (see `buddy/huge.rs`).
//! * **CPU page lists** keep a few runs for slabs, those warm in the cache first. Refills and
//!   flushes take the buddy's lock once for several runs. A caller that will not touch the memory
//!   soon asks for [`Temperature::Cold`] pages, and so leaves the warm ones to other callers.
//! * **Purge** gives the memory behind free pages back to the system. Purged pages that no thread
//!   has touched since are known to be zero, and `alloc` returns them as such.
//!
//! A page here is 4 KiB whatever the system's page is; only commit and purge deal in system pages.
//!
//! Lock order: `CpuPages`, then `Pages`. ARCHITECTURE.md lists the system calls that code makes
//! under `Pages` (*Lock order*). Under `CpuPages` code makes none but to wait for `Pages`.

pub mod arena;
pub mod boot;
mod bound;
mod buddy;
mod chunk;
mod cpu_pages;
pub mod decay;
pub mod home;
pub mod huge;
mod idle;
mod layout;
mod policy;
mod purge;
mod regions;
mod sparse;
#[cfg(test)]
mod tests;

pub use arena::{
    PageIndex, address_of, clear_owner, contains, descriptor, direct_owner_of, home_of, keep_mapped,
    may_contain, owner, owner_of, page_of, page_of_any, set_owner,
};
pub use bound::{begin_growth, has_grown, is_bounded};
pub use buddy::collapse::collapse_resident;
pub use buddy::limits::{has_soft_limit, held_bytes, is_beyond_soft, set_limits, soft_limit_bytes};
pub use buddy::valid::Walked;
pub use cpu_pages::{alloc, alloc_by, extend, free, free_zeroed, init as init_cpu_lists, is_possible};
#[cfg(test)]
pub use idle::purge_all;
pub use idle::{has_free_memory, purge_all_beyond, purge_rested, rested};
pub use policy::Locked;
pub use purge::{Scattered, purge_due, purge_some};
pub use regions::for_each_region;
pub use sparse::{
    alloc_sparse, charge, free_sparse, may_purge_rested, purge_sparse_chunk, purge_used, should_purge_rested,
    uncharge,
};

use crate::os::facts::Fact;
use crate::os::invariant::Checked;

/// Bytes of a page of this layer.
pub const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
/// Its logarithm.
pub const PAGE_SHIFT: u32 = 12;
/// Pages of a chunk.
pub const CHUNK_PAGES: usize = 512;
/// Bytes of a chunk: a huge page of x86-64 and of 64-bit Arm with 4 KiB pages.
pub const CHUNK_BYTES: usize = CHUNK_PAGES * PAGE_BYTES;
/// Bytes of descriptor that each page has.
pub const DESCRIPTOR_BYTES: usize = 64;

/// The facts of this layer, for a debugger.
pub const FACTS: &[&[Fact]] = &[arena::FACTS, layout::FACTS];

/// Whether the caller will touch the memory soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Temperature {
    /// Soon: prefer pages that are warm in this CPU's cache.
    Hot,
    /// Not soon: leave the warm pages to other callers.
    Cold,
}

/// Whether the caller will touch all pages of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Yes, from the first one on: it cuts the run into objects of a page or less.
    Dense,
    /// Perhaps not: an object covers several pages, and the program may use part of it.
    Sparse,
    /// Nothing is known.
    Unknown,
}

/// A run of pages that now belongs to the caller.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first page.
    pub first: PageIndex,
    /// The number of pages.
    pub pages: usize,
    /// Whether every byte is known to be zero.
    pub zeroed: bool,
}

/// Bytes of arena beyond which a background thread pays. The free memory of a smaller arena is so
/// little that it may stay.
const SMALL_BYTES: usize = 16 << 20;

/// Whether the process has so little memory that it needs no background thread.
pub fn is_small() -> bool {
    arena::committed_bytes() - arena::reserved_bytes() <= SMALL_BYTES
}

/// Prepares for caches with a [policy](crate::os::numa::NumaPolicy) on a machine of `nodes` nodes.
/// False without memory. The caller holds the registry's lock.
pub fn make_policies(nodes: usize) -> bool {
    buddy::make_policies(nodes)
}

/// Takes the addresses of `count` chunks of the arena, mapped without access, for a layer above;
/// returns the first page. `None` if there is no room. They count as no memory that the library
/// holds, and never go back. The arena must be set up.
pub fn reserve(count: usize) -> Option<PageIndex> {
    let _buddy = buddy::lock();
    arena::reserve(count)
}

/// Checks the whole layer, each structure under its lock: chunks, the buddy's lists and sums, the
/// page map's free pages, the CPU page lists. The cost grows with the arena. Allocates nothing.
pub fn check() -> Checked<Walked> {
    let listed_runs = cpu_pages::check_all()?;
    Ok(Walked { listed_runs, ..buddy::valid::check_all()? })
}

/// Checks the buddy's lists and sums, without a walk of chunks.
pub fn check_sums() -> Checked {
    buddy::valid::check_sums()
}

/// Notes that the kernel moved pages of the run `from` onto the run `to`, and with them the advice
/// about huge pages. The caller owns both runs.
pub fn note_moved(from: PageIndex, to: PageIndex, pages: usize) {
    buddy::lock().note_moved(to, pages);
    let (first, last) = (from.0 as usize, from.0 as usize + pages - 1);
    for index in first / CHUNK_PAGES..=last / CHUNK_PAGES {
        let must_revoke = buddy::lock().split(index);
        if must_revoke {
            buddy::revoke(index);
        }
    }
}

/// Notes a fork that takes no locks: the process has no other thread that works.
pub fn note_fork() {
    buddy::note_fork();
}

/// In the child of a fork that took no locks.
pub fn reset_in_child() {
    buddy::reset_in_child();
}

/// Takes all locks of this layer, for a fork.
pub fn lock_for_fork() {
    cpu_pages::lock_for_fork();
    buddy::lock_for_fork();
}

/// Undoes [`lock_for_fork`] in the parent (`child` false) or in the child.
pub fn unlock_after_fork(child: bool) {
    buddy::unlock_after_fork(child);
    cpu_pages::unlock_after_fork(child);
}

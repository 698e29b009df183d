//! Pages: where the memory of slabs and of large objects comes from.
//!
//! ```text
//!  one range of addresses, mapped piece by piece
//!  ┌─────────────┬────────┬──────┬──────────┬────────────────────────────────────────────────┐
//!  │ descriptors │ chunks │ boot │ page map │ data: chunk 0 │ chunk 1 │ …   (2 MiB each)         │
//!  │  64 B/page  │ 160 B  │      │ 8 B/page │ 512 pages of 4 KiB                              │
//!  └─────────────┴────────┴──────┴──────────┴────────────────────────────────────────────────┘
//! ```
//!
//! * The **arena** is one range of addresses, so that "is this pointer ours" is one compare and its
//!   page one shift. No mapping reserves it: its place was free when it was chosen, and each chunk,
//!   with its metadata, is mapped when it is needed (see `layout`).
//! * The **page map** says for each page whose it is: a [`crate::rseq::Owner`], from which `free`
//!   goes straight to the cache's slots.
//! * Each page has 64 bytes of **descriptor**, for its owner to use as it likes. This layer does
//!   not know slabs.
//! * The **buddy** finds aligned runs of pages in 512-bit maps, fullest chunk first, so that whole
//!   chunks come free.
//! * **CPU page lists** keep a few runs that were just freed, warm in the cache, last in first out.
//!   Who will not touch the memory soon asks for [`Temperature::Cold`] ones and leaves the warm
//!   ones to others.
//! * **Purge** gives the memory behind free pages back to the system. Pages that no thread has
//!   touched since are known to be zero, and are handed out as such.
//!
//! A page here is 4 KiB whatever the system's page is; only commit and purge deal in system pages.
//!
//! Locks: `CpuPages`, then `Pages`. System calls under `Pages` are those of growth and of mapping a
//! chunk again; none is made under `CpuPages`.

pub mod arena;
pub mod boot;
mod buddy;
mod chunk;
mod cpu_pages;
pub mod decay;
mod idle;
mod layout;
mod policy;
mod purge;
#[cfg(test)]
mod tests;

pub use arena::{
    PageIndex, address_of, clear_owner, contains, descriptor, direct_owner_of, keep_mapped, owner, owner_of,
    page_of, page_of_any, set_owner,
};
pub use buddy::valid::Walked;
pub use buddy::{has_soft_limit, held_bytes, is_beyond_soft, set_limits, soft_limit_bytes};
pub use cpu_pages::{alloc, extend, free, free_zeroed, init as init_cpu_lists, is_possible};
#[cfg(test)]
pub use idle::purge_all;
pub use idle::{has_free_memory, purge_all_beyond, purge_rested, rested};
pub use purge::{Scattered, purge_due, purge_some};

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

/// Whether the caller will touch the memory soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Temperature {
    /// It will: serve it what is warm in this CPU's cache.
    Hot,
    /// It will not: leave the warm pages to others.
    Cold,
}

/// A run of pages that now belongs to the caller.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first page.
    pub first: PageIndex,
    /// How many.
    pub pages: usize,
    /// Every byte is known to be zero.
    pub zeroed: bool,
}

/// Checks the whole layer, each structure under its lock: chunks, the buddy's lists and sums, the
/// page map's free pages, the CPU page lists. Costs what the arena has; allocates nothing.
pub fn check() -> Checked<Walked> {
    let listed_runs = cpu_pages::check_all()?;
    Ok(Walked { listed_runs, ..buddy::valid::check_all()? })
}

/// Checks the buddy's lists and sums, without a walk of chunks.
pub fn check_sums() -> Checked {
    buddy::valid::check_sums()
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

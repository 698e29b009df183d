//! The walk of all structures behind [`crate::debug::validate`], and behind `uslab validate`.
//!
//! The layers above the core check their own by a hook, once they have any.

use super::{hooks, registry, state};
use crate::os;
use crate::os::invariant::{Checked, Invalid, Subject};
use crate::percpu::{self, adapt, sheaf};
use crate::{pages, report};
use core::fmt;

/// The totals of [`validate`](crate::debug::validate)'s walk.
///
/// Other threads continue during the walk, so the numbers belong to different moments.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Caches, those of `malloc`'s size classes included.
    pub caches: usize,
    /// Slots: one for each cache and CPU.
    pub slots: usize,
    /// Sheaves that the walk looked into: those of barns, and in locked mode those of slots.
    pub sheaves: usize,
    /// Slabs, those of sheaves included.
    pub slabs: usize,
    /// Objects that are free in these slabs.
    pub free_objects: usize,
    /// Chunks of the arena, of 2 MiB each.
    pub chunks: usize,
    /// Pages of 4 KiB that are free in chunks.
    pub free_pages: usize,
    /// Objects of debugged caches that the program overwrote; each was reported.
    pub faulty_objects: usize,
    /// Runs of pages in the lists of CPUs.
    pub listed_runs: usize,
}

/// The totals in one sentence.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} caches with {} slots, {} sheaves, ", self.caches, self.slots, self.sheaves)?;
        write!(f, "{} slabs with {} free objects; ", self.slabs, self.free_objects)?;
        write!(f, "{} chunks with {} free pages, ", self.chunks, self.free_pages)?;
        write!(f, "{} runs in CPU lists", self.listed_runs)
    }
}

/// See [`crate::debug::validate`].
pub(crate) fn validate() -> Result<Summary, Invalid> {
    let mut summary = Summary::default();
    if !state::is_ready() {
        return Ok(summary);
    }
    let _errno = os::errno::Preserved::new();
    summary.faulty_objects = check_objects();
    percpu::check_dummy()?;
    summary.caches = registry::check(&mut |core| {
        let walked = core.check()?;
        summary.slots += walked.slots;
        summary.sheaves += walked.sheaves;
        summary.slabs += walked.slabs.slabs;
        summary.free_objects += walked.slabs.free_objects;
        Ok(())
    })?;
    adapt::check()?;
    percpu::local::check()?;
    for slabs in sheaf::slabs() {
        let walked = slabs.check()?;
        summary.slabs += walked.slabs;
        summary.free_objects += walked.free_objects;
    }
    (hooks::get().check)()?;
    check_owners()?;
    let walked = pages::check()?;
    summary.chunks = walked.chunks;
    summary.free_pages = walked.free_pages;
    summary.listed_runs = walked.listed_runs;
    Ok(summary)
}

/// See [`crate::debug::check_objects`].
pub(crate) fn check_objects() -> usize {
    if !state::is_ready() || !report::is_detailed() {
        return 0;
    }
    let _errno = os::errno::Preserved::new();
    registry::sum(|core| core.check_objects()) + (hooks::get().check_objects)()
}

/// Checks that the page map names no destroyed cache: each owner that is a cache is registered
/// under its id. Not in a fork child, where a destroyed cache may have left a slab. It holds the
/// registry's lock, which keeps caches as they are, for a chunk of pages at a time.
fn check_owners() -> Checked {
    if os::fork::has_lost_threads() {
        return Ok(());
    }
    (0..pages::arena::committed_bytes() / pages::CHUNK_BYTES).try_for_each(|chunk| {
        registry::with_lock(|| {
            let first = pages::PageIndex((chunk * pages::CHUNK_PAGES) as u32);
            (0..pages::CHUNK_PAGES).try_for_each(|n| {
                let owner = pages::owner(first.plus(n));
                let subject = Subject::new("page", pages::address_of(first.plus(n)));
                let id = owner.id();
                if id < registry::FIRST_CACHE_ID {
                    return Ok(());
                }
                // Unit tests of lower layers have caches that are not registered.
                let is_known = registry::cache(id).map_or(cfg!(test), |core| core.is_named_by(owner));
                subject.holds(is_known, "the page map names caches that there are")
            })
        })
    })
}

//! Addresses that serve one cache for ever: with `ranges` of `USLAB_SECURE`, slabs that a cache
//! releases wait, without memory, until the same cache grows.
//!
//! ```text
//!   release   slab ─▶ purge ─▶ kept list of its cache        the page layer counts the pages as used,
//!   grow      kept list ─▶ charge ─▶ slab                     and charges none of them
//! ```
//!
//! So a pointer that the program kept too long leads to an object of the same cache, or to zeroes,
//! and never to an object of another type. The descriptor of a kept slab has the link, and the mask
//! of pages that the system refused to purge. The addresses of a destroyed cache stay unused.

use super::one::{NONE, Slab, slab_at};
use super::pool::Slabs;
use crate::os;
use crate::os::corruption::verify;
use crate::pages::{self, Locked, PageIndex};
use crate::rseq::Owner;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of empty slabs that frees leave to a cache, if no background thread releases them later.
const MAX_WARM_BYTES: usize = 4 << 20;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Lets caches keep the addresses of their slabs. Start-up calls it, before there is a cache.
pub fn keep_addresses() {
    IS_ON.store(true, Relaxed);
}

impl Slabs {
    /// These slabs, which keep their addresses if [`keep_addresses`] was called. Not for caches of
    /// private heaps, which are made and destroyed all the time.
    pub fn with_own_addresses(mut self) -> Slabs {
        self.keeps_addresses = IS_ON.load(Relaxed);
        self
    }

    /// Upper bound on the empty slabs for which frees raise the target. 0 for a cache that does not
    /// keep its addresses: the page layer keeps the memory of its slabs for a while. The target
    /// halves each second, and the background thread or a pass releases the slabs.
    pub(super) fn warm_slabs(&self) -> u32 {
        match self.keeps_addresses {
            false => 0,
            true if os::sleep::has_background_thread() => u32::MAX,
            true => (MAX_WARM_BYTES / self.slab_bytes() / self.used_group_count()) as u32,
        }
    }

    /// Takes a kept slab, with at least the pages in the mask `needed` charged; a slab without a
    /// resident word is charged whole. Returns its first page and the mask of charged pages. `None`
    /// if there is no kept slab, or a limit forbids it.
    pub(super) fn take_kept(&self, needed: u64) -> Option<(PageIndex, u64)> {
        let slab = self.pop_kept()?;
        let had = self.kept_mask(slab);
        let missing = match slab.resident(&self.geometry) {
            Some(_) => (needed & !had).count_ones() as usize,
            None if had != 0 => 0,
            None => self.geometry.pages(),
        };
        if missing > 0 && !pages::charge(slab.0, missing) {
            self.push_kept(slab, had);
            return None;
        }
        Some((slab.0, needed | had))
    }

    /// Keeps a released slab of which the pages in the mask `charged` are charged, all of them
    /// without a resident word.
    pub(super) fn keep(&self, slab: Slab, charged: u64) {
        let (pages, bytes) = (self.geometry.pages(), self.slab_bytes());
        let is_whole = |count: usize| count.is_multiple_of(os::memory::page_bytes());
        let has_whole_pages = is_whole(pages::address_of(slab.0).addr()) && is_whole(bytes);
        // SAFETY: the slab has left lists and page map, and is this call's alone.
        let is_purged = has_whole_pages && unsafe { pages::purge_used(slab.0, pages, Locked::Stay) };
        if is_purged {
            let count = if self.geometry.has_resident_word() { charged.count_ones() as usize } else { pages };
            pages::uncharge(slab.0, count);
        }
        self.push_kept(slab, if is_purged { 0 } else { charged });
    }

    /// The mask that [`Slabs::push_kept`] noted.
    fn kept_mask(&self, slab: Slab) -> u64 {
        match slab.resident(&self.geometry) {
            Some(resident) => resident.load(Relaxed),
            None => slab.count().load(Relaxed) as u64,
        }
    }

    fn push_kept(&self, slab: Slab, charged: u64) {
        match slab.resident(&self.geometry) {
            Some(resident) => resident.store(charged, Relaxed),
            None => slab.count().store(i32::from(charged != 0), Relaxed),
        }
        let mut lists = self.use_group(0).lock();
        // SAFETY: the descriptor is mapped, and the slab is this call's alone.
        unsafe { (*slab.head()).next = lists.kept };
        lists.kept = slab.0.0;
    }

    fn pop_kept(&self) -> Option<Slab> {
        let mut lists = self.used_group(0)?.lock();
        let slab = slab_at(lists.kept)?;
        let is_own = pages::contains(slab.0)
            && slab.0.0.is_multiple_of(1 << self.geometry.order)
            && pages::owner(slab.0) == Owner::NONE;
        if !verify(is_own, "slab lists", &raw const *lists, "kept slabs have no owner") {
            lists.kept = NONE;
            return None;
        }
        lists.kept = slab.next().map_or(NONE, |next| next.0.0);
        Some(slab)
    }
}

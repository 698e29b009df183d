//! A walk over the objects in use, which holds no lock while the caller looks at an object.
//!
//! The page map leads the walk: it reads the owner of each page, and so visits the slabs of a cache
//! in the order of addresses, whatever lists they stand in. It copies 64 bits of a slab's bitmap at
//! a time, under the lists' lock: no thread releases the slab meanwhile.

use super::one::Slab;
use super::pool::Slabs;
use crate::pages::{self, PAGE_BYTES, PageIndex};
use crate::sync::atomic::Ordering::Acquire;

impl Slabs {
    /// Calls `visit` for each object that is not free in its slab and passes `is_live`, in the
    /// order of addresses, until it returns false.
    ///
    /// `is_live` runs under the lists' lock: it must neither allocate from this library nor free to
    /// it. `visit` runs without a lock, and may do both. It may be called for an object that
    /// another thread has freed since. The cost grows with the arena: 8 bytes are read for each
    /// page.
    pub fn visit_taken(&self, is_live: impl Fn(*mut u8) -> bool, mut visit: impl FnMut(*mut u8) -> bool) {
        let pages = (pages::arena::committed_bytes() / PAGE_BYTES) as u32;
        let (mut at, slab_pages) = (0, self.geometry.named_pages() as u32);
        while at < pages {
            let page = PageIndex(at);
            if !self.owns(page) {
                at += 1;
                continue;
            }
            // A slab may have been made here since the walk passed its first page.
            let slab = Slab(PageIndex(at & !(slab_pages - 1)));
            for word in 0..self.geometry.words() {
                let Some(mut live) = self.live_of_word(slab, word, &is_live) else { break };
                while live != 0 {
                    let index = word * 64 + live.trailing_zeros() as usize;
                    live &= live - 1;
                    if !visit(self.object(slab, index)) {
                        return;
                    }
                }
            }
            at = slab.0.0 + slab_pages;
        }
    }

    fn object(&self, slab: Slab, index: usize) -> *mut u8 {
        slab.address().wrapping_add(index * self.geometry.object_bytes)
    }

    /// The objects of one word of the bitmap that are in use and pass `is_live`; `None` if the slab
    /// is none of these slabs any more.
    fn live_of_word(&self, slab: Slab, word: usize, is_live: impl Fn(*mut u8) -> bool) -> Option<u64> {
        // As in `place`: whether the slab is still here is certain only under its group's lock.
        let group = slab.group();
        let _lists = self.used_group(group)?.lock();
        if !self.owns(slab.0) || slab.group() != group {
            return None;
        }
        let objects = (self.geometry.objects - word * 64).min(64);
        let all = u64::MAX >> (64 - objects);
        let free =
            slab.words(&self.geometry)[word].load(Acquire) | self.claimed.in_word(&self.geometry, slab, word);
        let mut rest = !free & all;
        let mut live = rest;
        while rest != 0 {
            let index = word * 64 + rest.trailing_zeros() as usize;
            if !is_live(self.object(slab, index)) {
                live &= !(1 << (index % 64));
            }
            rest &= rest - 1;
        }
        Some(live)
    }
}

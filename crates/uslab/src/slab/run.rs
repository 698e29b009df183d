//! Slabs that are runs of one object: how an object leaves its cache in place.

use super::lists::{End, List};
use super::pool::Slabs;
use crate::pages::{self, Run};
use crate::rseq::Owner;
use core::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};

impl Slabs {
    /// Takes the run that is `object` out of these slabs, in use as it is; the caller then owns its
    /// pages, which have no owner in the page map. `None`, with nothing changed, if `object` is no
    /// run of these slabs, or if another thread is about to count an earlier free of it.
    ///
    /// The caller must own the object.
    pub fn disown_run(&self, object: *mut u8) -> Option<Run> {
        if !self.geometry().is_run() || self.misuse_of(object).is_some() {
            return None;
        }
        let slab = self.slab_of(object)?;
        let group = slab.group();
        let mut lists = self.used_group(group)?.lock();
        if !self.owns(slab.0) {
            return None;
        }
        fence(Acquire);
        // Takes run under the lock. So a count of 0 says that each free of the object was counted,
        // and that no thread will write to the descriptor any more.
        let is_settled = slab.count().load(Acquire) == 0 && slab.words(self.geometry())[0].load(Relaxed) == 0;
        // A misused object may lie in a slab that a refill takes from.
        if slab.group() != group || !is_settled || slab.list() == List::Taking as u8 {
            return None;
        }
        lists.place(slab, List::None, End::First);
        pages::set_owner(slab.0, self.geometry().named_pages(), Owner::NONE);
        self.count_disowned(slab);
        self.publish(&mut lists, group);
        Some(Run { first: slab.0, pages: self.geometry().pages(), zeroed: false })
    }
}

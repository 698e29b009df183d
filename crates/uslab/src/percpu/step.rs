//! One step on this CPU's main sheaf where that is hidden from the fast path: what the fast path
//! would do, for debugged objects. The slow path's preparations and counts are for calls that no
//! sheaf serves.

use super::CpuCache;
use crate::rseq::locked::LockedSlot;
use crate::rseq::{self, Cpu, Mode, Pushed, mode};

impl CpuCache {
    /// Pops an object of this CPU's main sheaf, though it is hidden; null if it has none.
    #[inline]
    pub fn pop_hidden(&self) -> *mut u8 {
        if !self.has_hidden() {
            return core::ptr::null_mut();
        }
        match mode() {
            // SAFETY: the row is this cache's, for every possible CPU, and the mode is rseq.
            Mode::Rseq => unsafe { rseq::pop(self.row(self.this_node()).as_ptr()) },
            Mode::Locked => {
                self.try_lock(self.this_node()).map_or(core::ptr::null_mut(), |locked| locked.pop())
            }
        }
    }

    /// Pushes an object to this CPU's main sheaf, though it is hidden. Returns false if that has no
    /// room.
    ///
    /// # Safety
    /// `object` must be a free object of this cache that the caller owns.
    #[inline]
    pub unsafe fn push_hidden(&self, object: *mut u8) -> bool {
        if !self.has_hidden() {
            return false;
        }
        let (node, _) = self.slabs().home_of_first(&[object]);
        // SAFETY: as above, and the caller's promise.
        let pushed = unsafe {
            match mode() {
                Mode::Rseq => rseq::push_tested(self.row(node).as_ptr(), object),
                Mode::Locked => self.try_lock(node).map_or(Pushed::Slow, |locked| locked.push(object)),
            }
        };
        // An object that is on top already stays there once.
        pushed != Pushed::Slow
    }

    #[inline]
    fn try_lock(&self, node: usize) -> Option<LockedSlot<'_>> {
        Cpu::current().shared(self.row(node)).and_then(LockedSlot::try_lock)
    }
}

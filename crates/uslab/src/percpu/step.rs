//! A pop or a push on a main sheaf that is hidden from the fast path: debugged and hardened caches,
//! and all caches in locked mode, do here what the fast path does for others. It counts nothing, as
//! the fast path does. Calls that the sheaf cannot serve go on to the slow path.

use super::CpuCache;
use crate::pages::PAGE_BYTES;
use crate::rseq::locked::LockedSlot;
use crate::rseq::{self, Cpu, Mode, Pushed, Slot, mode};
use crate::sync::prefetch_for_write;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Bytes of the next object that a pop prefetches; of longer ones the processor prefetches the rest
/// by itself.
const MAX_PREFETCHED_BYTES: usize = 256;

/// Slots whose locks a step tries, once each.
const TRIES: usize = 8;

impl CpuCache {
    /// Pops an object of this CPU's main sheaf, though it is hidden. Null if the sheaf is empty or
    /// not hidden, and in locked mode if no lock is free or the object is not the cache's.
    #[inline]
    pub fn pop_hidden(&self) -> *mut u8 {
        if !self.has_hidden() {
            return core::ptr::null_mut();
        }
        match mode() {
            Mode::Rseq => {
                let row = self.row(self.this_node());
                // SAFETY: the row is this cache's, for every possible CPU, and the mode is rseq.
                let object = unsafe { rseq::pop(row.as_ptr()) };
                self.prefetch_next(row);
                object
            }
            Mode::Locked => {
                let object = self.try_lock(None).map_or(core::ptr::null_mut(), |locked| locked.pop());
                // SAFETY: the slot's sheaf had the object.
                let may_serve = object.is_null() || unsafe { self.may_serve_these(&[object]) };
                if may_serve { object } else { core::ptr::null_mut() }
            }
        }
    }

    /// Pushes an object to this CPU's main sheaf, though it is hidden. Returns [`Pushed::Slow`] if
    /// the sheaf has no room or is not hidden, in rseq mode if no object starts there, and in
    /// locked mode if no lock is free. Returns [`Pushed::Twice`] if the object is on top already.
    ///
    /// # Safety
    /// `object` must be a free object of this cache that the caller owns.
    #[inline]
    pub unsafe fn push_hidden(&self, object: *mut u8) -> Pushed {
        if !self.has_hidden() {
            return Pushed::Slow;
        }
        let (node, _) = self.slabs().home_of_first(&[object]);
        // SAFETY: the row is this cache's, and the caller's promise for the object.
        unsafe {
            match mode() {
                Mode::Rseq => rseq::push_tested(self.row(node).as_ptr(), object),
                Mode::Locked => self.try_lock(Some(node)).map_or(Pushed::Slow, |locked| locked.push(object)),
            }
        }
    }

    /// Prefetches the object that this CPU's next pop from the row will yield: its record and its
    /// first bytes will be read, and it has rested for long.
    #[inline]
    fn prefetch_next(&self, row: &[Slot]) {
        let Some(slot) = Cpu::current().own(row) else { return };
        let main = slot.main.load(Relaxed);
        // SAFETY: sheaves lie in the arena or are the dummy; both stay mapped, and the count is an
        // atomic.
        let count = unsafe { (*main).count.load(Relaxed) } as usize;
        let place = main.cast::<*mut u8>().wrapping_add(1 + count);
        // Another thread may have taken the sheaf and freed its memory, which then has any count.
        if place.addr() ^ main.addr() < PAGE_BYTES {
            // SAFETY: a word of the page that the sheaf lay on, which stays mapped. It is a hint.
            let next = unsafe { (*place.cast::<AtomicPtr<u8>>()).load(Relaxed) };
            let bytes = self.slabs().geometry().object_bytes.min(MAX_PREFETCHED_BYTES);
            (0..bytes).step_by(64).for_each(|at| prefetch_for_write(next.wrapping_add(at)));
        }
    }

    /// Locks this CPU's slot for the objects of `node`, by default the CPU's. If its lock is taken,
    /// the slot of one of the next CPUs: the holder may be off its CPU. `None` if the locks of
    /// [`TRIES`] slots are taken, or at the first CPU that the cache has not marked as used.
    #[inline]
    fn try_lock(&self, node: Option<usize>) -> Option<LockedSlot<'_>> {
        let mut cpu = Cpu::current();
        let node = if self.nodes == 1 { 0 } else { node.unwrap_or_else(|| cpu.node()) };
        let row = self.row(node);
        for _ in 0..TRIES {
            // The slow path is to mark the CPU first: a fork leaves the locks of other slots alone.
            let slot = cpu.shared(row).filter(|_| self.used.has_cpu(cpu))?;
            if let Some(locked) = LockedSlot::try_lock(slot) {
                return Some(locked);
            }
            core::hint::spin_loop();
            cpu = cpu.next();
        }
        None
    }
}

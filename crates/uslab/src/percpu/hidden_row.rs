//! Hidden rows: a running cache hides its sheaves from the fast path, so that each call takes the
//! slow path and can be counted.
//!
//! ```text
//!   begin  flag ─▶ barrier ─▶ drain the cache's own slots      these keep the dummy
//!   call   finds the dummy ─▶ slow path ─▶ hidden row: main │ spare ◀─▶ barn ◀─▶ slabs
//!   end    flag off ─▶ drain the hidden row                    slow paths use own slots again
//! ```
//!
//! The heap profile hides the sheaves of the program's caches this way. Their handles name their
//! slots, so no table can name a counted row ([`super::counted`]) instead. The slow path pops and
//! pushes by the same sequences as the fast path, so threads do not meet at a lock.
//!
//! A cache gets the row at its first allocation while it hides. Until then, and without memory for
//! the row, calls bypass sheaves ([`super::bypass`]).
//!
//! A thread may have chosen the row before the flag changed, and install a sheaf after the drain.
//! So it tests the flag again after it installed a sheaf, and drains if the flag has changed. At
//! the beginning the barrier orders the two, as for bypasses, and at the end a fence does.
//!
//! A row exists in rseq mode only: in locked mode, and in caches that hide their sheaves from the
//! start ([`super::hidden`]), each call takes the slow path anyway. There the flag keeps threads
//! from sheaves of their own ([`super::local`]).

use super::CpuCache;
use super::drain::Drain;
use super::rows::alloc_row;
use crate::rseq::{self, LEAD, Mode, Slot, dummy_of, mode};
use core::sync::atomic::{Ordering::Acquire, Ordering::Release, Ordering::SeqCst, fence};

impl CpuCache {
    /// Lets each call take the slow path from now on. The caller then issues a barrier and drains
    /// the cache ([`CpuCache::drain_slots`]), or calls [`CpuCache::end_hiding`]; a cache that no
    /// thread used yet needs neither. The caller holds the registry's lock.
    pub fn begin_hiding(&self) {
        self.is_hiding.store(true, SeqCst);
    }

    /// Lets the fast path serve calls again, and moves the hidden sheaves to `drain`, which flushes
    /// them when it finishes. If the kernel has come to refuse barriers, main sheaves stay in the
    /// row until the next profile. The caller holds the registry's lock.
    pub fn end_hiding<'a>(&'a self, drain: &mut Drain<'a>) {
        self.is_hiding.store(false, SeqCst);
        // Either the drain finds a sheaf that a thread has just installed, or that thread finds the
        // flag changed: it installs by an atomic exchange before it reads the flag.
        fence(SeqCst);
        self.used_of_rows(self.hidden_slots()).for_each(|slot| drain.take(self, slot));
    }

    /// Whether each call takes the slow path for now.
    pub fn is_hiding(&self) -> bool {
        self.is_hiding.load(SeqCst)
    }

    /// Whether calls bypass sheaves until [`CpuCache::make_hidden_row`].
    pub fn lacks_hidden_row(&self) -> bool {
        let has_own = mode() == Mode::Rseq && self.caching && !self.hides;
        self.is_hiding() && has_own && self.hidden_row.load(Acquire).is_null()
    }

    /// Makes the hidden row, if the cache lacks it, in `memory`, or in new memory if that is null,
    /// which then has room for the row of any cache on a machine of `nodes` nodes. Returns the
    /// memory of the row; null if there is none. The caller holds the registry's lock.
    ///
    /// # Safety
    /// `memory` must be null, or come from an earlier call for a cache that has ended.
    pub unsafe fn make_hidden_row(&self, memory: *mut Slot, nodes: usize) -> *mut Slot {
        if !self.lacks_hidden_row() {
            return memory;
        }
        let row = match memory.is_null() {
            true => alloc_row(self.slot_count.max(self.row_distance * nodes - LEAD)),
            false => memory,
        };
        if row.is_null() {
            return row;
        }
        for at in 0..self.slot_count {
            let slot = Slot::holding(dummy_of(at % self.row_distance));
            slot.set_start_test(self.slabs().geometry().start_test());
            // SAFETY: memory for so many slots, or more: no cache has a row for more than each
            // node. It is the cache's alone.
            unsafe { row.add(at).write(slot) };
        }
        self.hidden_row.store(row, Release);
        row
    }

    /// The slots of the hidden row; none before it is made.
    pub(super) fn hidden_slots(&self) -> &[Slot] {
        let row = self.hidden_row.load(Acquire);
        let (start, count) =
            if row.is_null() { (self.slots, 0) } else { (row.cast_const(), self.slot_count) };
        // SAFETY: the row has as many slots as the cache's own, and lives for ever.
        unsafe { core::slice::from_raw_parts(start, count) }
    }

    /// Pops an object of this CPU's main sheaf in the hidden row; null if there is none.
    #[inline]
    pub fn pop_of_hidden_row(&self) -> *mut u8 {
        if !self.has_row_in_use() {
            return core::ptr::null_mut();
        }
        // SAFETY: the row is this cache's, for every possible CPU, and the mode is rseq.
        unsafe { rseq::pop(self.row(self.this_node()).as_ptr()) }
    }

    /// Whether the slow path finds the sheaves in the hidden row.
    pub(super) fn has_row_in_use(&self) -> bool {
        self.is_hiding() && !self.hidden_row.load(Acquire).is_null()
    }

    /// The slots that slow paths work on at present: the cache's own, or the hidden row.
    pub(super) fn slots_in_use(&self) -> &[Slot] {
        if self.has_row_in_use() { self.hidden_slots() } else { self.slots() }
    }

    /// Whether a slot is of the row that slow paths do not work on at present.
    pub(super) fn is_stray(&self, slot: &Slot) -> bool {
        let row = if self.is_hiding() { self.slots() } else { self.hidden_slots() };
        row.as_ptr_range().contains(&(&raw const *slot)) && mode() == Mode::Rseq && !self.hides
    }
}

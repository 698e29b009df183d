//! Long streaks of frees: a CPU whose spare is full, and whose barn has no room, flushes the newest
//! objects of its main sheaf.
//!
//! ```text
//!   frees  1 2 3 … 700 │ 701 702 … 248 000 │ … 248 030
//!          spare, barn │ the slabs         │ main
//! ```
//!
//! The spare and the barn keep the objects that were freed first. The slabs get all later ones in
//! the order of the frees, but for the last sheaf. Slabs serve in the order in which they became
//! partial. So a program that frees neighbours in order, and then allocates, gets neighbours in
//! order (ADR 0034). If the CPU flushed its spare instead, the newest two sheaves of objects would
//! stay with the CPU and serve first; all others would come out that much later.

use super::CpuCache;
use super::access::{Access, Home};
use super::adapt::Miss;
use super::cpu_cache::PIECE;
use super::sheaf::Owned;
use crate::rseq::{Which, is_dummy};
use core::sync::atomic::Ordering::Relaxed;

impl CpuCache {
    /// Whether neither the spare nor the barn has room. A hint: the thread owns neither.
    pub(super) fn is_saturated(&self, access: &impl Access, home: Home) -> bool {
        let spare = access.slot().spare.load(Relaxed);
        // SAFETY: sheaves lie in the arena or are the dummy; both stay mapped, and the counts are
        // atomics.
        let (count, capacity) = unsafe { ((*spare).count.load(Relaxed), (*spare).capacity.load(Relaxed)) };
        // The ordinary path replaces a spare of another size, or the dummy.
        count == capacity
            && capacity as usize == self.capacity()
            && !self.barn(home.group).has_room(self.sheaf_bytes())
    }

    /// Frees some of `objects` into the main sheaf, after its newest objects went to the slabs;
    /// returns how many. Returns `None` if the slot has no main sheaf.
    pub(super) fn flush_main(&self, access: &impl Access, objects: &[*mut u8], home: Home) -> Option<usize> {
        let main = self.take_out(access, Which::Main);
        if is_dummy(main) {
            return None;
        }
        self.note_miss(access, Miss::Overflow, false);
        let mut main = self.resized(Owned(main), home.node);
        if main.count() == main.capacity() {
            let full = main.count();
            self.flush_newest(&mut main, PIECE.max(objects.len()));
            self.count_home(home, full - main.count(), 0);
        }
        let put = main.push_from(objects);
        self.install(access, main.0, home);
        Some(put)
    }
}

//! Long runs of allocations: a CPU whose spare is empty, and whose barn has no full sheaf, refills
//! its main sheaf from the slabs.
//!
//! ```text
//!   a refill                take the spare, ask the barn, fill, install, old main to the spare
//!   in a run of refills     take main, fill, install
//! ```
//!
//! The slabs' objects come in the order of their addresses and have rested since they were freed.
//! The program is about to write them one by one, and each write may wait for memory. So a refill
//! that follows another one prefetches the objects, and these waits overlap.
//!
//! [`super::saturated`] is the same for frees.

use super::CpuCache;
use super::access::Access;
use super::adapt::{Miss, Run};
use super::cpu_cache::Filled;
use super::sheaf::Owned;
use crate::rseq::{Which, is_dummy};
use crate::sync::prefetch_for_write;
use core::sync::atomic::Ordering::Relaxed;

/// Upper bound on the objects that a refill prefetches: as many misses as a processor has under way
/// at once, so that the refill itself does not wait. Prefetchers of the processor follow these.
const MAX_PREFETCHED: usize = 16;

impl CpuCache {
    /// Whether neither the spare nor the barn has an object. A hint: the thread owns neither.
    pub(super) fn is_exhausted(&self, access: &impl Access, node: usize) -> bool {
        let spare = access.slot().spare.load(Relaxed);
        // SAFETY: sheaves lie in the arena or are the dummy; both stay mapped, and the counts are
        // atomics.
        let (count, capacity) = unsafe { ((*spare).count.load(Relaxed), (*spare).capacity.load(Relaxed)) };
        // A sheaf of another size, the dummy too, is replaced on the way over the spare.
        count == 0 && capacity as usize == self.capacity() && self.barn(node).fulls() == 0
    }

    /// Serves objects to `out`, out of the main sheaf after that was filled from the slabs; returns
    /// how many, and 0 only if there is no memory. Returns `None` if the slot has no main sheaf.
    pub(super) fn refill_main(
        &self,
        access: &impl Access,
        out: &mut [*mut u8],
        node: usize,
    ) -> Option<usize> {
        let main = self.take_out(access, Which::Main);
        if is_dummy(main) {
            return None;
        }
        self.note_miss(access, Miss::Underflow, false);
        let mut main = Owned(main);
        if main.count() == 0 {
            main = match self.fill_from_slabs(main.0, node, out) {
                Filled::Sheaf(sheaf) => Owned(sheaf),
                Filled::Direct(got) => return Some(got),
            };
        }
        let got = main.pop_into(out);
        if Run(access.slot().last_miss.load(Relaxed)).is_under_way(Miss::Underflow) {
            let next = main.objects().iter().rev();
            next.take(MAX_PREFETCHED).for_each(|&object| prefetch_for_write(object));
        }
        self.install(access, main.0, node);
        Some(got)
    }
}

//! What the slow path counts: its calls, and the free objects in sheaves.
//!
//! Counts stand in the line of the CPU ([`crate::counters::Tally`]); the fast path counts nothing.
//! So the objects of a slot are counted by the difference to the last count, at each slow call.

use super::access::{Access, Home};
use super::{CpuCache, valid};
use crate::counters::{self, SlowCall, Tally};
use crate::os;
use crate::pages::PAGE_BYTES;
use crate::rseq::{Cpu, Slot, Which};
use core::sync::atomic::Ordering::Relaxed;

impl CpuCache {
    /// Ends a slow call: counts it, on `cpu` where it used a slot, and wakes the background thread.
    /// That must follow the call's last change: the thread looks once and sleeps.
    pub(super) fn count(&self, cpu: Option<Cpu>, call: SlowCall) {
        os::sleep::note_activity();
        self.slabs()
            .tally_of(cpu.unwrap_or_else(Cpu::current))
            .count(call, counters::record(self.slabs().id()));
    }

    /// The line of counts of the CPU that the thread runs on.
    pub(super) fn tally(&self) -> &Tally {
        self.slabs().tally_of(Cpu::current())
    }

    /// Moves the line of this CPU to the figures that observers see.
    pub(super) fn fold_own(&self) {
        self.tally().fold(counters::record(self.slabs().id()));
    }

    /// Counts the `n` objects of a sheaf that went to the barn, on the line that the call folds at
    /// its end.
    pub(super) fn count_barn_objects(&self, home: Home, n: usize) {
        self.slabs().tally_of(home.cpu).sheaf_free.fetch_add(n as i64, Relaxed);
    }

    /// Counts `n` objects that left a slot for `home`, by so many whole sheaves, if the CPU is on
    /// another node, as [`CpuCache::count_barn_objects`] does. Objects of a cache with one row have
    /// no home.
    pub(super) fn count_home(&self, home: Home, n: usize, sheaves: u32) {
        if n > 0 && self.nodes > 1 && home.node != Cpu::current().node() {
            let tally = self.slabs().tally_of(home.cpu);
            tally.home_objects.fetch_add(n as u32, Relaxed);
            tally.home_sheaves.fetch_add(sheaves, Relaxed);
        }
    }

    /// Updates the count of free objects in sheaves by what this CPU's slot holds now.
    pub(super) fn account(&self, access: &impl Access) {
        valid::assert_slot(access);
        self.recount(access.slot());
    }

    /// Updates the count of free objects in sheaves by what `slot` holds now.
    pub(super) fn recount(&self, slot: &Slot) {
        // A sheaf that was freed meanwhile may show any number. `counted` keeps what is added here,
        // so that the next call takes the same off again.
        self.recount_to(slot, held(slot));
    }

    /// Updates the count of free objects in sheaves by `now`, the objects that `slot` holds.
    pub(super) fn recount_to(&self, slot: &Slot, now: usize) {
        let now = now as u32;
        if slot.counted.load(Relaxed) == now {
            return;
        }
        let before = slot.counted.swap(now, Relaxed);
        let change = i64::from(now) - i64::from(before);
        self.slabs().tally_of(self.cpu_of(slot)).sheaf_free.fetch_add(change, Relaxed);
    }

    /// The CPU of a slot of the cache's own rows, the lending row among them. In any other row,
    /// slots of different CPUs get different numbers.
    pub(super) fn cpu_of(&self, slot: &Slot) -> Cpu {
        let distance = (&raw const *slot).addr().wrapping_sub(self.slots().as_ptr().addr());
        Cpu::of_index(distance / size_of::<Slot>() % self.row_distance.max(1))
    }

    /// Whether a drain or a shrink would find free memory. Takes no lock. Approximate, as all
    /// counters are.
    pub fn has_free(&self) -> bool {
        let record = counters::record(self.slabs().id());
        record.empty_slabs.load(Relaxed) > 0
            || self.slabs().sheaf_free() > 0
            || self.used_slots().any(|slot| held(slot) > 0)
            || self.slabs().free_bytes_inside() >= PAGE_BYTES
    }

    /// Updates the count of free objects in sheaves by what all slots hold now. Sheaves of barns
    /// are counted as they enter and leave a barn. Exact if no thread uses the cache meanwhile.
    pub fn account_all(&self) {
        self.used_slots().for_each(|slot| self.recount(slot));
        self.slabs().fold();
    }
}

/// Objects in a slot's sheaves, as a thread that does not own them reads it. A sheaf may be freed
/// while this reads it. Its memory stays mapped, so the number is merely wrong, this once.
pub(super) fn held(slot: &Slot) -> usize {
    let count = |which| {
        let sheaf = slot.place(which).load(Relaxed);
        // SAFETY: sheaves lie in the arena or are the dummy; both stay mapped, and the count is an
        // atomic.
        unsafe { (*sheaf).count.load(Relaxed) as usize }
    };
    count(Which::Main) + count(Which::Spare)
}

//! Idle flush: sheaves that no thread has touched between two looks go back to the slabs.
//!
//! The background thread comes by every half second ([`CpuCache::flush_idle`]). It keeps of each
//! slot what it looked like:
//!
//! ```text
//!   look 1   main 0x…40 with 17, spare 0x…80 with 60    ── remembered
//!   look 2   the same                                    ── drained into the slabs, which keep their pages for now
//!   look 3   still the dummies: idle                     ── the slabs' empty ones may go
//! ```
//!
//! A busy slot that happens to look the same twice is drained once and refilled at its next call:
//! some microseconds. That it was refilled is how look 3 knows better. Nothing is asked of the fast
//! path. Of a barn the sheaves go that stood there all the time since the last look.

use super::CpuCache;
use super::adapt;
use super::drain::{Drain, Keep};
use super::sheaf::Owned;
use crate::counters;
use crate::rseq::{Slot, Which, is_dummy};
use crate::sync::in_flight::InFlight;
use core::sync::atomic::Ordering::Relaxed;

impl CpuCache {
    /// One look; what was idle goes to the slabs as `drain` comes to its end. True if no thread has
    /// used the cache since the last look: no sheaf was in a slot or a barn by now.
    pub fn flush_idle<'a>(&'a self, drain: &mut Drain<'a>) -> bool {
        let mut used = false;
        for slot in self.slots() {
            let before = look(slot);
            if before != 0 {
                let rests = slot.seen.load(Relaxed) == before && is_steady(slot, before);
                if rests {
                    drain.take(self, slot);
                }
                // A main sheaf that stays for want of a barrier is not in use for that.
                used |= !(rests && drain.leaves_mains() && look(slot) == before);
            }
            // Also of one that another drainer emptied; but a slot that is not in use is not
            // written to.
            let after = look(slot);
            if slot.seen.load(Relaxed) != after {
                slot.seen.store(after, Relaxed);
            }
        }
        for barn in self.barns() {
            let _in_flight = (barn.fulls() > 0).then(InFlight::begin);
            while let Some(sheaf) = barn.take_unused() {
                used = true;
                let mut sheaf = Owned(sheaf);
                counters::record(self.slabs().id()).sheaf_free.fetch_sub(sheaf.count() as i64, Relaxed);
                self.flush_and_free(&mut sheaf, Keep::Pages);
            }
            used |= barn.begin_period();
        }
        if !used {
            adapt::rest(self);
        }
        !used
    }
}

/// Looks again for a microsecond: a loop that takes and frees the same few objects may have looked
/// the same twice by chance. Longer looks would cost more, beside many busy caches, than the drains
/// that they save.
fn is_steady(slot: &Slot, before: u32) -> bool {
    const LOOKS: usize = 8;
    (0..LOOKS).all(|_| {
        (0..8).for_each(|_| core::hint::spin_loop());
        look(slot) == before
    })
}

/// What a slot looks like, in brief: 0 with two dummies. Another look is taken for this one once in
/// 2^31. A sheaf may go away while it is looked at: its memory stays mapped.
fn look(slot: &Slot) -> u32 {
    let of = |which: Which| {
        let sheaf = slot.place(which).load(Relaxed);
        if is_dummy(sheaf) {
            return 0;
        }
        // SAFETY: sheaves lie in the arena or are the dummy; both stay mapped, and the count is an
        // atomic.
        let count = u64::from(unsafe { (*sheaf).count.load(Relaxed) });
        (sheaf as u64 ^ count << 48) | 1
    };
    match of(Which::Main).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ of(Which::Spare) {
        0 => 0,
        look => (look ^ look >> 32) as u32 | 1,
    }
}

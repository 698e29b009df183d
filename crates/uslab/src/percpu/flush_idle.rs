//! Idle flush: sheaves that no thread touched between two ticks give their objects to the slabs.
//!
//! The background thread looks at each slot in use every half second ([`CpuCache::flush_idle`]),
//! and stores a fingerprint of what it sees:
//!
//! ```text
//!   tick 1   main 0x…40 with 17, spare 0x…80 with 60   stores the fingerprint
//!   tick 2   the same                                  drains the slot; the slabs keep their pages
//!   tick 3   still the dummies: idle                   empty slabs may be released
//! ```
//!
//! A busy slot that happens to look the same twice is drained, and refilled at its next call, which
//! costs some microseconds. Tick 3 finds it refilled, and so not idle. The fast path does nothing
//! for this. The flush treats counted rows ([`super::counted`]) likewise. From a barn it takes the
//! sheaves that have stood there since the last tick. If calls bypass sheaves ([`super::bypass`]),
//! each tick drains each slot.

use super::CpuCache;
use super::adapt;
use super::barn::Unused;
use super::drain::{Drain, Keep};
use super::sheaf::Owned;
use super::used;
use crate::rseq::{Slot, Which, is_dummy};
use crate::sync::in_flight::InFlight;
use core::sync::atomic::Ordering::Relaxed;

impl CpuCache {
    /// Looks at each slot and barn in use once. The sheaves of idle slots go to the slabs when
    /// `drain` finishes. Returns whether no thread has used the cache since the last tick: then
    /// this tick found no sheaf in a slot or barn, except main sheaves that must stay for want of a
    /// barrier.
    pub fn flush_idle<'a>(&'a self, drain: &mut Drain<'a>) -> bool {
        let mut is_used = false;
        for slot in self.used_storing_slots() {
            used::note_visit();
            let before = fingerprint(slot);
            if before != 0 {
                let rests = slot.seen.load(Relaxed) == before && is_steady(slot, before);
                if rests || self.is_bypassed() {
                    drain.take(self, slot);
                }
                // A main sheaf that stays only for want of a barrier is not in use.
                is_used |= !(rests && drain.leaves_mains() && fingerprint(slot) == before);
            }
            // Store the fingerprint of a slot that another drainer emptied, too. Do not write to a
            // slot with the same fingerprint: it may be unused.
            let after = fingerprint(slot);
            if slot.seen.load(Relaxed) != after {
                slot.seen.store(after, Relaxed);
            }
        }
        for slot in self.used_counted_slots() {
            is_used |= self.flush_idle_counted(drain, slot);
        }
        for barn in self.used_barns() {
            let _in_flight = (barn.fulls() > 0).then(InFlight::begin);
            is_used |= loop {
                let mut sheaf = match barn.take_unused() {
                    Unused::Sheaf(sheaf) => Owned(sheaf),
                    Unused::None { has_sheaf } => break has_sheaf,
                };
                is_used = true;
                self.tally().sheaf_free.fetch_sub(sheaf.count() as i64, Relaxed);
                self.flush_and_free(&mut sheaf, Keep::Pages);
            };
        }
        if !is_used {
            adapt::rest(self);
        }
        self.slabs().fold();
        !is_used
    }
}

impl CpuCache {
    /// The tick of a slot of the counted row. Its word `seen` is the distance to the next sample.
    /// So its fingerprint stands in `last_miss`, which counted slots do not use otherwise. Returns
    /// whether the slot was in use.
    fn flush_idle_counted<'a>(&'a self, drain: &mut Drain<'a>, slot: &'a Slot) -> bool {
        used::note_visit();
        let before = fingerprint(slot);
        let mut is_used = false;
        if before != 0 {
            let rests = slot.last_miss.load(Relaxed) == before && is_steady(slot, before);
            if rests || self.is_bypassed() {
                drain.take_counted(self, slot);
            }
            is_used = !(rests && drain.leaves_mains() && fingerprint(slot) == before);
        }
        let after = fingerprint(slot);
        if slot.last_miss.load(Relaxed) != after {
            slot.last_miss.store(after, Relaxed);
        }
        is_used
    }
}

/// Whether a slot looks the same for another microsecond: a loop that takes and frees the same few
/// objects may have looked the same twice by chance. With many busy caches, looking longer would
/// cost more than the drains that it saves.
fn is_steady(slot: &Slot, before: u32) -> bool {
    const TRIES: usize = 8;
    (0..TRIES).all(|_| {
        (0..8).for_each(|_| core::hint::spin_loop());
        fingerprint(slot) == before
    })
}

/// A fingerprint of a slot's sheaves and their counts; 0 for two dummies. Two different states
/// share a fingerprint once in 2^31. A sheaf may be freed while this reads it; its memory stays
/// mapped.
fn fingerprint(slot: &Slot) -> u32 {
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
        words => (words ^ words >> 32) as u32 | 1,
    }
}

//! Objects of very different sizes that outlive the threads that made them: the pattern of mstress,
//! as D. Leijen describes it in mimalloc-bench ("simulates real-world server-like allocation
//! patterns, using N threads with objects of varying sizes migrating between threads").
//!
//! ```text
//!   wave 1:  threads ── own slots ──┐ swap ┌── own slots ── threads
//!                                   ▼      ▼
//!                     shared slots  ▢ ▢ ▢ ▢ ▢ ▢ …
//!   wave 2:  new threads find there what the threads of wave 1 left
//! ```
//!
//! Each allocation replaces an own slot; one in four goes through a shared one, and what comes out
//! is another thread's.
//!
//! Sizes have a heavy tail: 16 to 31 bytes half of the time, twice that a quarter of it, and so on
//! to 128 KiB, so that every doubling has as many bytes as the one before. A thread that ends frees
//! half of its slots and leaves the others in shared ones.
//!
//! Must never: hold a lock; lose an object: what is swapped out is kept or freed, and the last
//! wave's objects are freed after it.

use super::crew::Seat;
use super::mixed::Held;
use super::random::Xorshift;
use crate::asm::opaque_size;
use crate::contestants::Contestant;
use std::sync::atomic::{AtomicPtr, Ordering::AcqRel};

/// Objects that a thread keeps.
const OWN: usize = 512;

/// Slots for all threads.
const SHARED: usize = 1024;

const SMALLEST_BYTES: usize = 16;
/// The tail ends after so many doublings.
const DOUBLINGS: u32 = 12;

/// One in so many allocations goes through a shared slot.
const SHARE_ONE_IN: usize = 4;

pub struct MstressRound {
    /// Allocations of each thread of each wave.
    allocations: usize,
    shared: Vec<AtomicPtr<u8>>,
}

impl MstressRound {
    pub fn new(allocations: usize) -> Self {
        Self { allocations, shared: (0..SHARED).map(|_| AtomicPtr::default()).collect() }
    }

    /// Puts `object` into a shared slot, and takes what was there.
    #[inline(always)]
    fn swap<C: Contestant>(&self, slot: usize, object: Option<Held<C>>) -> Option<Held<C>> {
        let object = object.map_or(std::ptr::null_mut(), Held::into_raw);
        let other = self.shared[slot].swap(object, AcqRel);
        // SAFETY: only this function fills the slots, with this contestant's objects, and a swap
        // takes an object out once.
        (!other.is_null()).then(|| unsafe { Held::from_raw(other) })
    }
}

fn size(random: &mut Xorshift) -> usize {
    let least = SMALLEST_BYTES << ((random.next() >> 32) | 1 << DOUBLINGS).trailing_zeros();
    opaque_size(least + random.below(least))
}

/// One thread of one wave. `seat.index` need not differ from wave to wave: what is found in the
/// slots does.
pub fn run<C: Contestant>(round: &MstressRound, seat: &Seat) {
    let mut random = Xorshift::new(seat.index);
    let mut own: Vec<Option<Held<C>>> = (0..OWN).map(|_| None).collect();
    seat.start();
    work(round, &mut own, &mut random);
    for (i, held) in own.into_iter().enumerate() {
        let left = if i % 2 == 0 { held } else { round.swap(random.below(SHARED), held) };
        left.into_iter().for_each(Held::give_back);
    }
    seat.stop();
}

#[inline(never)]
fn work<C: Contestant>(round: &MstressRound, own: &mut [Option<Held<C>>], random: &mut Xorshift) {
    for _ in 0..round.allocations {
        let mut object = Some(Held::obtain(size(random)));
        if random.below(SHARE_ONE_IN) == 0 {
            object = round.swap(random.below(SHARED), object);
        }
        if object.is_some() {
            let slot = random.below(own.len());
            std::mem::replace(&mut own[slot], object).into_iter().for_each(Held::give_back);
        }
    }
}

/// Frees what the last wave left.
pub fn free_survivors<C: Contestant>(round: &MstressRound) {
    for slot in 0..SHARED {
        round.swap::<C>(slot, None).into_iter().for_each(Held::give_back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::InThread;
    use crate::rounds::crew::tests::{all_that_malloc, in_fresh_threads};
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Acquire;

    #[test]
    fn survivors_pass_from_wave_to_wave_and_are_freed_in_the_end() {
        let _in_thread = InThread::enter();
        for entry in all_that_malloc() {
            let round = Arc::new(MstressRound::new(2000));
            for _ in 0..3 {
                let same = Arc::clone(&round);
                in_fresh_threads(3, entry, move |seat| (entry.mstress)(&same, seat));
                assert!(round.shared.iter().any(|slot| !slot.load(Acquire).is_null()));
            }
            (entry.mstress_end)(&round);
            assert!(round.shared.iter().all(|slot| slot.load(Acquire).is_null()));
        }
    }

    #[test]
    fn sizes_have_a_heavy_tail() {
        let mut random = Xorshift::new(0);
        let mut sizes: Vec<usize> = (0..100_000).map(|_| size(&mut random)).collect();
        sizes.sort_unstable();
        assert!(sizes[0] >= SMALLEST_BYTES && sizes[sizes.len() / 2] <= 2 * SMALLEST_BYTES);
        let largest = sizes[sizes.len() - 1];
        assert!(largest > 64 << 10 && largest < 128 << 10);
    }
}

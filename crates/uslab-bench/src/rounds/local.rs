//! One thread, a live set of N: allocate N objects into an array, free them all, repeat.
//!
//! With one live object the pointer stays in a register; with more it passes through the array, as
//! in a program. Every contestant gets the same loop, compiled for it, the same array and the same
//! number as a run-time value for the size. A short run of the same loop precedes the timed one, so
//! that a contestant does not pay for the caches that the previous one left.
//!
//! Must never: branch on an option inside a timed loop (options are const parameters), or allocate
//! in a round otherwise than from the contestant.

use super::Entry;
use super::objects::{empty, fill, obtain};
use super::random::shuffle;
use crate::asm::{opaque, opaque_size, ticks};
use crate::contestants::Contestant;
use crate::measure::Work;
use crate::results::Order;

/// The options of a round.
#[derive(Clone, Debug, Default)]
pub struct LocalRound {
    pub size: usize,
    pub repeats: usize,
    /// By the allocator's bulk calls, the whole live set at once.
    pub bulk: bool,
    /// Freed by the sized free.
    pub sized: bool,
    /// The first word of each object is written after its allocation.
    pub touch: bool,
    pub order: Order,
    /// The slots in the order in which [`Order::Random`] frees them.
    pub shuffled: Vec<u32>,
}

/// Runs the round in `slots`, whose length is the live set, and returns its ticks. After it the
/// slots hold the last objects' addresses, which are free again.
pub fn run<C: Contestant>(round: &LocalRound, slots: &mut [*mut u8]) -> u64 {
    match (round.touch, round.sized) {
        (false, false) => by_shape::<C, false, false>(round, slots),
        (false, true) => by_shape::<C, false, true>(round, slots),
        (true, false) => by_shape::<C, true, false>(round, slots),
        (true, true) => by_shape::<C, true, true>(round, slots),
    }
}

/// [`Order`] as a const parameter.
const FIFO: u8 = 0;
const LIFO: u8 = 1;
const RANDOM: u8 = 2;

fn by_shape<C: Contestant, const TOUCH: bool, const SIZED: bool>(
    round: &LocalRound,
    slots: &mut [*mut u8],
) -> u64 {
    if round.bulk {
        return warm_then_timed(round, |repeats| bulk::<C, TOUCH>(repeats, round.size, slots));
    }
    if let [slot] = slots {
        return warm_then_timed(round, |repeats| *slot = one::<C, TOUCH, SIZED>(repeats, round.size));
    }
    let set = match round.order {
        Order::Fifo => set::<C, TOUCH, SIZED, FIFO>,
        Order::Lifo => set::<C, TOUCH, SIZED, LIFO>,
        Order::Random => set::<C, TOUCH, SIZED, RANDOM>,
    };
    warm_then_timed(round, |repeats| set(repeats, round.size, slots, &round.shuffled))
}

#[inline(always)]
fn warm_then_timed(round: &LocalRound, mut loops: impl FnMut(usize)) -> u64 {
    loops(1 + round.repeats / 8);
    let start = ticks();
    loops(round.repeats);
    ticks() - start
}

/// # Safety
/// `object` is live and from `obtain::<C, _>(size)`.
#[inline(always)]
unsafe fn give_back<C: Contestant, const SIZED: bool>(object: *mut u8, size: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { if SIZED { C::free_sized(object, size) } else { C::free(object, size) } }
}

#[inline(never)]
fn one<C: Contestant, const TOUCH: bool, const SIZED: bool>(repeats: usize, size: usize) -> *mut u8 {
    let size = opaque_size(size);
    let mut last = std::ptr::null_mut();
    for _ in 0..repeats {
        last = opaque(obtain::<C, TOUCH>(size));
        // SAFETY: allocated a line above, the same pointer.
        unsafe { give_back::<C, SIZED>(last, size) };
    }
    last
}

#[inline(never)]
fn set<C: Contestant, const TOUCH: bool, const SIZED: bool, const ORDER: u8>(
    repeats: usize,
    size: usize,
    slots: &mut [*mut u8],
    shuffled: &[u32],
) {
    let size = opaque_size(size);
    assert!(ORDER != RANDOM || shuffled.len() == slots.len(), "the shuffle is of another live set");
    // SAFETY: `fill` allocated each; each order names each slot once.
    let release = |&object: &*mut u8| unsafe { give_back::<C, SIZED>(object, size) };
    for _ in 0..repeats {
        fill::<C, false, TOUCH>(size, slots);
        match ORDER {
            FIFO => slots.iter().for_each(release),
            LIFO => slots.iter().rev().for_each(release),
            _ => shuffled.iter().for_each(|&index| release(&slots[index as usize])),
        }
    }
}

#[inline(never)]
fn bulk<C: Contestant, const TOUCH: bool>(repeats: usize, size: usize, slots: &mut [*mut u8]) {
    let size = opaque_size(size);
    for _ in 0..repeats {
        fill::<C, true, TOUCH>(size, slots);
        // SAFETY: allocated above, each once.
        unsafe { empty::<C, true>(size, slots) };
    }
}

/// A live set of a contestant, as a lane of a row.
pub struct LocalWork {
    pub entry: Entry,
    pub live: usize,
    pub round: LocalRound,
}

impl Work for LocalWork {
    fn objects_per_repeat(&self) -> usize {
        self.live
    }

    fn prepare(&self) -> Box<dyn FnMut(usize) -> u64> {
        let run = self.entry.local;
        let mut slots = vec![std::ptr::null_mut(); self.live];
        let mut round = LocalRound { shuffled: shuffle(self.live), ..self.round.clone() };
        Box::new(move |repeats| {
            round.repeats = repeats;
            run(&round, &mut slots)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineup::MALLOC;

    #[test]
    fn every_order_runs_through() {
        for order in [Order::Fifo, Order::Lifo, Order::Random] {
            let round = LocalRound { size: 64, order, touch: true, ..LocalRound::default() };
            let work = LocalWork { entry: MALLOC, live: 65, round };
            assert_eq!(work.objects_per_repeat(), 65);
            work.prepare()(3);
        }
    }
}

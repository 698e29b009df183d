//! Independent threads: each replaces random objects of a live set of its own, of mixed small
//! sizes.
//!
//! ```text
//!   256 slots   ┌──┬───┬─┬────┬──┬ … ┐    pick a slot; free what is there; allocate 16 to 527
//!               └──┴───┴─┴────┴──┴ … ┘    bytes in its place; write the first word
//! ```
//!
//! The live set is filled before the clock starts and freed after it has stopped, so that only the
//! steady state is timed. Must never: share anything between the threads but the allocator.

use super::crew::Seat;
use super::objects::obtain;
use super::random::Xorshift;
use crate::asm::{opaque, opaque_size};
use crate::contestants::Contestant;
use std::marker::PhantomData;

pub const LIVE: usize = 256;
pub const SMALLEST_BYTES: usize = 16;
/// Sizes are this many, one byte apart.
pub const SIZES: usize = 512;

/// Replacements that one repetition makes in each thread.
pub const OPERATIONS: usize = 1000;

pub struct MixedRound {
    pub repeats: usize,
    /// Objects of each thread.
    pub live: usize,
    /// Called by each thread between the end of its work and the freeing of its live set.
    pub with_live: Option<Box<dyn Fn() + Send + Sync>>,
}

impl MixedRound {
    pub fn new(repeats: usize) -> Self {
        Self { repeats, live: LIVE, with_live: None }
    }
}

/// A live object of a contestant, and the size it was asked for with, which is its first word too.
/// Dropping it instead of giving it back leaks.
pub struct Held<C> {
    object: *mut u8,
    size: usize,
    of: PhantomData<fn() -> C>,
}

// SAFETY: a live object may be used and freed by any thread, if by one at a time.
unsafe impl<C> Send for Held<C> {}

impl<C: Contestant> Held<C> {
    /// `size` is 16 at least.
    #[inline(always)]
    pub fn obtain(size: usize) -> Self {
        let object = obtain::<C, true>(size);
        Self { object: opaque(object), size, of: PhantomData }
    }

    /// Reads the first word, as a user of the object would have, and frees it.
    #[inline(always)]
    pub fn give_back(self) {
        // SAFETY: the object is live: only `obtain` makes one of these, and this consumes it.
        unsafe {
            assert_eq!(self.object.cast::<usize>().read(), self.size, "an object was overwritten");
            C::free(self.object, self.size);
        }
    }

    /// The object's address, for another thread to find.
    #[inline(always)]
    pub fn into_raw(self) -> *mut u8 {
        self.object
    }

    /// # Safety
    /// `object` came from `into_raw` of the same contestant, on any thread, and this is done
    /// once with it.
    #[inline(always)]
    pub unsafe fn from_raw(object: *mut u8) -> Self {
        // SAFETY: the object is live, and its first word is its size since `obtain`.
        Self { object, size: unsafe { object.cast::<usize>().read() }, of: PhantomData }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Gives back what is in `place`, then puts a new one there: the old one first, as a program
    /// does that replaces a buffer.
    #[inline(always)]
    pub fn replace(place: &mut Self, size: usize) {
        // SAFETY: the place is read and written once each. If the check between them fails, the
        // object that is then in two places is dropped, which frees nothing.
        unsafe {
            let place = &raw mut *place;
            place.read().give_back();
            place.write(Self::obtain(size));
        }
    }
}

pub fn run<C: Contestant>(round: &MixedRound, seat: &Seat) {
    let mut random = Xorshift::new(seat.index);
    let mut held: Vec<Held<C>> =
        (0..round.live).map(|_| Held::obtain(SMALLEST_BYTES + random.below(SIZES))).collect();
    replace(OPERATIONS / 4, &mut held, &mut random);
    seat.start();
    replace(round.repeats * OPERATIONS, &mut held, &mut random);
    seat.stop();
    if let Some(with_live) = &round.with_live {
        with_live();
    }
    held.into_iter().for_each(Held::give_back);
}

#[inline(never)]
fn replace<C: Contestant>(times: usize, held: &mut [Held<C>], random: &mut Xorshift) {
    for _ in 0..times {
        let slot = random.below(held.len());
        Held::replace(&mut held[slot], opaque_size(SMALLEST_BYTES + random.below(SIZES)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::crew::tests::{all_that_malloc, in_crew};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn everybody_replaces_and_nothing_is_overwritten() {
        for entry in all_that_malloc() {
            let seen = Arc::new(AtomicUsize::new(0));
            let with_live = {
                let seen = Arc::clone(&seen);
                move || {
                    seen.fetch_add(1, Relaxed);
                }
            };
            let round = MixedRound { with_live: Some(Box::new(with_live)), ..MixedRound::new(2) };
            in_crew(3, move |seat| (entry.mixed)(&round, seat));
            assert_eq!(seen.load(Relaxed), 3);
        }
    }
}

//! One thread, a long batch: thousands of objects are allocated, then freed, and each part is
//! timed.
//!
//! ```text
//!   Live      allocate all, in steps │ free all, in steps, as allocated │ flush, if asked for
//!   Through   allocate a step, free it, again until all went through    │ flush, if asked for
//! ```
//!
//! A step is one object by the plain calls, or N by the bulk calls. *Flush* moves the objects that
//! the allocator kept in front of its slabs to them, and returns empty slabs to the page layer. So
//! a free that only queues does not hide its cost. Contestants without such a call flush nothing.
//!
//! One whole batch runs before the clock starts, as in local.rs. So every round begins with the
//! memory that the allocator kept, or, after a flush, with none. The parts are read from the same
//! counter between them, and add up to the round.
//!
//! Must never: branch on an option inside a timed loop, or allocate in a round otherwise than from
//! the contestant.

use super::Entry;
use super::objects::{empty, fill};
use crate::asm::{opaque_size, ticks};
use crate::contestants::Contestant;
use crate::measure::Work;
use std::cell::Cell;
use std::rc::Rc;

/// The objects that are live at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The whole batch.
    Live,
    /// One step.
    Through,
}

/// A batch of a contestant.
#[derive(Clone, Debug)]
pub struct BatchRound {
    pub size: usize,
    pub shape: Shape,
    /// Objects a bulk call; `None`: one at a time by plain calls. Peers, which have no bulk calls,
    /// loop over the step.
    pub step: Option<usize>,
    /// The first word of each object is written after its allocation.
    pub touch: bool,
    pub flush: bool,
}

/// Ticks of a round's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub alloc: u64,
    pub free: u64,
    /// Of [`Shape::Through`], where allocations and frees take turns.
    pub both: u64,
    pub flush: u64,
}

impl Parts {
    pub fn sum(&self) -> u64 {
        self.alloc + self.free + self.both + self.flush
    }

    fn add(&mut self, other: Parts) {
        self.alloc += other.alloc;
        self.free += other.free;
        self.both += other.both;
        self.flush += other.flush;
    }
}

/// Runs `repeats` batches in `slots`, whose length is the batch, and returns the ticks of their
/// parts.
pub fn run<C: Contestant>(round: &BatchRound, repeats: usize, slots: &mut [*mut u8]) -> Parts {
    let batch = match (round.step.is_some(), round.touch) {
        (false, false) => one_batch::<C, false, false>,
        (false, true) => one_batch::<C, false, true>,
        (true, false) => one_batch::<C, true, false>,
        (true, true) => one_batch::<C, true, true>,
    };
    batch(round, slots);
    let mut parts = Parts::default();
    (0..repeats).for_each(|_| parts.add(batch(round, slots)));
    parts
}

fn one_batch<C: Contestant, const BULK: bool, const TOUCH: bool>(
    round: &BatchRound,
    slots: &mut [*mut u8],
) -> Parts {
    let size = opaque_size(round.size);
    // One at a time, all that live at once are one step.
    let alone = if round.shape == Shape::Live { slots.len() } else { 1 };
    let step = round.step.unwrap_or(alone).max(1);
    let mut parts = Parts::default();
    let start = ticks();
    let worked = match round.shape {
        Shape::Live => {
            fill_all::<C, BULK, TOUCH>(size, step, slots);
            let filled = ticks();
            // SAFETY: `fill` allocated each of them; each is freed once.
            unsafe { empty_all::<C, BULK>(size, step, slots) };
            let emptied = ticks();
            (parts.alloc, parts.free) = (filled - start, emptied - filled);
            emptied
        }
        Shape::Through => {
            through::<C, BULK, TOUCH>(size, step, slots);
            let now = ticks();
            parts.both = now - start;
            now
        }
    };
    if round.flush {
        C::flush(size);
        parts.flush = ticks() - worked;
    }
    parts
}

#[inline(never)]
fn fill_all<C: Contestant, const BULK: bool, const TOUCH: bool>(
    size: usize,
    step: usize,
    slots: &mut [*mut u8],
) {
    slots.chunks_mut(step).for_each(|slots| fill::<C, BULK, TOUCH>(size, slots));
}

/// # Safety
/// As for [`empty`].
#[inline(never)]
unsafe fn empty_all<C: Contestant, const BULK: bool>(size: usize, step: usize, slots: &[*mut u8]) {
    // SAFETY: the caller's promise is the same.
    slots.chunks(step).for_each(|slots| unsafe { empty::<C, BULK>(size, slots) });
}

/// A step's slots are used again and again, so that only the objects move through the caches.
#[inline(never)]
fn through<C: Contestant, const BULK: bool, const TOUCH: bool>(
    size: usize,
    step: usize,
    slots: &mut [*mut u8],
) {
    let mut left = slots.len();
    while left > 0 {
        let (slots, _) = slots.split_at_mut(step.min(left));
        fill::<C, BULK, TOUCH>(size, slots);
        // SAFETY: `fill` allocated each of them; each is freed once.
        unsafe { empty::<C, BULK>(size, slots) };
        left -= slots.len();
    }
}

/// A batch of a contestant, as a lane of a row.
pub struct BatchWork {
    entry: Entry,
    objects: usize,
    round: BatchRound,
    /// A round is one batch, and this is the most rounds. `None`: a round has as many batches as
    /// fill its time.
    long_rounds: Option<usize>,
    last: Rc<Cell<Parts>>,
}

impl BatchWork {
    pub fn new(entry: Entry, objects: usize, round: BatchRound, long_rounds: Option<usize>) -> Self {
        Self { entry, objects, round, long_rounds, last: Rc::default() }
    }
}

impl Work for BatchWork {
    fn objects_per_repeat(&self) -> usize {
        self.objects
    }

    fn fixed_repeats(&self) -> Option<usize> {
        self.long_rounds.map(|_| 1)
    }

    fn max_rounds(&self) -> usize {
        self.long_rounds.unwrap_or(usize::MAX)
    }

    fn parts(&self) -> Vec<(&'static str, u64)> {
        let parts = self.last.get();
        let named = match self.round.shape {
            Shape::Live => vec![("alloc", parts.alloc), ("free", parts.free)],
            Shape::Through => vec![("pair", parts.both)],
        };
        named.into_iter().chain(self.round.flush.then_some(("flush", parts.flush))).collect()
    }

    fn prepare(&self) -> Box<dyn FnMut(usize) -> u64> {
        let (run, round, last) = (self.entry.batch, self.round.clone(), Rc::clone(&self.last));
        let mut slots = vec![std::ptr::null_mut(); self.objects];
        Box::new(move |repeats| {
            let parts = run(&round, repeats, &mut slots);
            last.set(parts);
            parts.sum()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineup::cache;

    #[test]
    fn every_shape_runs_through_and_its_parts_are_the_whole() {
        for shape in [Shape::Live, Shape::Through] {
            for step in [None, Some(64)] {
                for flush in [false, true] {
                    let round = BatchRound { size: 64, shape, step, touch: true, flush };
                    let work = BatchWork::new(cache(64), 1000, round, None);
                    let sum = work.prepare()(3);
                    let parts = work.parts();
                    assert_eq!(parts.iter().map(|part| part.1).sum::<u64>(), sum);
                    assert_eq!(parts.iter().any(|part| part.0 == "flush"), flush);
                }
            }
        }
    }
}

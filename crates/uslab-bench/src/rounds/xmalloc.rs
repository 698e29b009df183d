//! Threads that only allocate and threads that only free: the pattern of xmalloc-test, by C. Lever
//! and D. Boreham ("malloc() Performance in a Multithreaded Linux Environment", USENIX 2000), in
//! the form that mimalloc-bench describes. Objects of various sizes migrate from the allocating to
//! the freeing threads in batches.
//!
//! ```text
//!   half the threads ── take an empty box, fill it ──► full boxes ──► take one, free what is in it
//!          ▲                                                                    │ the other half
//!          └──────────────────────── empty boxes ◄──────────────────────────────┘
//! ```
//!
//! Four boxes a thread bound the live objects. A box holds 1024 objects, so that the lock and the
//! sleeping around the boxes weigh little. The original program, whose runs take seconds, has
//! batches of 4096. Sizes are powers of two and what lies halfway between, 16 to 2048 bytes, chosen
//! at random.
//!
//! Must never: allocate a box in the round; free an object in the thread that allocated it.

use super::crew::Seat;
use super::mixed::Held;
use super::random::Xorshift;
use crate::asm::opaque_size;
use crate::contestants::Contestant;
use std::sync::{Condvar, Mutex, PoisonError};

/// Objects in a box.
pub const BOX: usize = 1024;

const BOXES_A_THREAD: usize = 4;

const SIZES: [usize; 15] = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];

/// Addresses of live objects, each of which knows its size.
struct Objects(Vec<*mut u8>);

// SAFETY: live objects may be used and freed by any thread, and a box has one owner at a time.
unsafe impl Send for Objects {}

/// Boxes that wait to be taken.
#[derive(Default)]
struct Boxes {
    waiting: Mutex<Vec<Objects>>,
    more: Condvar,
}

impl Boxes {
    fn put(&self, objects: Objects) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(objects);
        self.more.notify_one();
    }

    /// Sleeps until there is one.
    fn take(&self) -> Objects {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match waiting.pop() {
                Some(objects) => return objects,
                None => waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

pub struct XmallocRound {
    /// Boxes that each allocating thread fills, and each freeing thread empties.
    boxes: usize,
    full: Boxes,
    empty: Boxes,
}

impl XmallocRound {
    /// `threads` is even.
    pub fn new(threads: usize, boxes: usize) -> Self {
        let has_room = |n| Boxes { waiting: Mutex::new(Vec::with_capacity(n)), ..Boxes::default() };
        let count = BOXES_A_THREAD * threads;
        let round = Self { boxes, full: has_room(count), empty: has_room(count) };
        (0..count).for_each(|_| round.empty.put(Objects(Vec::with_capacity(BOX))));
        round
    }
}

pub fn run<C: Contestant>(round: &XmallocRound, seat: &Seat) {
    let mut random = Xorshift::new(seat.index);
    seat.start();
    for _ in 0..round.boxes {
        if seat.index.is_multiple_of(2) {
            let mut objects = round.empty.take();
            fill::<C>(&mut objects, &mut random);
            round.full.put(objects);
        } else {
            let mut objects = round.full.take();
            drain::<C>(&mut objects);
            round.empty.put(objects);
        }
    }
    seat.stop();
}

#[inline(never)]
fn fill<C: Contestant>(objects: &mut Objects, random: &mut Xorshift) {
    for _ in 0..BOX {
        let size = opaque_size(SIZES[random.below(SIZES.len())]);
        objects.0.push(Held::<C>::obtain(size).into_raw());
    }
}

/// `objects` is a box of the round, which is one contestant's.
#[inline(never)]
fn drain<C: Contestant>(objects: &mut Objects) {
    for object in objects.0.drain(..) {
        // SAFETY: `fill` put it there, in this round, with the same contestant; it leaves the box
        // here.
        unsafe { Held::<C>::from_raw(object) }.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::crew::tests::{all_that_malloc, in_crew};
    use std::sync::Arc;

    #[test]
    fn every_box_comes_back_empty() {
        for entry in all_that_malloc() {
            for threads in [2, 6] {
                let round = Arc::new(XmallocRound::new(threads, 9));
                let same = Arc::clone(&round);
                in_crew(threads, move |seat| (entry.xmalloc)(&same, seat));
                assert!(round.full.waiting.lock().unwrap().is_empty());
                let empty = round.empty.waiting.lock().unwrap();
                assert_eq!(empty.len(), BOXES_A_THREAD * threads);
                assert!(empty.iter().all(|objects| objects.0.is_empty()));
            }
        }
    }
}

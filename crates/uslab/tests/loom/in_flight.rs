//! A search for memory while another thread has some in flight: a model of the protocol of
//! `sync::in_flight`.
//!
//! A drainer moves memory from slots to slabs; in between it is in neither. A search that finds
//! none in either place must know that it may have missed some. There is one unit of memory all the
//! time, so "nothing found, nothing missed" is always wrong.

use crate::{explore, mistake_in};
use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};
use loom::thread;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// The memory is taken before it is counted as in flight.
    TakesFirst,
    /// The search checks only at its end, and only for memory in flight at that time.
    AsksAtTheEnd,
    /// The search checks only at its beginning.
    AsksAtTheBeginning,
}

struct Memory {
    slots: AtomicUsize,
    slabs: AtomicUsize,
    taken: AtomicUsize,
    landed: AtomicUsize,
}

impl Memory {
    fn drain(&self, mistake: Mistake) {
        let count = || {
            self.taken.fetch_add(1, SeqCst);
            fence(SeqCst);
        };
        if mistake == Mistake::TakesFirst {
            self.slots.store(0, Relaxed);
            count();
        } else {
            count();
            self.slots.store(0, Relaxed);
        }
        self.slabs.store(1, Relaxed);
        self.landed.fetch_add(1, Release);
    }

    /// Searches slabs first, where the memory arrives last. Returns whether a thread would find
    /// memory or search again.
    fn look(&self, mistake: Mistake) -> bool {
        let before = self.landed.load(Acquire);
        let in_hand_before = self.taken.load(Relaxed) != before;
        let found = self.slabs.load(Relaxed) + self.slots.load(Relaxed) > 0;
        fence(Acquire);
        found
            || match mistake {
                Mistake::AsksAtTheEnd => self.taken.load(Relaxed) != self.landed.load(Relaxed),
                Mistake::AsksAtTheBeginning => in_hand_before,
                Mistake::None | Mistake::TakesFirst => self.taken.load(Relaxed) != before,
            }
    }
}

fn looked_for_while_drained(mistake: Mistake) {
    let memory = Arc::new(Memory {
        slots: AtomicUsize::new(1),
        slabs: AtomicUsize::new(0),
        taken: AtomicUsize::new(0),
        landed: AtomicUsize::new(0),
    });
    let drainer = {
        let memory = memory.clone();
        thread::spawn(move || memory.drain(mistake))
    };
    assert!(memory.look(mistake), "the search found nothing, and does not know that it missed memory");
    drainer.join().unwrap();
    assert!(memory.look(mistake), "the search missed memory that had landed");
}

#[test]
fn a_look_meets_a_drain() {
    explore(|| looked_for_while_drained(Mistake::None));
}

#[test]
fn looks_and_drains_that_get_it_wrong_are_found() {
    for mistake in [Mistake::TakesFirst, Mistake::AsksAtTheEnd, Mistake::AsksAtTheBeginning] {
        let found = mistake_in(move || looked_for_while_drained(mistake));
        assert!(found.contains("does not know that it missed memory"), "{found}");
    }
}

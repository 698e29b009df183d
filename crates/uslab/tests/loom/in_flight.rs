//! Who has memory in hand, and who looks for some meanwhile (`sync::in_flight`): a model of the protocol.
//!
//! Somebody moves memory from slots to slabs, with nothing to be found anywhere in between. A look that finds none in either place must
//! know that it missed some. There is a unit of memory all the time, so "nothing, and nothing missed" is always wrong.

use crate::{explore, mistake_in};
use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};
use loom::thread;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// The memory is taken before that is counted.
    TakesFirst,
    /// A look asks only at its end, and whether something is in hand then.
    AsksAtTheEnd,
    /// A look asks only at its beginning.
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

    /// Slabs first, as the memory comes there last. Whether a thread would go on looking.
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
    assert!(memory.look(mistake), "nothing was found, and nothing is known to have been missed");
    drainer.join().unwrap();
    assert!(memory.look(mistake), "what was put down is not found");
}

#[test]
fn a_look_meets_a_drain() {
    explore(|| looked_for_while_drained(Mistake::None));
}

#[test]
fn looks_and_drains_that_get_it_wrong_are_found() {
    for mistake in [Mistake::TakesFirst, Mistake::AsksAtTheEnd, Mistake::AsksAtTheBeginning] {
        let found = mistake_in(move || looked_for_while_drained(mistake));
        assert!(found.contains("known to have been missed"), "{found}");
    }
}

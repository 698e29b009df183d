//! A thread allocates from a `static` cache, or by `malloc`, while another thread sets up the
//! library and creates the cache (`rseq::init`, `rseq::detect::area_offset`).
//!
//! A sequence uses two words that it reads without a lock: the cache's slots, and the area with the
//! CPU number. With a real cache's slots and the scratch area it would use CPU 0's slot without
//! ever being restarted. With the real area and the dummy slots it needs the dummy slots of all
//! CPUs.

use super::{explore, mistake_in};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use loom::thread;

const DUMMIES: usize = 0;
const CACHE: usize = 1;
const SCRATCH: usize = 0;
const REGISTERED: usize = 1;

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The area is loaded first.
    AreaFirst,
    /// The slots are loaded without acquire.
    SlotsRelaxed,
    /// The area is published without release.
    AreaRelaxed,
}

struct Library {
    /// Whether the dummy slots of all CPUs are filled in: the compiler fills in those of CPU 0.
    dummies: AtomicUsize,
    area: AtomicUsize,
    slots: AtomicUsize,
    mistake: Mistake,
}

impl Library {
    fn set_up(&self) {
        let order = |good: Ordering, mistake| if self.mistake == mistake { Relaxed } else { good };
        self.dummies.store(1, Relaxed);
        self.area.store(REGISTERED, order(Release, Mistake::AreaRelaxed));
        self.slots.store(CACHE, Release);
    }

    fn pop(&self) {
        let slots_order = if self.mistake == Mistake::SlotsRelaxed { Relaxed } else { Acquire };
        let (slots, area);
        // Acquire at the area represents the address dependency: the CPU number is read from the
        // area, and the slot's address depends on the number.
        if self.mistake == Mistake::AreaFirst {
            area = self.area.load(Acquire);
            slots = self.slots.load(slots_order);
        } else {
            slots = self.slots.load(slots_order);
            area = self.area.load(Acquire);
        }
        assert!((slots, area) != (CACHE, SCRATCH), "a cache's slots are used with the scratch area");
        if (slots, area) == (DUMMIES, REGISTERED) {
            assert_eq!(self.dummies.load(Relaxed), 1, "a CPU has no dummy");
        }
    }
}

fn first_use_races(mistake: Mistake) {
    let library = Arc::new(Library {
        dummies: AtomicUsize::new(0),
        area: AtomicUsize::new(SCRATCH),
        slots: AtomicUsize::new(DUMMIES),
        mistake,
    });
    let other = {
        let library = library.clone();
        thread::spawn(move || library.pop())
    };
    library.set_up();
    other.join().unwrap();
}

#[test]
fn a_first_use_meets_the_start() {
    explore(|| first_use_races(Mistake::None));
}

#[test]
fn words_that_are_read_or_published_out_of_order_are_found() {
    for mistake in [Mistake::AreaFirst, Mistake::SlotsRelaxed] {
        let found = mistake_in(move || first_use_races(mistake));
        assert!(found.contains("with the scratch area"), "{found}");
    }
    let found = mistake_in(|| first_use_races(Mistake::AreaRelaxed));
    assert!(found.contains("no dummy"), "{found}");
}

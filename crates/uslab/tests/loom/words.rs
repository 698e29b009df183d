//! The slab words: the real `give`, `take`, `add` and `subtract`, with the lists' lock,
//! reconciling, release and growth of `slab/pool.rs` around one slab of three objects.
//!
//! Two threads free without the lock; one allocates under it, or from a slab that it has moved to
//! the taking list. The model checks at every step that no object has two owners, and that no
//! thread changes the words of a released slab. At the end it checks that no object is lost, and
//! that the slab is in the list for its count.

use super::ledger::Ledger;
use super::{explore, mistake_in};
use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicUsize, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use uslab::internal::atomic::{AtomicI32, AtomicU64};
use uslab::internal::words;

const OBJECTS: usize = 3;
const ALL: u64 = (1 << OBJECTS) - 1;
/// The cache's id in the page map.
const ID: usize = 7;

/// As `lists::List`; `None` is also the list of full slabs.
#[derive(Clone, Copy, PartialEq, Debug)]
enum List {
    None,
    Partial,
    Empty,
    Taking,
}

impl List {
    const ALL: [List; 4] = [List::None, List::Partial, List::Empty, List::Taking];
}

fn list_for(free: i32) -> List {
    match free {
        ..=0 => List::None,
        1 | 2 => List::Partial,
        _ => List::Empty,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The count is raised before the bit is set.
    CountFirst,
    /// A late reconciler does not check the page's owner.
    NoOwnerCheck,
    /// The taker lowers the count by the number that it wanted, not by the number that it got.
    CountsWanted,
    /// A late reconciler places a slab that a taker works on without the lock.
    RelistsTaken,
    /// A taker without the lock places the slab by the count that it left, not by the count now.
    PlacesByOldCount,
    /// A free does not look whether a taker has put the slab aside.
    LeavesAside,
    /// A taker does not compare again after it has put the slab aside.
    ComparesOnce,
}

/// Whether a taker holds the lists' lock while it works on the bitmap.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Locked,
    Unlocked,
}

/// One slab, and the shared state around it.
struct Slab {
    word: AtomicU64,
    count: AtomicI32,
    /// The page map's entry.
    owner: AtomicUsize,
    /// Written under `lists`, except to initialise a fresh slab.
    list: AtomicUsize,
    lists: Mutex<()>,
    /// The page layer: true while the page is free.
    pages: Mutex<bool>,
    /// Memory that users write to: loom detects a missing happens-before here.
    contents: [UnsafeCell<usize>; OBJECTS],
    ledger: Ledger,
    /// Whether the slab is released and not grown again, for the check.
    gone: AtomicBool,
    mistake: Mistake,
}

impl Slab {
    /// `taken` is the mask of the objects in use, each owned by the thread of its number plus one.
    fn new(taken: u64, mistake: Mistake) -> Arc<Slab> {
        let free = (ALL & !taken).count_ones() as i32;
        let slab = Slab {
            word: AtomicU64::new(ALL & !taken),
            count: AtomicI32::new(free),
            owner: AtomicUsize::new(ID),
            list: AtomicUsize::new(list_for(free) as usize),
            lists: Mutex::new(()),
            pages: Mutex::new(false),
            contents: std::array::from_fn(|_| UnsafeCell::new(0)),
            ledger: Ledger::new("object", OBJECTS),
            gone: AtomicBool::new(false),
            mistake,
        };
        for object in (0..OBJECTS).filter(|object| taken >> object & 1 == 1) {
            slab.ledger.seize(object, object + 1);
        }
        Arc::new(slab)
    }

    fn list(&self) -> List {
        List::ALL[self.list.load(Relaxed)]
    }

    fn place(&self, list: List) {
        self.list.store(list as usize, Relaxed);
    }

    /// `Slabs::agrees`.
    fn agrees(&self) -> bool {
        let count = self.count.load(Acquire);
        self.word.load(Acquire).count_ones() as i32 == count
    }

    /// `Slabs::is_counted` without the wait. The caller holds `lists`.
    fn is_counted(&self) -> bool {
        if self.agrees() {
            return true;
        }
        self.place(List::None);
        fence(SeqCst);
        if self.mistake != Mistake::ComparesOnce && self.agrees() {
            self.place(list_for(self.count.load(Acquire)));
        }
        false
    }

    /// `Slabs::free` for one object.
    fn free(&self, object: usize, thread_id: usize) {
        self.touch(object, thread_id);
        self.ledger.let_go(object, thread_id);
        let before = if self.mistake == Mistake::CountFirst {
            let before = words::add(&self.count, 1);
            self.set_bit(object);
            before
        } else {
            self.set_bit(object);
            words::add(&self.count, 1)
        };
        // The real code has sequentially consistent accesses, which loom takes for weaker ones.
        fence(SeqCst);
        let is_aside = self.mistake != Mistake::LeavesAside && self.list() == List::None;
        if list_for(before) != list_for(before + 1) || is_aside {
            self.relist();
        }
    }

    fn set_bit(&self, object: usize) {
        let twice = words::free(&self.word, 1 << object);
        assert!(!self.gone.load(SeqCst), "a bit is set in a slab that was released");
        assert_eq!(twice, 0, "object {object} was free already");
    }

    /// `Slabs::relist`, with a target of no empty slabs.
    fn relist(&self) {
        let lists = self.lists.lock().unwrap();
        if self.mistake != Mistake::NoOwnerCheck && self.owner.load(Relaxed) != ID {
            return;
        }
        fence(Acquire);
        if self.mistake != Mistake::RelistsTaken && self.list() == List::Taking {
            return;
        }
        let list = list_for(self.count.load(Acquire));
        self.place(list);
        if list != List::Empty {
            return;
        }
        // Slabs::take_empty_slab
        self.place(List::None);
        self.owner.store(0, Release);
        drop(lists);
        // Slabs::release
        assert!(!self.gone.swap(true, SeqCst), "the slab is released twice");
        assert_eq!(self.ledger.owned(), [], "a slab with objects in use is released");
        *self.pages.lock().unwrap() = true;
    }

    /// `Slabs::take` for up to `wanted` objects of a listed slab, and `Slabs::grow` if there are
    /// none and the page is free.
    fn take(&self, takes: Takes, wanted: usize, thread_id: usize) -> Vec<usize> {
        let lists = self.lists.lock().unwrap();
        let listed = self.list() != List::None;
        if self.list() == List::Taking {
            return Vec::new();
        }
        if listed && takes == Takes::Unlocked {
            self.place(List::Taking);
            drop(lists);
            let mask = words::take(&self.word, wanted);
            let taken = self.own(mask, thread_id);
            let left = words::subtract(&self.count, taken.len());
            let _lists = self.lists.lock().unwrap();
            let is_late = self.mistake == Mistake::PlacesByOldCount;
            self.place(list_for(if is_late { left } else { self.count.load(Acquire) }));
            return taken;
        }
        if listed {
            if !self.is_counted() {
                return Vec::new();
            }
            let mask = words::take(&self.word, wanted);
            let taken = self.own(mask, thread_id);
            let lowered = if self.mistake == Mistake::CountsWanted { wanted } else { taken.len() };
            let left = words::subtract(&self.count, lowered);
            self.place(list_for(left));
            return taken;
        }
        drop(lists);
        if !std::mem::take(&mut *self.pages.lock().unwrap()) {
            return Vec::new();
        }
        // The page was free, so no other thread uses its descriptor (`Slab::init`).
        self.gone.store(false, SeqCst);
        let taken = self.own(1, thread_id);
        self.place(List::None);
        self.word.store(ALL & !1, Relaxed);
        self.count.store(OBJECTS as i32 - 1, Release);
        self.owner.store(ID, Release);
        let _lists = self.lists.lock().unwrap();
        self.place(list_for(self.count.load(Acquire)));
        taken
    }

    fn own(&self, mask: u64, thread_id: usize) -> Vec<usize> {
        let objects: Vec<usize> = (0..OBJECTS).filter(|object| mask >> object & 1 == 1).collect();
        for &object in &objects {
            self.ledger.seize(object, thread_id);
            self.touch(object, thread_id);
        }
        objects
    }

    /// The owner uses the object.
    fn touch(&self, object: usize, thread_id: usize) {
        // SAFETY: only the caller uses the object; loom checks that every other use is ordered with
        // this one.
        self.contents[object].with_mut(|content| unsafe { *content = thread_id });
    }

    /// The check after all threads ended.
    fn judge(&self) {
        let bits = self.word.load(Acquire);
        let owned = self.ledger.owned().iter().fold(0, |mask, object| mask | 1 << object);
        assert_eq!(bits ^ owned, ALL, "free {bits:b} and owned {owned:b} are not all objects, once each");
        assert_eq!(self.count.load(Acquire), bits.count_ones() as i32, "the count is not that of the bits");
        let list = self.list();
        if self.gone.load(SeqCst) {
            assert_eq!((list, self.owner.load(Acquire), bits), (List::None, 0, ALL));
        } else {
            assert_eq!(list, list_for(bits.count_ones() as i32), "the slab stands in the wrong list");
            assert_eq!(self.owner.load(Acquire), ID);
        }
    }
}

/// Two threads that free one object each, and one that allocates up to `wanted` and frees `back` of
/// them.
fn givers_and_a_taker(taken: u64, wanted: usize, back: usize, mistake: Mistake) {
    givers_meet(Takes::Locked, taken, wanted, back, mistake);
}

/// As [`givers_and_a_taker`], with a taker that works without the lock.
fn givers_and_an_unlocked_taker(taken: u64, wanted: usize, back: usize, mistake: Mistake) {
    givers_meet(Takes::Unlocked, taken, wanted, back, mistake);
}

fn givers_meet(takes: Takes, taken: u64, wanted: usize, back: usize, mistake: Mistake) {
    let slab = Slab::new(taken, mistake);
    let givers = [0, 1].map(|object| {
        let slab = slab.clone();
        thread::spawn(move || slab.free(object, object + 1))
    });
    let objects = slab.take(takes, wanted, 9);
    objects.into_iter().take(back).for_each(|object| slab.free(object, 9));
    givers.into_iter().for_each(|giver| giver.join().unwrap());
    slab.judge();
}

#[test]
fn a_taker_of_one_object_meets_two_givers() {
    explore(|| givers_and_a_taker(0b011, 1, 0, Mistake::None));
}

#[test]
fn a_taker_that_gives_back_meets_two_givers_and_the_slab_is_released() {
    explore(|| givers_and_a_taker(0b011, 1, 1, Mistake::None));
}

#[test]
fn a_taker_of_whole_words_takes_what_givers_add_meanwhile() {
    explore(|| givers_and_a_taker(0b011, 64, 2, Mistake::None));
}

#[test]
fn a_taker_without_the_lock_meets_two_givers() {
    explore(|| givers_and_an_unlocked_taker(0b011, 1, 0, Mistake::None));
    explore(|| givers_and_an_unlocked_taker(0b011, 64, 2, Mistake::None));
}

#[test]
fn two_takers_without_the_lock_meet_a_giver() {
    explore(|| {
        // One object stays in use, so that the slab stays.
        let slab = Slab::new(0b101, Mistake::None);
        let threads = [1, 9].map(|id| {
            let slab = slab.clone();
            thread::spawn(move || match id {
                1 => slab.free(0, 1),
                _ => drop(slab.take(Takes::Unlocked, 1, id)),
            })
        });
        slab.take(Takes::Unlocked, 1, 8);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        slab.judge();
    });
}

#[test]
fn a_slab_that_is_released_and_grown_again_meets_late_reconcilers() {
    explore(|| givers_and_a_taker(0b011, 64, 3, Mistake::None));
    explore(|| {
        let slab = Slab::new(0b111, Mistake::None);
        let givers = [vec![0, 1], vec![2]].map(|objects| {
            let slab = slab.clone();
            thread::spawn(move || objects.into_iter().for_each(|object| slab.free(object, object + 1)))
        });
        for _ in 0..2 {
            slab.take(Takes::Locked, 1, 9);
        }
        givers.into_iter().for_each(|giver| giver.join().unwrap());
        slab.judge();
    });
}

#[test]
fn a_slab_that_a_taker_puts_aside_is_found_again() {
    // One object is free, so that no giver crosses a boundary of the lists.
    explore(|| giver_and_a_taker(Mistake::None));
    for mistake in [Mistake::LeavesAside, Mistake::ComparesOnce] {
        let found = mistake_in(move || giver_and_a_taker(mistake));
        assert!(found.contains("stands in the wrong list"), "{found}");
    }
}

/// A thread frees one of three objects, of which another is free already; one allocates.
fn giver_and_a_taker(mistake: Mistake) {
    let slab = Slab::new(0b011, mistake);
    let giver = slab.clone();
    let giver = thread::spawn(move || giver.free(0, 1));
    slab.take(Takes::Locked, 1, 9);
    giver.join().unwrap();
    slab.judge();
}

#[test]
fn a_count_raised_before_the_bits_is_found() {
    let found = mistake_in(|| givers_and_a_taker(0b011, 1, 1, Mistake::CountFirst));
    assert!(found.contains("slab that was released") || found.contains("in use is released"), "{found}");
}

#[test]
fn a_late_reconciler_that_does_not_check_the_owner_is_found() {
    let found = mistake_in(|| givers_and_a_taker(0b011, 1, 1, Mistake::NoOwnerCheck));
    assert!(found.contains("released twice"), "{found}");
}

#[test]
fn a_count_lowered_by_the_number_wanted_is_found() {
    let found = mistake_in(|| givers_and_a_taker(0b011, 64, 2, Mistake::CountsWanted));
    assert!(found.contains("the count is not that of the bits"), "{found}");
}

#[test]
fn a_slab_that_is_placed_while_a_taker_works_on_it_is_found() {
    let found = mistake_in(|| givers_and_an_unlocked_taker(0b011, 1, 1, Mistake::RelistsTaken));
    assert!(found.contains("in use is released") || found.contains("wrong list"), "{found}");
}

#[test]
fn a_slab_that_is_placed_by_an_old_count_is_found() {
    let found = mistake_in(|| givers_and_an_unlocked_taker(0b011, 1, 0, Mistake::PlacesByOldCount));
    assert!(found.contains("wrong list"), "{found}");
}

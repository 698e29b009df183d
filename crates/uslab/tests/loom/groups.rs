//! A slab is released in one group of CPUs and made again in another, while a thread that freed an
//! object has not reached the lists yet (`Slabs::place_all`).
//!
//! The late thread reads the group without a lock, takes the lock of that group's lists, and
//! decides under it. The model checks that a slab is placed only in the lists of its own group,
//! under their lock, and that the thread's other slab of the same group is placed all the same.

use super::{explore, mistake_in};
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use loom::thread;

const NO_OWNER: usize = 0;
const CACHE: usize = 7;
/// The group of the other slab, which lives on.
const GROUP_OF_OTHER: usize = 0;

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The thread reads the group before the fence that follows the owner.
    GroupBeforeFence,
    /// The thread reads the group only without the lock.
    GroupWithoutLock,
    /// The thread reads the group once to compare it with the other slab's, and once to lock.
    GroupTwice,
}

struct Slab {
    owner: AtomicUsize,
    group: AtomicUsize,
    lists: [Mutex<()>; 2],
    /// The slab's true group, for the check: updated in the steps that change it, under no lock of
    /// the model.
    truly_in: std::sync::atomic::AtomicUsize,
}

impl Slab {
    /// `Slabs::take_empty_slab` of group 0, the page layer, and `Slabs::grow` of group 1.
    fn move_to_group_1(&self) {
        {
            let _lists = self.lists[0].lock().unwrap();
            self.owner.store(NO_OWNER, Release);
        }
        self.group.store(1, Relaxed);
        self.truly_in.store(1, std::sync::atomic::Ordering::SeqCst);
        self.owner.store(CACHE, Release);
        let _lists = self.lists[1].lock().unwrap();
    }

    /// `Slabs::place_all` for this slab and the other one.
    fn place_all(&self, mistake: Mistake) {
        let mut group = self.group.load(Relaxed);
        let is_row = group == GROUP_OF_OTHER;
        if mistake == Mistake::GroupTwice {
            group = self.group.load(Relaxed);
        }
        let _lists = self.lists[group].lock().unwrap();
        self.place(group, mistake);
        // `place` leaves out a slab of another group.
        assert!(!is_row || group == GROUP_OF_OTHER, "the other slab of the row is in no list");
    }

    /// `Slabs::place`, under the lock of the lists of `group`.
    fn place(&self, group: usize, mistake: Mistake) {
        if self.owner.load(Relaxed) != CACHE {
            return;
        }
        if mistake != Mistake::GroupBeforeFence {
            fence(Acquire);
        }
        if mistake != Mistake::GroupWithoutLock && self.group.load(Relaxed) != group {
            return;
        }
        let truly_in = self.truly_in.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(group, truly_in, "the slab is placed in the lists of another group");
    }
}

fn placed_late(mistake: Mistake) {
    let slab = Arc::new(Slab {
        owner: AtomicUsize::new(CACHE),
        group: AtomicUsize::new(0),
        lists: [Mutex::new(()), Mutex::new(())],
        truly_in: std::sync::atomic::AtomicUsize::new(0),
    });
    let late = {
        let slab = slab.clone();
        thread::spawn(move || slab.place_all(mistake))
    };
    slab.move_to_group_1();
    late.join().unwrap();
}

#[test]
fn a_slab_that_changes_its_group_meets_a_late_reconciler() {
    explore(|| placed_late(Mistake::None));
}

#[test]
fn a_group_that_is_not_looked_at_behind_the_fence_is_found() {
    for mistake in [Mistake::GroupBeforeFence, Mistake::GroupWithoutLock] {
        let found = mistake_in(move || placed_late(mistake));
        assert!(found.contains("lists of another group"), "{found}");
    }
}

#[test]
fn a_row_whose_group_is_read_twice_loses_a_slab() {
    let found = mistake_in(|| placed_late(Mistake::GroupTwice));
    assert!(found.contains("in no list"), "{found}");
}

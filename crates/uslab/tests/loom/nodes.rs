//! A slab is released on one node and made again on another, while a thread that freed an object
//! has not reached the lists yet (`Slabs::place`).
//!
//! The late thread reads the node without a lock, takes that node's lock, and decides under it. The
//! model checks that a slab is placed only in the lists of its own node, under that node's lock.

use super::{explore, mistake_in};
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use loom::thread;

const NOBODY: usize = 0;
const CACHE: usize = 7;

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The thread reads the node before the fence that follows the owner.
    NodeBeforeFence,
    /// The thread reads the node only without the lock.
    NodeOnce,
}

struct Slab {
    owner: AtomicUsize,
    node: AtomicUsize,
    lists: [Mutex<()>; 2],
    /// The slab's true node, for the check: updated in the steps that change it, under no lock of
    /// the model.
    truly_on: std::sync::atomic::AtomicUsize,
}

impl Slab {
    /// `Slabs::take_empty_slab` on node 0, the page layer, and `Slabs::grow` on node 1.
    fn move_to_node_1(&self) {
        {
            let _lists = self.lists[0].lock().unwrap();
            self.owner.store(NOBODY, Release);
        }
        self.node.store(1, Relaxed);
        self.truly_on.store(1, std::sync::atomic::Ordering::SeqCst);
        self.owner.store(CACHE, Release);
        let _lists = self.lists[1].lock().unwrap();
    }

    /// `Slabs::place`.
    fn place(&self, mistake: Mistake) {
        let node = self.node.load(Relaxed);
        let _lists = self.lists[node].lock().unwrap();
        if self.owner.load(Relaxed) != CACHE {
            return;
        }
        if mistake != Mistake::NodeBeforeFence {
            fence(Acquire);
        }
        if mistake != Mistake::NodeOnce && self.node.load(Relaxed) != node {
            return;
        }
        let truly_on = self.truly_on.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(node, truly_on, "the slab is placed in the lists of another node");
    }
}

fn placed_late(mistake: Mistake) {
    let slab = Arc::new(Slab {
        owner: AtomicUsize::new(CACHE),
        node: AtomicUsize::new(0),
        lists: [Mutex::new(()), Mutex::new(())],
        truly_on: std::sync::atomic::AtomicUsize::new(0),
    });
    let late = {
        let slab = slab.clone();
        thread::spawn(move || slab.place(mistake))
    };
    slab.move_to_node_1();
    late.join().unwrap();
}

#[test]
fn a_slab_that_changes_its_node_meets_a_late_reconciler() {
    explore(|| placed_late(Mistake::None));
}

#[test]
fn a_node_that_is_not_looked_at_behind_the_fence_is_found() {
    for mistake in [Mistake::NodeBeforeFence, Mistake::NodeOnce] {
        let found = mistake_in(move || placed_late(mistake));
        assert!(found.contains("lists of another node"), "{found}");
    }
}

//! Callbacks and destructors that do what they had better not: unregister each other's shrinkers, panic, insert into the cache that is in use
//! further up. Nothing hangs, aborts, or stays behind.
//!
//! A test that hangs ends with the process: a watchdog ends it.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;
use uslab::{Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, reclaim, register_shrinker};

/// Ends the process if it is still there after a time that nothing here takes.
fn watchdog() {
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(60));
        eprintln!("a thread hangs");
        std::process::abort();
    });
}

/// A shrinker whose scan is told whose it is.
struct Member {
    number: usize,
    ring: Arc<Ring>,
}

/// Shrinkers whose callbacks unregister the next one's each, all at the same time.
struct Ring {
    members: Vec<Mutex<Option<Registration<Member>>>>,
    together: Barrier,
    dropped: AtomicUsize,
    waited: AtomicUsize,
    left: AtomicUsize,
}

impl Shrinker for Member {
    fn count(&self, _: &ShrinkControl) -> usize {
        1000
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        let ring = &self.ring;
        ring.together.wait();
        let next = ring.members[(self.number + 1) % ring.members.len()].lock().unwrap().take();
        let has_ended = next.expect("each is unregistered once").unregister();
        if has_ended { &ring.waited } else { &ring.left }.fetch_add(1, SeqCst);
        Scan::Stop
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.ring.dropped.fetch_add(1, SeqCst);
    }
}

/// Makes a ring of so many shrinkers and has each called by a thread of its own.
fn unregister_in_a_ring(members: usize) -> Arc<Ring> {
    let ring = Arc::new(Ring {
        members: (0..members).map(|_| Mutex::new(None)).collect(),
        together: Barrier::new(members),
        dropped: AtomicUsize::new(0),
        waited: AtomicUsize::new(0),
        left: AtomicUsize::new(0),
    });
    for number in 0..members {
        let member = Member { number, ring: Arc::clone(&ring) };
        let registered = register_shrinker("member", ShrinkerOptions::default(), member);
        *ring.members[number].lock().unwrap() = Some(registered.expect("there is memory"));
    }
    thread::scope(|scope| {
        for _ in 0..members {
            scope.spawn(|| reclaim(usize::MAX));
        }
    });
    ring
}

#[test]
fn callbacks_that_unregister_each_other_all_come_back() {
    in_both_modes("callbacks_that_unregister_each_other_all_come_back", &[], || {
        watchdog();
        for round in 0..300 {
            let ring = unregister_in_a_ring(2 + round % 4);
            let (waited, left) = (ring.waited.load(SeqCst), ring.left.load(SeqCst));
            assert_eq!(waited + left, ring.members.len(), "round {round}");
            assert!(left >= 1, "not all of a circle can wait");
            assert_eq!(ring.dropped.load(SeqCst), ring.members.len(), "each went once");
            assert_eq!(Arc::strong_count(&ring), 1);
        }
    });
}

//! How a fork keeps the background thread from changing anything.
//!
//! ```text
//!   thread   at := place ─▶ sleeps ─▶ at := WORKS ─▶ holders 0? no ─▶ at := place …
//!   fork     holders + 1 ─▶ at a place? yes ─▶ copies the memory ─▶ holders - 1, wakes
//! ```
//!
//! All four accesses are sequentially consistent: either the thread sees the fork, or the fork sees
//! that the thread does not rest.
//!
//! The background thread also rests while it waits for a lock that the forking thread holds. The
//! forking thread is then in a signal handler that interrupted the lock's use, so it does not
//! release the lock before the fork's end. A wait for any other lock is no rest: the background
//! thread goes on in spite of the fork, which waits for its next rest.

use super::calls;
use crate::sync::CONTENDED;
use core::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

/// The thread works.
const WORKS: usize = 0;
/// The thread sleeps, and has no lock. Other values are the address of the word of the lock that it
/// waits for.
const SLEEPS: usize = 1;

/// The rests of the background thread.
pub struct Rest {
    at: AtomicUsize,
    /// Forks that keep the thread at rest.
    holders: AtomicU32,
}

impl Rest {
    pub(super) const fn new() -> Rest {
        Rest { at: AtomicUsize::new(WORKS), holders: AtomicU32::new(0) }
    }

    /// Runs `sleep`, at `place`. Keeps the thread there for forks, unless `must_end`.
    fn run<T>(&self, place: usize, sleep: impl FnOnce() -> T, must_end: impl Fn() -> bool) -> T {
        self.at.store(place, SeqCst);
        let result = sleep();
        loop {
            self.at.store(WORKS, SeqCst);
            let holders = self.holders.load(SeqCst);
            if holders == 0 || must_end() {
                return result;
            }
            self.at.store(place, SeqCst);
            calls::futex_wait(&self.holders, holders, None);
        }
    }

    pub(super) fn rest<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.run(SLEEPS, sleep, || false)
    }

    pub(super) fn wait_for_lock(&self, word: &'static AtomicU32, sleep: impl FnOnce()) {
        self.run(&raw const *word as usize, sleep, || word.load(SeqCst) != CONTENDED);
    }

    /// Whether the thread is at rest, for the calling thread, which is the only other one, and has
    /// counted itself as a holder.
    fn is_at_rest(&self) -> bool {
        let word = match self.at.load(SeqCst) {
            WORKS => return false,
            SLEEPS => return true,
            // SAFETY: the word of a lock, which lives for ever.
            word => unsafe { &*(word as *const AtomicU32) },
        };
        let is_locked = word.load(SeqCst) == CONTENDED;
        if !is_locked {
            // The caller may have been interrupted before it woke the thread.
            calls::futex_wake(word, 1);
        }
        is_locked
    }

    /// Keeps the thread at rest. False, with nothing changed, if it goes on for 50 ms.
    pub(super) fn hold(&self) -> bool {
        const TRIES: u32 = 50;
        const TRY_US: u64 = 1000;
        let holders = self.holders.fetch_add(1, SeqCst) + 1;
        for _ in 0..TRIES {
            if self.is_at_rest() {
                return true;
            }
            calls::futex_wait(&self.holders, holders, Some(TRY_US));
        }
        self.release();
        false
    }

    /// As [`Rest::hold`], of a thread that is not there.
    pub(super) fn hold_none(&self) {
        self.holders.fetch_add(1, SeqCst);
    }

    /// In a fork child: neither the thread nor its holders are there.
    pub(super) fn reset(&self) {
        self.at.store(WORKS, Relaxed);
        self.holders.store(0, Relaxed);
    }

    /// Undoes [`Rest::hold`]. In a fork child, where there are no holders, it does nothing.
    pub(super) fn release(&self) {
        let _ = self.holders.fetch_update(SeqCst, SeqCst, |holders| holders.checked_sub(1));
        calls::futex_wake(&self.holders, i32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    fn wait_until(is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The holder of a lock released it, and the waiting thread was woken and has not run yet. It
    /// may hold other locks, so it does not rest.
    #[test]
    fn a_thread_that_waits_for_a_free_lock_does_not_rest() {
        static REST: Rest = Rest::new();
        static WORD: AtomicU32 = AtomicU32::new(CONTENDED);
        static MAY_RUN: AtomicBool = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                REST.wait_for_lock(&WORD, || wait_until(|| MAY_RUN.load(SeqCst)));
                std::thread::sleep(Duration::from_millis(5));
                REST.rest(|| wait_until(|| MAY_RUN.load(SeqCst) && WORD.load(SeqCst) == 7));
            });
            wait_until(|| REST.at.load(SeqCst) != WORKS);
            assert!(REST.hold(), "the caller has the lock: a fork in a handler");
            REST.release();
            WORD.store(0, SeqCst);
            assert!(!REST.hold(), "the lock is free");
            assert_eq!(REST.holders.load(SeqCst), 0);
            // The thread goes on in spite of the fork, and comes to its next rest.
            let holds = scope.spawn(|| REST.hold());
            wait_until(|| REST.holders.load(SeqCst) == 1);
            MAY_RUN.store(true, SeqCst);
            assert!(holds.join().unwrap());
            assert_eq!(REST.at.load(SeqCst), SLEEPS);
            WORD.store(7, SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(REST.at.load(SeqCst), SLEEPS, "the fork keeps it at rest");
            REST.release();
        });
        assert_eq!(REST.at.load(SeqCst), WORKS);
    }
}

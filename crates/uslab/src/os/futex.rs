//! Parking with `futex(2)`, private to the process.

use super::corruption::verify;
use super::{background, calls};
use crate::sync::Park;
use core::sync::atomic::AtomicU32;

/// [`Park`] by futex. Private futexes are keyed by address space, which a `vfork` child shares: it
/// waits and wakes like a thread.
pub struct Futex;

impl Futex {
    /// Wakes every thread that sleeps on `word`.
    pub fn wake_all(word: &AtomicU32) {
        calls::futex_wake(word, i32::MAX);
    }

    /// As [`Park::wait`], for a wait that is not for a lock.
    pub fn sleep(word: &AtomicU32, expected: u32) {
        calls::futex_wait(word, expected, None);
    }

    /// As [`Park::wait`], for `ms` milliseconds at most.
    pub fn wait_for(word: &AtomicU32, expected: u32, ms: u64) {
        Self::wait_for_us(word, expected, ms * 1000);
    }

    /// As [`Park::wait`], for `us` microseconds at most.
    pub fn wait_for_us(word: &AtomicU32, expected: u32, us: u64) {
        calls::futex_wait(word, expected, Some(us));
    }
}

impl Park for Futex {
    fn wait(word: &AtomicU32, expected: u32) {
        // A fork in a handler may interrupt the holder of a lock that the background thread waits
        // for.
        if background::is_background_thread() {
            background::wait_for_lock(word, || Self::sleep(word, expected));
        } else {
            Self::sleep(word, expected);
        }
    }

    fn wake_one(word: &AtomicU32) {
        calls::futex_wake(word, 1);
    }

    fn corrupted(word: &AtomicU32) {
        verify(false, "lock", word, "a lock is free, held, or held and waited for");
    }

    fn thread_key() -> usize {
        // SAFETY: `pthread_self` has no preconditions.
        unsafe { libc::pthread_self() as usize }
    }
}

#[cfg(test)]
mod tests {
    use crate::os::Lock;
    use crate::sync::Rank;
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::panic::AssertUnwindSafe;

    #[test]
    fn a_lock_whose_word_was_overwritten_is_reported_and_not_waited_for() {
        let lock = Lock::new(Rank::Barn, 0);
        // SAFETY: the word is the first field of the lock.
        unsafe { &*(&raw const lock).cast::<AtomicU32>() }.store(0x5555, Relaxed);
        let caught = std::panic::catch_unwind(AssertUnwindSafe(|| drop(lock.lock()))).unwrap_err();
        assert!(
            caught.downcast_ref::<std::string::String>().is_some_and(|text| text.contains("corrupted lock"))
        );
        // The thread counts as the holder.
        lock.release_after_fork();
    }

    #[test]
    fn a_lock_knows_that_a_thread_waits_for_it() {
        let lock = Lock::new(Rank::Barn, 0);
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            assert!(!lock.is_waited_for());
            let waiter = scope.spawn(|| *lock.lock());
            while !lock.is_waited_for() {
                std::thread::yield_now();
            }
            *held = 1;
            drop(held);
            assert_eq!(waiter.join().expect("the waiter gets the lock"), 1);
        });
    }
}

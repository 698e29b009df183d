//! Parking with `futex(2)`, private to the process.

use super::corruption::is_whole;
use crate::sync::Park;
use core::sync::atomic::AtomicU32;

/// [`Park`] by futex. Private futexes are keyed by address space, which a `vfork` child shares: it
/// waits and wakes like a thread.
pub struct Futex;

impl Futex {
    /// Wakes every thread that sleeps on `word`.
    pub fn wake_all(word: &AtomicU32) {
        wake(word, i32::MAX);
    }

    /// As [`Park::wait`], for `ms` milliseconds at most.
    pub fn wait_for(word: &AtomicU32, expected: u32, ms: u64) {
        Self::wait_for_us(word, expected, ms * 1000);
    }

    /// As [`Park::wait`], for `us` microseconds at most.
    pub fn wait_for_us(word: &AtomicU32, expected: u32, us: u64) {
        let time =
            libc::timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: as in `wait`; the time is a valid one.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, &raw const time) };
    }
}

fn wake(word: &AtomicU32, most: i32) {
    // SAFETY: the kernel uses the address as a key only, and the words that threads wait on are
    // never unmapped.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, most);
    }
}

impl Park for Futex {
    fn wait(word: &AtomicU32, expected: u32) {
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: `word` outlives the call, and a null time-out waits without limit. EAGAIN and
        // EINTR are early returns, which the contract allows.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, core::ptr::null::<libc::timespec>());
        }
    }

    fn wake_one(word: &AtomicU32) {
        wake(word, 1);
    }

    fn corrupted(word: &AtomicU32) {
        is_whole(false, "lock", word, "a lock is free, held, or held and waited for");
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
}

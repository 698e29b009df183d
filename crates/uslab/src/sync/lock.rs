//! The ranked lock: three states in one word, parked through [`Park`], with a value inside.
//!
//! ```text
//!   0 free ──try──▶ 1 held ──contended──▶ 2 held, someone waits
//!     ◀──unlock────────┘ ◀──unlock + wake one──┘
//! ```
//!
//! It needs no set-up, so zeroed memory is a valid free lock, and no thread state. It is not re-entrant and not
//! signal-safe: a handler that interrupts the holder and takes the same lock waits for ever, as with any malloc
//! (POSIX does not list `malloc` among the async-signal-safe functions).

use super::rank::{Rank, acquired, released};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// How a waiter sleeps and how it is woken; see the implementation in `os`.
pub trait Park {
    /// Sleeps while `word` holds `expected`; may return early.
    fn wait(word: &AtomicU32, expected: u32);
    /// Wakes one sleeper on `word`.
    fn wake_one(word: &AtomicU32);
    /// A number that tells the calling thread from all others alive; not 0. Debug builds only.
    fn thread_key() -> usize;
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Turns to spin before sleeping: sections under these locks are tens of nanoseconds.
const SPINS: u32 = 64;

/// A lock of a fixed rank around a value.
#[repr(C)]
pub struct Lock<T, P> {
    word: AtomicU32,
    rank: Rank,
    value: UnsafeCell<T>,
    park: PhantomData<P>,
}

// SAFETY: the lock hands out `&mut T` to one thread at a time, so that sharing it needs only `T: Send`.
unsafe impl<T: Send, P> Sync for Lock<T, P> {}
// SAFETY: moving the lock moves the value; nothing in it is tied to a thread.
unsafe impl<T: Send, P> Send for Lock<T, P> {}

impl<T, P: Park> Lock<T, P> {
    /// A free lock.
    pub const fn new(rank: Rank, value: T) -> Self {
        Lock { word: AtomicU32::new(FREE), rank, value: UnsafeCell::new(value), park: PhantomData }
    }

    /// Takes the lock, sleeping if it must.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T, P> {
        acquired(P::thread_key, self.rank, false);
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.lock_contended();
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T, P>> {
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            return None;
        }
        acquired(P::thread_key, self.rank, false);
        Some(Guard { lock: self })
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            if self.word.load(Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Acquire) != FREE {
            P::wait(&self.word, CONTENDED);
        }
    }

    /// Takes the lock for the time of a fork; several locks of one rank may be held so.
    ///
    /// Undone by [`Lock::release_after_fork`] in the parent and by [`Lock::reset_in_child`] in the child.
    pub fn acquire_for_fork(&self) {
        acquired(P::thread_key, self.rank, true);
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.lock_contended();
        }
    }

    /// Lets go, in the parent, of a lock taken with [`Lock::acquire_for_fork`].
    pub fn release_after_fork(&self) {
        self.unlock();
    }

    /// Makes the lock free in a forked child, whose waiters do not exist.
    pub fn reset_in_child(&self) {
        released(P::thread_key, self.rank);
        debug_assert!(self.word.load(Relaxed) != FREE, "the forking thread holds what its child frees");
        self.word.store(FREE, Release);
    }

    #[inline]
    fn unlock(&self) {
        released(P::thread_key, self.rank);
        let state = self.word.swap(FREE, Release);
        debug_assert!(state != FREE, "a lock that is let go of is held");
        if state == CONTENDED {
            P::wake_one(&self.word);
        }
    }
}

/// Access to the value of a held [`Lock`]; dropping it lets go.
pub struct Guard<'a, T, P: Park> {
    lock: &'a Lock<T, P>,
}

impl<T, P: Park> core::ops::Deref for Guard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while its thread holds the lock, and no other reference is handed out.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, P: Park> core::ops::DerefMut for Guard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` excludes a second reference through this guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, P: Park> Drop for Guard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

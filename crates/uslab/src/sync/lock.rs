//! The ranked lock: three states in one word, parked through [`Park`], with a value inside.
//!
//! ```text
//!   0 free ──try──▶ 1 held ──contended──▶ 2 held, a thread waits
//!     ◀──unlock────────┘ ◀──unlock + wake one──┘
//! ```
//!
//! Zeroed memory is a valid free lock, and the lock keeps no state per thread. It is not re-entrant
//! and not signal-safe: a handler that interrupts the holder and takes the same lock waits for
//! ever, as with any malloc (POSIX does not list `malloc` among the async-signal-safe functions).

use super::rank::{Rank, acquired, released};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// How a waiting thread sleeps and is woken; `os` implements it by futexes.
pub trait Park {
    /// Sleeps while `word` holds `expected`; may return early.
    fn wait(word: &AtomicU32, expected: u32);
    /// Wakes one sleeper on `word`.
    fn wake_one(word: &AtomicU32);
    /// Reports that `word` has a value that no lock ever has.
    fn corrupted(word: &AtomicU32);
    /// A number unique to the calling thread among live threads; not 0.
    fn thread_key() -> usize;
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The word of a lock that a thread waits for.
pub const CONTENDED: u32 = 2;

/// Spins before a thread sleeps: critical sections under these locks take tens of nanoseconds.
const SPINS: u32 = 64;

/// A lock of a fixed rank around a value.
#[repr(C)]
pub struct Lock<T, P> {
    word: AtomicU32,
    rank: Rank,
    value: UnsafeCell<T>,
    park: PhantomData<P>,
}

// SAFETY: the lock gives `&mut T` to one thread at a time, so sharing it needs only `T: Send`.
unsafe impl<T: Send, P> Sync for Lock<T, P> {}
// SAFETY: moving the lock moves the value; nothing in it is tied to a thread.
unsafe impl<T: Send, P> Send for Lock<T, P> {}

impl<T, P: Park> Lock<T, P> {
    /// The value's offset in the lock, for a debugger.
    pub const VALUE_OFFSET: usize = core::mem::offset_of!(Self, value);

    /// A free lock.
    pub const fn new(rank: Rank, value: T) -> Self {
        Lock { word: AtomicU32::new(FREE), rank, value: UnsafeCell::new(value), park: PhantomData }
    }

    /// Takes the lock; sleeps while another thread holds it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T, P> {
        acquired(P::thread_key, self.rank, false);
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.lock_contended();
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free; never waits.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T, P>> {
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            return None;
        }
        acquired(P::thread_key, self.rank, false);
        Some(Guard { lock: self })
    }

    /// Whether a thread sleeps until the lock is free, or did when it was taken last.
    pub fn is_waited_for(&self) -> bool {
        self.word.load(Relaxed) == CONTENDED
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
        loop {
            match self.word.swap(CONTENDED, Acquire) {
                FREE => return,
                HELD | CONTENDED => P::wait(&self.word, CONTENDED),
                // The word was overwritten; no thread would ever wake this one. By policy the
                // process goes on, and the lock was most likely free.
                _ => return P::corrupted(&self.word),
            }
        }
    }

    /// Takes the lock for the duration of a fork. Only here may a thread hold several locks of one
    /// rank.
    ///
    /// The parent undoes it by [`Lock::release_after_fork`], the child by [`Lock::reset_in_child`].
    pub fn acquire_for_fork(&self) {
        acquired(P::thread_key, self.rank, true);
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.lock_contended();
        }
    }

    /// In the parent: releases a lock taken with [`Lock::acquire_for_fork`].
    pub fn release_after_fork(&self) {
        self.unlock();
    }

    /// In a fork child: makes the lock free. The threads that waited for it do not exist there.
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
        // A word that was overwritten does not tell whether a thread sleeps.
        if state != HELD {
            P::wake_one(&self.word);
        }
    }
}

/// Access to the value of a held [`Lock`]; releases the lock on drop.
pub struct Guard<'a, T, P: Park> {
    lock: &'a Lock<T, P>,
}

impl<T, P: Park> core::ops::Deref for Guard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while its thread holds the lock, and no other reference
        // exists.
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

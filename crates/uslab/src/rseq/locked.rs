//! Locked mode: the same steps under a slot's lock, for processes without restartable sequences.
//!
//! The contract is that of the sequences (see the module above). "This CPU" is the CPU that the
//! thread ran on when it asked, or its hint (`hint`): the lock excludes other threads, not the CPU.
//!
//! A thread holds the lock for one step. A call that finds the lock taken spins for such a step at
//! most, because the holder may have been preempted. Then it tries the next slot, or continues as
//! if this slot were empty or full. Drains, forks and the destruction of caches sleep for the lock.

use super::{Pushed, Sheaf, Slot, Which};
use crate::os;
use crate::os::invariant::invariant;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A slot whose lock the thread holds; releases the lock on drop.
pub struct LockedSlot<'a> {
    slot: &'a Slot,
}

impl<'a> LockedSlot<'a> {
    /// Whether a thread holds the slot's lock now.
    pub fn is_taken(slot: &Slot) -> bool {
        slot.lock.load(Relaxed) != 0
    }

    /// Takes the slot's lock if it is free; never waits.
    pub fn try_lock(slot: &'a Slot) -> Option<LockedSlot<'a>> {
        let free = !Self::is_taken(slot) && slot.lock.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        // `then`, not `then_some`: a value built in vain would release the other thread's lock on
        // drop.
        free.then(|| LockedSlot { slot })
    }

    /// Takes the slot's lock if it is free soon: before another thread's step ends, unless that
    /// thread is off its CPU.
    #[inline]
    pub fn spin(slot: &'a Slot) -> Option<LockedSlot<'a>> {
        const TRIES: usize = 64;
        Self::try_lock(slot).or_else(|| {
            (1..TRIES).find_map(|_| {
                core::hint::spin_loop();
                Self::try_lock(slot)
            })
        })
    }

    /// Takes the slot's lock, and sleeps while another thread holds it. For forks and the
    /// destruction of caches, which are rare.
    ///
    /// The holder's step takes tens of nanoseconds, but the holder may have been preempted, even by
    /// this thread if that is a real-time one. Then a thread that spins or yields would keep the
    /// holder off its CPU. The holder does not wake waiters, because that would cost every step an
    /// atomic instruction. So the waiting thread sleeps for doubling times and retries.
    pub fn lock(slot: &'a Slot) -> LockedSlot<'a> {
        loop {
            if let Some(locked) = Self::lock_soon(slot) {
                return locked;
            }
        }
    }

    /// As [`LockedSlot::lock`], but returns `None` after about 20 milliseconds. For drains, which
    /// can skip a slot.
    pub fn lock_soon(slot: &'a Slot) -> Option<LockedSlot<'a>> {
        /// Sleeps from 50 microseconds, Linux's default timer slack, to 3.2 milliseconds.
        const FIRST_NAP_US: u64 = 50;
        const DOUBLINGS: u32 = 6;
        const NAPS: u32 = 11;
        Self::spin(slot).or_else(|| {
            let _errno = os::errno::Preserved::new();
            (0..NAPS).find_map(|attempt| {
                os::Futex::wait_for_us(&slot.lock, 1, FIRST_NAP_US << attempt.min(DOUBLINGS));
                Self::try_lock(slot)
            })
        })
    }

    /// Keeps the slot locked beyond the life of this value, for the duration of a fork.
    pub fn keep_for_fork(self) {
        core::mem::forget(self);
    }

    /// Frees a slot kept with [`LockedSlot::keep_for_fork`].
    pub fn release_after_fork(slot: &Slot) {
        slot.lock.store(0, Release);
    }

    /// The step of that name in the contract.
    pub fn pop(&self) -> *mut u8 {
        let sheaf = self.slot.main.load(Relaxed);
        // SAFETY: a slot's sheaf is valid, and the lock excludes all other threads.
        unsafe {
            let n = (*sheaf).count.load(Relaxed);
            invariant!(n <= (*sheaf).capacity.load(Relaxed), "a sheaf has room for what it holds", sheaf);
            let object = Sheaf::object(sheaf, n as usize).read();
            invariant!(object.is_null() == (n == 0), "a pop yields NULL from an empty sheaf alone", sheaf);
            if n > 0 {
                (*sheaf).count.store(n - 1, Relaxed);
            }
            object
        }
    }

    /// [`super::push_tested`] without the start test: the slow path, of which this is a step, has
    /// made that test.
    ///
    /// # Safety
    /// As [`super::push_tested`].
    pub unsafe fn push(&self, object: *mut u8) -> Pushed {
        let sheaf = self.slot.main.load(Relaxed);
        // SAFETY: as in `pop`; the index written to is below the capacity.
        unsafe {
            let n = (*sheaf).count.load(Relaxed);
            invariant!(!object.is_null(), "a push has an object", sheaf);
            invariant!(n <= (*sheaf).capacity.load(Relaxed), "a sheaf has room for what it holds", sheaf);
            if Sheaf::object(sheaf, n as usize).read() == object {
                return Pushed::Twice;
            }
            if n >= (*sheaf).capacity.load(Relaxed) {
                return Pushed::Slow;
            }
            Sheaf::object(sheaf, n as usize + 1).write(object);
            (*sheaf).count.store(n + 1, Relaxed);
            Pushed::Done
        }
    }

    /// The step of that name in the contract.
    pub fn exchange(&self, which: Which, new: *mut Sheaf) -> *mut Sheaf {
        invariant!(!new.is_null(), "a slot has a sheaf or the dummy in each place");
        invariant!(Self::is_taken(self.slot), "a step holds its slot's lock");
        self.slot.place(which).swap(new, Relaxed)
    }
}

impl Drop for LockedSlot<'_> {
    fn drop(&mut self) {
        invariant!(Self::is_taken(self.slot), "a slot's lock that is let go of is held");
        self.slot.lock.store(0, Release);
    }
}

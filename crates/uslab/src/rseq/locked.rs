//! The fallback: the same steps under the slot's lock, for processes without registered sequences.
//!
//! The contract is that of the sequences (see the module above), with "this CPU" being a CPU that
//! the thread was on a moment ago: the lock, not the CPU, excludes others. It is held for one step.
//! A thread that finds it taken waits no longer than such a step takes, since its holder may have
//! been preempted: it tries the next slot, or, on its way, goes on as if nothing, or no room, were
//! in this one.

use super::{Pushed, Sheaf, Slot, Which};
use crate::os;
use crate::os::invariant::invariant;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A slot whose lock the thread holds; dropping it lets go.
pub struct LockedSlot<'a> {
    slot: &'a Slot,
}

impl<'a> LockedSlot<'a> {
    /// Whether somebody has the slot now.
    pub fn is_taken(slot: &Slot) -> bool {
        slot.lock.load(Relaxed) != 0
    }

    /// Takes the slot if nobody has it.
    pub fn try_lock(slot: &'a Slot) -> Option<LockedSlot<'a>> {
        let free = !Self::is_taken(slot) && slot.lock.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        // Lazily: a value that is made and not returned would let go of the holder's lock when dropped.
        free.then(|| LockedSlot { slot })
    }

    /// Takes the slot, asleep while its holder has it; for forks and ends of caches, which are
    /// rare.
    ///
    /// The holder's step is tens of nanoseconds, but the holder may have been preempted, by this
    /// very thread if that runs under a real-time policy: spinning and yielding would then keep it
    /// from its CPU. The lock does not know its holder, and the holder does not know of waiters,
    /// which would cost every step an atomic instruction. So the waiter naps, ever longer, and
    /// looks again.
    pub fn lock(slot: &'a Slot) -> LockedSlot<'a> {
        loop {
            if let Some(locked) = Self::lock_soon(slot) {
                return locked;
            }
        }
    }

    /// The same, but gives up after some 20 milliseconds: for drains, which can leave a slot alone.
    pub fn lock_soon(slot: &'a Slot) -> Option<LockedSlot<'a>> {
        const SPINS: u32 = 64;
        /// From 50 microseconds, which is as soon as Linux wakes most threads, to 3.2 milliseconds.
        const FIRST_NAP_US: u64 = 50;
        const DOUBLINGS: u32 = 6;
        const NAPS: u32 = 11;
        let spun = (0..SPINS).find_map(|_| {
            Self::try_lock(slot).or_else(|| {
                core::hint::spin_loop();
                None
            })
        });
        spun.or_else(|| {
            let _errno = os::errno::Preserved::new();
            (0..NAPS).find_map(|attempt| {
                os::Futex::wait_for_us(&slot.lock, 1, FIRST_NAP_US << attempt.min(DOUBLINGS));
                Self::try_lock(slot)
            })
        })
    }

    /// Keeps the slot locked beyond the life of this value, for the time of a fork.
    pub fn keep_for_fork(self) {
        core::mem::forget(self);
    }

    /// Frees a slot kept with [`LockedSlot::keep_for_fork`].
    pub fn release_after_fork(slot: &Slot) {
        slot.lock.store(0, Release);
    }

    /// See the contract.
    pub fn pop(&self) -> *mut u8 {
        let sheaf = self.slot.main.load(Relaxed);
        // SAFETY: a slot's sheaf is valid, and the lock keeps all others from it.
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

    /// [`super::push_tested`], but for the start: the slow path, of which this is a step, has
    /// tested that.
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

    /// See the contract.
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

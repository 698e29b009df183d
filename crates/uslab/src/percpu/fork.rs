//! Fork: keeps other threads from changing the sheaves in slots while the kernel copies the memory.

use super::CpuCache;
use super::adapt;
use super::drain::BOTH;
use super::used;
use crate::os::invariant::invariant;
use crate::os::{self, Lock};
use crate::rseq::locked::LockedSlot;
use crate::rseq::{GATE, Mode, Slot, dummy_of, is_dummy, mode};
use crate::sync::Rank;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

impl CpuCache {
    /// Takes the locks of the cache's barns for a fork; see [`park_slots`].
    pub fn lock_barns_for_fork(&self) {
        self.used_barns().for_each(|barn| barn.lock_for_fork());
    }

    /// Undoes [`CpuCache::lock_barns_for_fork`].
    pub fn unlock_barns_after_fork(&self, child: bool) {
        self.used_barns().for_each(|barn| barn.unlock_after_fork(child));
    }
}

/// The forking thread holds this lock from before it closes the gate until the gate is open again.
static FORK: Lock<()> = Lock::new(Rank::Fork, ());

/// Sleeps until no fork is in progress.
#[cold]
pub(super) fn wait_for_fork() {
    drop(FORK.lock());
}

/// First step of a fork: excludes other forks. Threads that find the gate closed sleep until the
/// last step.
pub fn begin_fork() {
    FORK.acquire_for_fork();
}

/// Last step of a fork, in the parent or in the child.
pub fn end_fork(child: bool) {
    if child { FORK.reset_in_child() } else { FORK.release_after_fork() }
}

/// Closes the gate and takes the slots of all CPUs out of use, so that no thread changes a sheaf in
/// them while the kernel copies the memory.
///
/// A fork does not copy memory at one instant. The kernel may copy the page with a sheaf's count
/// and the page with its objects at different times, while other threads push and pop. The child
/// would then pop pointers that were never in the sheaf together. So:
///
/// 1. Close the gate: sequences that move sheaves now fail. Issue a barrier: no sequence that saw
///    the gate open is still running.
/// 2. Exchange every sheaf for the dummy, and keep it in `parked` of its [`Slot`]. Issue a barrier:
///    no sequence works on a parked sheaf any more.
///
/// A thread that calls the library meanwhile waits in the slow path until [`end_fork`]. It may go
/// on to use a slot of its own ([`super::local`]), and a sheaf that it took out of a slot before.
///
/// If the kernel refuses a barrier, the child cannot trust its copies of the slots' sheaves, parked
/// or not. It starts without them, and their objects stay taken in the child. The parent goes on as
/// before. The rest of the child's copy needs no barrier: locks guard barns, slabs and pages, and
/// an object in a sheaf counts as taken in its slab's bitmap.
///
/// Slots of CPUs that a cache was never used on hold dummies, and keep them ([`used`]). The fork
/// leaves them alone.
///
/// `for_each` visits all caches. The caller holds the registry's lock, and takes the locks of barns
/// and lists afterwards.
pub fn park_slots(for_each: impl Fn(&dyn Fn(&CpuCache))) {
    adapt::lock_for_fork();
    used::lock_for_fork();
    match mode() {
        Mode::Rseq => COPY_IS_WHOLE.store(park_all(&for_each), Relaxed),
        Mode::Locked => {
            for_each(&|cache| cache.used_slots().for_each(|slot| LockedSlot::lock(slot).keep_for_fork()));
        }
    }
}

/// Whether no thread can change slots and sheaves while the kernel copies the memory. Written under
/// [`FORK`].
static COPY_IS_WHOLE: AtomicBool = AtomicBool::new(true);

/// Runs the two steps of [`park_slots`]; returns false if the kernel refused a barrier.
fn park_all(for_each: &impl Fn(&dyn Fn(&CpuCache))) -> bool {
    invariant!(GATE.load(SeqCst) == 0, "one fork at a time closes the gate");
    GATE.store(1, SeqCst);
    if !os::membarrier::restart_all() {
        GATE.store(0, Release);
        return false;
    }
    for_each(&|cache| cache.used_slots().for_each(|slot| park(cache, slot)));
    os::membarrier::restart_all()
}

/// Undoes [`park_slots`]. The locks of barns and lists have been released by now.
pub fn unpark_slots(child: bool, for_each: impl Fn(&dyn Fn(&CpuCache))) {
    match mode() {
        Mode::Rseq => {
            if child && !COPY_IS_WHOLE.load(Relaxed) {
                for_each(&|cache| cache.used_slots().for_each(|slot| forget(cache, slot)));
            } else {
                for_each(&|cache| cache.used_slots().for_each(unpark));
            }
            GATE.store(0, Release);
        }
        Mode::Locked => {
            for_each(&|cache| cache.used_slots().for_each(LockedSlot::release_after_fork));
        }
    }
    used::unlock_after_fork(child);
    adapt::unlock_after_fork(child);
}

/// Moves a slot's sheaves to words that no sequence reads, and puts dummies in their places.
///
/// Most slots of a machine with many CPUs hold dummies: a fork reads these, and writes nothing.
/// With the gate closed, no thread puts a sheaf in the place of a dummy.
fn park(cache: &CpuCache, slot: &Slot) {
    let dummy = dummy_of(cache.cpu_of(slot).number());
    for (which, place) in BOTH.into_iter().zip(&slot.parked) {
        invariant!(place.load(Relaxed).is_null(), "a slot's sheaves are parked once");
        if !is_dummy(slot.place(which).load(Acquire)) {
            place.store(slot.place(which).swap(dummy, AcqRel), Relaxed);
        }
    }
}

/// Puts the parked sheaves back. The gate is closed, so the slot still has its dummies.
fn unpark(slot: &Slot) {
    for (which, place) in BOTH.into_iter().zip(&slot.parked) {
        let sheaf = place.load(Relaxed);
        if !sheaf.is_null() {
            place.store(core::ptr::null_mut(), Relaxed);
            invariant!(
                is_dummy(slot.place(which).load(Relaxed)),
                "with the gate closed a slot keeps its dummies"
            );
            slot.place(which).store(sheaf, Release);
        }
    }
}

/// Empties a slot in a child that cannot trust its copy of the slot.
fn forget(cache: &CpuCache, slot: &Slot) {
    let dummy = dummy_of(cache.cpu_of(slot).number());
    for (which, place) in BOTH.into_iter().zip(&slot.parked) {
        place.store(core::ptr::null_mut(), Relaxed);
        slot.place(which).store(dummy, Relaxed);
    }
    cache.recount(slot);
}

//! Drain: emptying slots from outside, without stopping anybody; and the fork, which needs all of them empty.
//!
//! ```text
//!  drainer                                     user on the drained CPU
//!  old := exchange(slot.main, DUMMY)           (in a sequence on `old`)
//!  membarrier ────────────────────────────────▶ restarts; finds DUMMY; slow path
//!  `old` is private: empty it
//! ```

use super::CpuCache;
use super::access::Access;
use super::adapt;
use super::cpu_cache::{Server, held};
use super::sheaf::{self, Owned};
use crate::os::{self, Lock};
use crate::rseq::locked::LockedSlot;
use crate::rseq::{GATE, Mode, Sheaf, Slot, Which, dummy, is_dummy, mode};
use crate::stats;
use crate::sync::{Rank, in_hand::InHand};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};

const BOTH: [Which; 2] = [Which::Main, Which::Spare];

/// What becomes of slabs that a drain empties.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Those beyond the target go to the page layer.
    Target,
    /// They keep their pages: the objects may be wanted again.
    Pages,
}

/// A drain under way: what was taken out of slots, of any number of caches, until one barrier for all of it.
pub struct Drain<'a> {
    /// Whether for slots that somebody works on (locked mode).
    wait: bool,
    keep: Keep,
    /// So few that the stack stays small.
    taken: [Option<(&'a CpuCache, *mut Sheaf)>; 64],
    len: usize,
    in_hand: Option<InHand>,
}

impl<'a> Drain<'a> {
    /// One that takes from every slot.
    pub fn of_all() -> Self {
        Drain { wait: true, keep: Keep::Target, taken: [None; 64], len: 0, in_hand: None }
    }

    /// One that leaves slots alone that somebody works on (locked mode): for callers that wait for nobody.
    pub fn of_idle(keep: Keep) -> Self {
        Drain { wait: false, keep, taken: [None; 64], len: 0, in_hand: None }
    }

    /// Takes what is in one of the cache's slots.
    pub(super) fn take(&mut self, cache: &'a CpuCache, slot: &Slot) {
        if is_untouched(slot) {
            return;
        }
        if self.len + BOTH.len() > self.taken.len() {
            self.finish();
        }
        let _lock = match (mode(), self.wait) {
            (Mode::Rseq, _) => None,
            (Mode::Locked, true) => Some(LockedSlot::lock(slot)),
            (Mode::Locked, false) => match LockedSlot::try_lock(slot) {
                Some(lock) => Some(lock),
                None => return,
            },
        };
        self.in_hand.get_or_insert_with(InHand::begin);
        for which in BOTH {
            let sheaf = slot.place(which).swap(dummy(), AcqRel);
            if !is_dummy(sheaf) {
                self.taken[self.len] = Some((cache, sheaf));
                self.len += 1;
            }
        }
        let counted = slot.counted.swap(0, Relaxed);
        stats::record(cache.slabs().id()).sheaf_free.fetch_sub(i64::from(counted), Relaxed);
    }

    /// Empties what was taken into the slabs.
    fn finish(&mut self) {
        let len = core::mem::take(&mut self.len);
        if len > 0 && mode() == Mode::Rseq {
            os::membarrier::restart_all();
        }
        for (cache, sheaf) in self.taken[..len].iter_mut().filter_map(Option::take) {
            cache.dissolve(&mut Owned(sheaf), self.keep);
            stats::record(cache.slabs().id()).drains.fetch_add(1, Relaxed);
        }
        self.in_hand = None;
    }
}

/// Whether there is nothing in a slot, and nothing counted.
fn is_untouched(slot: &Slot) -> bool {
    let is_empty = |which| is_dummy(slot.place(which).load(Relaxed));
    BOTH.into_iter().all(is_empty) && slot.counted.load(Relaxed) == 0
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

impl CpuCache {
    /// Empties the slots of all CPUs into the slabs, as `drain` comes to its end.
    pub fn drain_slots<'a>(&'a self, drain: &mut Drain<'a>) {
        self.slots().iter().for_each(|slot| drain.take(self, slot));
    }

    /// Empties slots and barns into the slabs.
    pub fn drain_all(&self) {
        self.drain_slots(&mut Drain::of_all());
        self.drain_barns();
    }

    /// Empties this CPU's slot, where this thread's frees went, if it holds `least_bytes` of objects, and likewise the barns; says how many bytes became free in slabs.
    /// Interrupts nobody; where sheaves are smaller it looks at nothing that other CPUs write, and fetches no line of theirs along.
    pub fn drain_here(&self, least_bytes: usize) -> usize {
        let object_bytes = self.slabs().geometry().object_bytes;
        let mut freed = 0;
        let may_hold = 2 * self.capacity() * object_bytes >= least_bytes;
        let slot = self.slots().get(crate::rseq::current_cpu()).filter(|_| may_hold);
        if slot.is_some_and(|slot| held(slot) * object_bytes >= least_bytes) {
            let _in_hand = InHand::begin();
            let sheaves = match self.served_by() {
                Server::Slabs => [dummy(); 2],
                Server::Sequences(access) => self.take_both(&access),
                Server::Lock(access) => self.take_both(&access),
            };
            for sheaf in sheaves.into_iter().filter(|&sheaf| !is_dummy(sheaf)) {
                freed += Owned(sheaf).count();
                self.dissolve(&mut Owned(sheaf), Keep::Target);
                stats::record(self.slabs().id()).drains.fetch_add(1, Relaxed);
            }
        }
        let fulls: usize = self.barns().iter().map(|barn| barn.fulls()).sum();
        if fulls > 0 && fulls * self.capacity() * object_bytes >= least_bytes {
            freed += self.drain_barns();
        }
        freed * object_bytes
    }

    fn take_both(&self, access: &impl Access) -> [*mut Sheaf; 2] {
        let both = BOTH.map(|which| self.take_out(access, which));
        self.account(access);
        both
    }

    /// Empties the barns into the slabs; says how many objects.
    pub fn drain_barns(&self) -> usize {
        let mut freed = 0;
        for barn in self.barns() {
            let _in_hand = (barn.fulls() > 0).then(InHand::begin);
            while let Some(sheaf) = barn.take_any() {
                let n = Owned(sheaf).count();
                stats::record(self.slabs().id()).sheaf_free.fetch_sub(n as i64, Relaxed);
                self.dissolve(&mut Owned(sheaf), Keep::Target);
                freed += n;
            }
        }
        freed
    }

    /// Takes the cache's locks, for a fork; see [`hide_slots`].
    pub fn lock_barns_for_fork(&self) {
        self.barns().iter().for_each(|barn| barn.lock_for_fork());
    }

    /// Undoes [`CpuCache::lock_barns_for_fork`].
    pub fn unlock_barns_after_fork(&self, child: bool) {
        self.barns().iter().for_each(|barn| barn.unlock_after_fork(child));
    }
}

/// Held by a fork from before the gate closes until it is open again.
static FORK: Lock<()> = Lock::new(Rank::Fork, ());

/// Sleeps until no fork is in progress.
#[cold]
pub(super) fn wait_for_fork() {
    drop(FORK.lock());
}

/// First step of a fork: excludes other forks, and keeps whoever finds the gate closed asleep until the last step.
pub fn begin_fork() {
    FORK.acquire_for_fork();
}

/// Last step of a fork, in the parent or in the child.
pub fn end_fork(child: bool) {
    if child { FORK.reset_in_child() } else { FORK.release_after_fork() }
}

/// Closes the gate and takes all slots out of use, so that nothing changes a sheaf while the memory is copied.
///
/// A fork does not copy memory at one instant: a page with a sheaf's count and a page with its objects may be copied at
/// different times while other threads push and pop, and the child would pop pointers that were never there together. So:
///
/// 1. Close the gate: sequences that move sheaves now fail. Barrier: none that saw it open is still running.
/// 2. Exchange every sheaf for the dummy, keeping it in [`Slot`]'s place for it. Barrier: nobody works on one.
///
/// Everyone else waits in the slow path until [`end_fork`]. `for_each` visits all caches; the caller holds the registry's lock and
/// takes the barns' and lists' afterwards.
pub fn hide_slots(for_each: impl Fn(&dyn Fn(&CpuCache))) {
    match mode() {
        Mode::Rseq => {
            GATE.store(1, SeqCst);
            os::membarrier::restart_all();
            for_each(&|cache| cache.slots().iter().for_each(hide));
            os::membarrier::restart_all();
        }
        Mode::Locked => {
            for_each(&|cache| cache.slots().iter().for_each(|slot| LockedSlot::lock(slot).keep_for_fork()));
        }
    }
    adapt::lock_for_fork();
}

/// Undoes [`hide_slots`]. The locks of barns and lists have been released by now.
pub fn show_slots(child: bool, for_each: impl Fn(&dyn Fn(&CpuCache))) {
    adapt::unlock_after_fork(child);
    match mode() {
        Mode::Rseq => {
            for_each(&|cache| cache.slots().iter().for_each(show));
            GATE.store(0, Release);
        }
        Mode::Locked => {
            for_each(&|cache| cache.slots().iter().for_each(LockedSlot::release_after_fork));
        }
    }
}

/// Where a slot's sheaves stand while a fork is in progress: behind the dummies, in words that no sequence reads.
fn hide(slot: &Slot) {
    for (which, place) in BOTH.into_iter().zip(&slot.hidden) {
        place.store(slot.place(which).swap(dummy(), AcqRel), Relaxed);
    }
}

/// Puts the hidden sheaves back. The gate is closed, so the slot still has its dummies.
fn show(slot: &Slot) {
    for (which, place) in BOTH.into_iter().zip(&slot.hidden) {
        let sheaf = place.swap(core::ptr::null_mut(), Relaxed);
        if !sheaf.is_null() {
            slot.place(which).store(sheaf, Release);
        }
    }
}

/// For callers that keep a sheaf of a cache for themselves: gives its objects back and frees it.
///
/// # Safety
/// The caller must own the sheaf, filled with free objects of `cache`, and not use it any more.
pub unsafe fn dissolve_private(cache: &CpuCache, sheaf: *mut Sheaf) {
    let mut owned = Owned(sheaf);
    if owned.count() > 0 {
        // SAFETY: the sheaf holds free objects of the cache, and the caller owned it.
        unsafe { cache.free_slow(owned.objects()) };
        owned.set_count(0);
    }
    // SAFETY: empty and owned.
    unsafe { sheaf::free(sheaf) };
}

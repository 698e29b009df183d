//! Drain: empties the slots of other CPUs, without stopping any thread. It visits the CPUs that the
//! cache was used on ([`super::used`]); the slots of all others hold dummies.
//!
//! ```text
//!  drainer                                     user on the drained CPU
//!  old := exchange(slot.main, DUMMY)           (in a sequence on `old`)
//!  membarrier ────────────────────────────────▶ restarts; finds DUMMY; slow path
//!  `old` is private: empty it
//! ```
//!
//! **Only main sheaves need the barrier.** No sequence works on a spare. A sheaf becomes the spare
//! by a sequence of its CPU, which ends or aborts every sequence there that worked on it as the
//! main sheaf. So a spare is private as soon as the drainer has exchanged it for the dummy.
//!
//! **Without a barrier**, main sheaves of other CPUs stay where they are. That happens if a seccomp
//! filter, installed after start, refuses `membarrier` to the thread. A drain asks the kernel
//! first. Refused, it takes the spares, and its own CPU's main sheaf by a sequence.
//!
//! If the kernel refuses the barrier only after the drainer took main sheaves, sequences may still
//! work on them. The drainer must not look into these sheaves, nor put them where another thread
//! would. It puts each back into its slot, if the slot still has the dummy and no fork is under
//! way. Otherwise the sheaf is lost, and its objects stay taken.

use super::CpuCache;
use super::access::{Access, exchange};
use super::counted;
use super::counts::held;
use super::cpu_cache::Server;
use super::ownership;
use super::sheaf::{self, Owned};
use super::used;
use crate::counters::{self, layout::REASON_NO_MEMBARRIER};
use crate::os::invariant::invariant;
use crate::os::{self, probe};
use crate::rseq::locked::LockedSlot;
use crate::rseq::{Cpu, Exchanged, GATE, Mode, Sheaf, Slot, Which, dummy, dummy_of, is_dummy, mode};
use crate::sync::in_flight::InFlight;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};

pub(super) const BOTH: [Which; 2] = [Which::Main, Which::Spare];

/// How a flush treats the slabs that it empties.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Releases empty slabs beyond the target to the page layer.
    Target,
    /// Keeps the pages of all empty slabs: the objects may be needed again soon.
    Pages,
}

/// How a drain treats threads that use the caches meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Users {
    /// Waits a little for a slot that a thread works on (locked mode).
    Await,
    /// Leaves such a slot alone.
    Avoid,
    /// No thread uses the caches.
    Absent,
}

/// A sheaf that a drain took out of a slot.
struct Taken<'a> {
    cache: &'a CpuCache,
    sheaf: *mut Sheaf,
    /// The slot whose main sheaf it was, if sequences may still work on the sheaf.
    home: Option<&'a Slot>,
}

/// A drain in progress: the sheaves that it took out of slots, of any number of caches. When its 64
/// places are used up, and when it is dropped, it issues one barrier and flushes them to the slabs.
pub struct Drain<'a> {
    users: Users,
    keep: Keep,
    /// Few enough to keep the stack small.
    taken: [Option<Taken<'a>>; 64],
    len: usize,
    in_flight: Option<InFlight>,
    /// Whether the kernel allows this thread barriers; `None` until the drain asks.
    has_barrier: Option<bool>,
}

impl<'a> Drain<'a> {
    fn new(users: Users, keep: Keep) -> Self {
        Drain { users, keep, taken: [const { None }; 64], len: 0, in_flight: None, has_barrier: None }
    }

    /// A drain that takes from every slot, as far as it can.
    pub fn of_all() -> Self {
        Drain::new(Users::Await, Keep::Target)
    }

    /// A drain that skips slots that a thread works on (locked mode), for callers that must not
    /// wait.
    pub fn of_idle(keep: Keep) -> Self {
        Drain::new(Users::Avoid, keep)
    }

    /// A drain that takes all sheaves, with or without a barrier.
    ///
    /// # Safety
    /// No thread may use the caches, and every earlier use must happen before this call.
    pub unsafe fn of_unused() -> Self {
        Drain::new(Users::Absent, Keep::Target)
    }

    /// Takes the sheaves of one of the cache's slots.
    pub(super) fn take(&mut self, cache: &'a CpuCache, slot: &'a Slot) {
        used::note_visit();
        if is_untouched(slot) {
            return;
        }
        self.make_room();
        let locked = match (mode(), self.users) {
            (Mode::Rseq, _) => None,
            (Mode::Locked, Users::Avoid) => LockedSlot::try_lock(slot),
            (Mode::Locked, Users::Await) => LockedSlot::lock_soon(slot),
            (Mode::Locked, Users::Absent) => Some(LockedSlot::lock(slot)),
        };
        let places = match mode() {
            Mode::Locked if locked.is_none() => return,
            Mode::Rseq if !self.may_take_main() => &[Which::Spare],
            _ => &BOTH[..],
        };
        self.in_flight.get_or_insert_with(InFlight::begin);
        let dummy = dummy_of(cache.cpu_of(slot).number());
        for &which in places {
            let sheaf = slot.place(which).swap(dummy, AcqRel);
            invariant!(!sheaf.is_null(), "a slot has a sheaf or the dummy in each place", which as usize);
            ownership::claim(sheaf);
            self.add(cache, sheaf, (which == Which::Main && locked.is_none()).then_some(slot));
        }
        cache.recount(slot);
    }

    /// Takes the sheaf of a slot of the cache's counted row, unless the drain has no barrier.
    pub(super) fn take_counted(&mut self, cache: &'a CpuCache, slot: &'a Slot) {
        used::note_visit();
        if is_dummy(slot.main.load(Relaxed)) || !self.may_take_main() {
            return;
        }
        self.make_room();
        self.in_flight.get_or_insert_with(InFlight::begin);
        let dummy = dummy_of(cache.cpu_of(slot).number());
        self.add(cache, slot.main.swap(dummy, AcqRel), Some(slot));
        cache.recount(slot);
    }

    /// Takes the main sheaf of this CPU by a sequence, where [`Drain::take`] must leave it.
    fn take_own_main(&mut self, cache: &'a CpuCache, node: usize) {
        let Server::Sequences(access) = cache.served_by(node) else { return };
        self.make_room();
        self.in_flight.get_or_insert_with(InFlight::begin);
        let dummy = dummy_of(access.cpu().number());
        // SAFETY: the dummy may go into any slot. With the gate closed this takes nothing, and does
        // not wait: the caller may hold locks.
        if let Exchanged::Old(sheaf) = unsafe { exchange(&access, Which::Main, dummy) } {
            self.add(cache, sheaf, None);
            cache.account(&access);
        }
    }

    fn add(&mut self, cache: &'a CpuCache, sheaf: *mut Sheaf, home: Option<&'a Slot>) {
        if !is_dummy(sheaf) {
            invariant!(self.len < self.taken.len(), "a drain makes room before it takes", self.len);
            invariant!(self.in_flight.is_some(), "sheaves of a drain are in flight", sheaf);
            self.taken[self.len] = Some(Taken { cache, sheaf, home });
            self.len += 1;
        }
    }

    /// Whether the drain can take the sheaves of all slots of the cache, and those that it has,
    /// with one barrier. A cache that has more sheaves than there are places takes several.
    pub(super) fn has_places_for(&self, cache: &CpuCache) -> bool {
        let slots = cache.used_slots().filter(|slot| !is_untouched(slot)).count();
        self.len == 0 || self.len + slots * BOTH.len() <= self.taken.len()
    }

    /// Makes room for both sheaves of a slot.
    fn make_room(&mut self) {
        if self.len + BOTH.len() > self.taken.len() {
            self.finish();
        }
    }

    /// Whether the drainer may exchange main sheaves for the dummy from outside: it has a barrier,
    /// or no thread uses the caches. Asked in rseq mode only.
    fn may_take_main(&mut self) -> bool {
        if self.users == Users::Absent {
            return true;
        }
        let has_barrier = *self.has_barrier.get_or_insert_with(os::membarrier::is_allowed);
        if !has_barrier {
            note_refusal();
        }
        has_barrier
    }

    /// Whether main sheaves stay in their slots, for want of a barrier.
    pub fn leaves_mains(&self) -> bool {
        self.has_barrier == Some(false) && self.users != Users::Absent
    }

    /// Flushes the taken sheaves to the slabs, after one barrier if any of them needs it.
    pub fn finish(&mut self) {
        let len = core::mem::take(&mut self.len);
        let is_private = self.users == Users::Absent
            || !self.taken[..len].iter().flatten().any(|taken| taken.home.is_some())
            || os::membarrier::restart_all();
        if !is_private {
            self.has_barrier = Some(false);
            note_refusal();
        }
        for Taken { cache, sheaf, home } in self.taken[..len].iter_mut().filter_map(Option::take) {
            match home {
                Some(slot) if !is_private => put_back(cache, slot, sheaf),
                _ => {
                    let was_counted = counted::reopen(sheaf);
                    if !sheaf::is_sheaf(sheaf) {
                        // A corrupted one is lost.
                        continue;
                    }
                    probe::drain(|| (cache.slabs().name(), [Owned(sheaf).count()]));
                    if was_counted {
                        cache.credit(Owned(sheaf).count());
                    }
                    cache.flush_and_free(&mut Owned(sheaf), self.keep);
                    // The counters still say that the sheaf holds the objects. Fold them at once.
                    cache.fold_own();
                    counters::record(cache.slabs().id()).drains.fetch_add(1, Relaxed);
                }
            }
        }
        self.in_flight = None;
    }
}

/// Puts a main sheaf that sequences may still work on back into its slot, if the slot has the dummy
/// and the gate is open: no fork is under way. Otherwise the sheaf is lost.
fn put_back(cache: &CpuCache, slot: &Slot, sheaf: *mut Sheaf) {
    if GATE.load(SeqCst) != 0 {
        return;
    }
    if !counted::is_counted(sheaf) {
        ownership::release(sheaf);
    }
    let now = slot.main.load(Relaxed);
    if is_dummy(now) && slot.main.compare_exchange(now, sheaf, Release, Relaxed).is_ok() {
        cache.recount(slot);
    }
}

/// Records in the statistics that the kernel refuses barriers.
fn note_refusal() {
    counters::header().mode_reason.store(REASON_NO_MEMBARRIER, Relaxed);
}

/// Whether both places of a slot have the dummy, and no object is counted.
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
    /// Moves the sheaves of all slots to `drain`, which flushes them to the slabs when it finishes.
    pub fn drain_slots<'a>(&'a self, drain: &mut Drain<'a>) {
        self.used_storing_slots().for_each(|slot| drain.take(self, slot));
        self.drain_counted(drain);
        if drain.leaves_mains() {
            (0..self.nodes).for_each(|node| drain.take_own_main(self, node));
        }
    }

    /// Moves the sheaves of the counted row to `drain`.
    pub fn drain_counted<'a>(&'a self, drain: &mut Drain<'a>) {
        self.used_counted_slots().for_each(|slot| drain.take_counted(self, slot));
    }

    /// Flushes the sheaves of slots and barns to the slabs, except those that other threads hold
    /// meanwhile.
    pub fn drain_all(&self) {
        self.drain_slots(&mut Drain::of_all());
        self.drain_barns();
    }

    /// Flushes all sheaves of slots and barns to the slabs.
    ///
    /// # Safety
    /// As [`Drain::of_unused`].
    pub unsafe fn drain_unused(&self) {
        // SAFETY: the caller's promise.
        self.drain_slots(&mut unsafe { Drain::of_unused() });
        self.drain_barns();
    }

    /// Drains this CPU's slots that hold `least_bytes` of objects or more, to which this thread's
    /// frees went, and all barns if they may hold as much. Returns the bytes of objects that went
    /// to the slabs.
    ///
    /// Interrupts no CPU. Reads no other CPU's slot, and its own only if the capacity is large
    /// enough for `least_bytes`. Always reads how many full sheaves the barns have.
    pub fn drain_near(&self, least_bytes: usize) -> usize {
        let object_bytes = self.slabs().geometry().object_bytes;
        let mut freed = 0;
        let may_hold = 2 * self.capacity() * object_bytes >= least_bytes;
        for node in 0..self.nodes {
            let slot = Cpu::current().shared(self.row(node)).filter(|_| may_hold);
            if slot.is_none_or(|slot| held(slot) * object_bytes < least_bytes) {
                continue;
            }
            let _in_flight = InFlight::begin();
            let sheaves = match self.served_by(node) {
                Server::Slabs => [dummy(); 2],
                Server::Sequences(access) => self.take_both(&access),
                Server::Lock(access) => self.take_both(&access),
            };
            for sheaf in sheaves.into_iter().filter(|&sheaf| !is_dummy(sheaf)) {
                freed += Owned(sheaf).count();
                probe::drain(|| (self.slabs().name(), [Owned(sheaf).count()]));
                self.flush_and_free(&mut Owned(sheaf), Keep::Target);
                counters::record(self.slabs().id()).drains.fetch_add(1, Relaxed);
            }
        }
        let fulls: usize = self.used_barns().map(|barn| barn.fulls()).sum();
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

    /// Flushes the sheaves of the barns to the slabs; returns the number of objects.
    pub fn drain_barns(&self) -> usize {
        let mut freed = 0;
        for barn in self.used_barns() {
            let _in_flight = (barn.fulls() > 0).then(InFlight::begin);
            while let Some(sheaf) = barn.take_any() {
                let n = Owned(sheaf).count();
                self.tally().sheaf_free.fetch_sub(n as i64, Relaxed);
                self.flush_and_free(&mut Owned(sheaf), Keep::Target);
                freed += n;
            }
        }
        freed
    }
}

/// Frees a sheaf that its owner kept outside the slots and barns, and its objects.
///
/// # Safety
/// The caller must own the sheaf, which holds free objects of `cache`, and not use it any more.
pub unsafe fn free_private(cache: &CpuCache, sheaf: *mut Sheaf) {
    let mut owned = Owned(sheaf);
    if owned.count() > 0 {
        // SAFETY: the sheaf holds free objects of the cache, and the caller owned it.
        unsafe { cache.free_slow(owned.objects()) };
        owned.set_count(0);
    }
    // SAFETY: empty and owned.
    unsafe { sheaf::free(sheaf) };
}

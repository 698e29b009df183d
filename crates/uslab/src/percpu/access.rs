//! Access to this CPU's slot, behind one contract: by sequences, or by the slot's lock.

use super::ownership;
use crate::os::{invariant::invariant, sharing};
use crate::rseq::locked::LockedSlot;
use crate::rseq::{self, Cpu, Exchanged, Pushed, Sheaf, Slot, Which};

/// This CPU's slot. The contract of each method is the pseudo-code in `rseq`.
pub(super) trait Access {
    /// Pops up to `out.len()` objects of the main sheaf into the start of `out`; returns how many.
    fn pop_bulk(&self, out: &mut [*mut u8]) -> usize;
    /// Pushes as many of `objects` as the main sheaf has room for; returns how many. The flag is
    /// true if it stopped at a double free: an object that is on top already. Only locked mode
    /// tests that.
    ///
    /// # Safety
    /// `objects` must be free objects of the slot's cache that the caller owns.
    unsafe fn push_bulk(&self, objects: &[*mut u8]) -> (usize, bool);
    /// Exchanges one of the two sheaves.
    ///
    /// # Safety
    /// `new` must be the dummy or a sheaf of this cache that the caller owns.
    unsafe fn exchange(&self, which: Which, new: *mut Sheaf) -> Exchanged;
    /// The slot, for hints and statistics only: the thread may have left its CPU.
    fn slot(&self) -> &Slot;
    /// The CPU, as a hint: the thread may have left it.
    fn cpu(&self) -> Cpu;
    /// The home of the objects in the slot's sheaves. `None`: objects of any home come into them.
    fn node(&self) -> Option<usize>;
}

/// Exchanges one of this CPU's two sheaves for `new`. On success the caller owns the sheaf that
/// comes out, and no longer owns `new`.
///
/// # Safety
/// As [`Access::exchange`].
pub(super) unsafe fn exchange(access: &impl Access, which: Which, new: *mut Sheaf) -> Exchanged {
    invariant!(!new.is_null(), "a slot has a sheaf or the dummy in each place");
    ownership::release(new);
    // SAFETY: the caller's promise.
    let exchanged = unsafe { access.exchange(which, new) };
    match exchanged {
        Exchanged::Old(old) => {
            invariant!(!old.is_null(), "an exchange takes out a sheaf or the dummy");
            ownership::claim(old);
        }
        Exchanged::GateClosed | Exchanged::Taken => ownership::claim(new),
    }
    exchanged
}

/// Access by restartable sequences.
pub(super) struct Sequences<'a> {
    slots: *const Slot,
    slot: &'a Slot,
    cpu: Cpu,
    node: Option<usize>,
}

impl<'a> Sequences<'a> {
    /// Access to this CPU's slot for objects of `node`, or of any home. `None` if the CPU has no
    /// slot. That happens only if the kernel runs the thread on a CPU that it did not count as
    /// possible (see [`crate::os::cpu::possible_cpus`]).
    ///
    /// # Safety
    /// `slots` must be a row of a cache's slots, for every possible CPU, with [`rseq::LEAD`] slots
    /// before them, in a process whose mode is rseq.
    pub unsafe fn new(slots: &'a [Slot], node: Option<usize>) -> Option<Sequences<'a>> {
        let cpu = Cpu::current();
        cpu.own(slots).map(|slot| Sequences { slots: slots.as_ptr(), slot, cpu, node })
    }
}

impl Access for Sequences<'_> {
    fn pop_bulk(&self, out: &mut [*mut u8]) -> usize {
        // SAFETY: `new` vouches for the slots, and `out` is as long as it says.
        let got = unsafe { rseq::pop_bulk(self.slots, out.len(), out.as_mut_ptr()) };
        invariant!(got <= out.len(), "a sequence pops no more than was asked for", got);
        invariant!(!out[..got].iter().any(|object| object.is_null()), "a sheaf holds no NULL", got);
        got
    }

    unsafe fn push_bulk(&self, objects: &[*mut u8]) -> (usize, bool) {
        // SAFETY: as above, and the caller's promise.
        let put = unsafe { rseq::push_bulk(self.slots, objects.len(), objects.as_ptr()) };
        invariant!(put <= objects.len(), "a sequence pushes no more than was given", put);
        (put, false)
    }

    unsafe fn exchange(&self, which: Which, new: *mut Sheaf) -> Exchanged {
        // SAFETY: as above.
        unsafe { rseq::exchange(self.slots, which, new, self.cpu.number()) }
    }

    fn slot(&self) -> &Slot {
        self.slot
    }

    fn cpu(&self) -> Cpu {
        self.cpu
    }

    fn node(&self) -> Option<usize> {
        self.node
    }
}

/// Access by the slot's lock, which a thread holds for one step at a time, as a sequence lasts.
/// Between steps it may run constructors, make system calls and take locks that other threads wait
/// for.
pub(super) struct Locked<'a> {
    slot: &'a Slot,
    cpu: Cpu,
    node: Option<usize>,
}

/// Upper bound on the slots that a thread tries before it bypasses the CPU caches. A taken lock
/// usually means that its holder is preempted, or that a fork is under way.
const TRIES: usize = 4;

impl<'a> Locked<'a> {
    /// Access to the slot of this CPU for objects of `node`, or of any home. If its lock is taken,
    /// to that of one of the next CPUs. `None` if all of these locks are taken.
    pub fn new(slots: &'a [Slot], node: Option<usize>) -> Option<Locked<'a>> {
        core::iter::successors(Some(Cpu::asked()), |cpu| Some(cpu.next()))
            .take(TRIES)
            .filter_map(|cpu| cpu.shared(slots).map(|slot| Locked { slot, cpu, node }))
            .find(|locked| !LockedSlot::is_taken(locked.slot))
    }

    /// Locks the slot for one step; `None` if the lock stays taken.
    fn step(&self) -> Option<LockedSlot<'a>> {
        LockedSlot::spin(self.slot)
    }
}

impl Access for Locked<'_> {
    fn pop_bulk(&self, out: &mut [*mut u8]) -> usize {
        let Some(locked) = self.step() else { return 0 };
        let mut n = 0;
        while n < out.len() {
            out[n] = locked.pop();
            if out[n].is_null() {
                break;
            }
            n += 1;
        }
        n
    }

    unsafe fn push_bulk(&self, objects: &[*mut u8]) -> (usize, bool) {
        let Some(locked) = self.step() else { return (0, false) };
        for (n, &object) in objects.iter().enumerate() {
            // SAFETY: the caller's promise, for each.
            match unsafe { locked.push(object) } {
                Pushed::Done => {}
                other => return (n, other == Pushed::Twice),
            }
        }
        (objects.len(), false)
    }

    unsafe fn exchange(&self, which: Which, new: *mut Sheaf) -> Exchanged {
        self.step().map_or(Exchanged::Taken, |locked| Exchanged::Old(locked.exchange(which, new)))
    }

    fn slot(&self) -> &Slot {
        self.slot
    }

    fn cpu(&self) -> Cpu {
        self.cpu
    }

    fn node(&self) -> Option<usize> {
        self.node
    }
}

/// Where a slot's objects and sheaves come from: a node and a group ([`crate::os::sharing`]).
#[derive(Clone, Copy)]
pub(super) struct Home {
    /// The slot's CPU, whose line counts the objects that the slot's sheaves move to the barn. In
    /// locked mode the thread may run on another one.
    pub cpu: Cpu,
    pub node: usize,
    pub group: usize,
    /// The sheaves hold objects of that node alone.
    pub is_pure: bool,
}

/// The home of the slot of `access`: that of its objects, and the CPU's group or, on another node,
/// one of the groups there.
pub(super) fn home_of(access: &impl Access) -> Home {
    let (cpu, node) = (access.cpu(), access.node());
    match node {
        Some(node) => Home { cpu, node, group: sharing::group_for(cpu.number(), node), is_pure: true },
        None => Home { cpu, node: cpu.node(), group: cpu.group(), is_pure: false },
    }
}

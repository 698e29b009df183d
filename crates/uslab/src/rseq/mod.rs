//! Restartable sequences: the per-CPU steps of the allocator, without locks. `exchange` alone uses
//! an atomic instruction.
//!
//! A sequence is a few instructions that the kernel restarts if the thread was preempted, migrated
//! or signalled within them (`rseq(2)`). So a thread may treat its CPU's slot as its own until its
//! last instruction, the **one committing store**. Before that store none of its effects is
//! visible; after it all of them are.
//!
//! ```text
//!  cache ──▶ slots ─┬─ cpu 0: Slot { main ─────▶ Sheaf { count, capacity, NULL, object 1 … object capacity }
//!                   │              spare ──────▶ Sheaf …
//!                   ├─ cpu 1: Slot { main ─────▶ DUMMY { count 0, capacity 0, NULL }
//! ```
//!
//! # The contract (normative pseudo-code)
//!
//! Every sequence starts with `rseq_cs := &descriptor; slot := slots + cpu`, where `cpu` is the
//! kernel's `cpu_id_start`, or `cpu_id` in builds that register threads. A line that ends with `◀`
//! commits.
//!
//! ```text
//! pop:       s := slot.main; n := s.count; object := s.objects[n]        (objects[0] is NULL: an empty sheaf yields NULL)
//!            s.count := n - 1, or 0 where n = 0  ◀
//! push:      s := slot.main; n := s.count; if n ≥ s.capacity: full
//!            s.objects[n + 1] := object; s.count := n + 1  ◀
//! push_tested: if slot.start_test refuses object: slow; s := slot.main; n := s.count
//!            if s.objects[n] = object: twice; if n ≥ s.capacity: slow
//!            s.objects[n + 1] := object; s.count := n + 1  ◀
//! pop_bulk:  s := slot.main; n := s.count; k := min(wanted, n)
//!            out[0..k] := s.objects[n - k + 1 ..= n]; s.count := n - k  ◀
//! push_bulk: s := slot.main; n := s.count; k := min(given, s.capacity - n)
//!            s.objects[n + 1 ..= n + k] := in[0..k]; s.count := n + k  ◀
//! exchange:  if the CPU is not the given one: taken; if GATE is closed: closed
//!            old := atomic exchange of slot.which with new  ◀                       (a locked instruction)
//! ```
//!
//! `push_bulk` must not meet a sheaf with more objects than capacity: the difference would wrap.
//! Bulk frees therefore do not name a lending row (`percpu::rows`).
//!
//! `pop` needs no test in the sequence. The sentinel at `objects[0]` makes an empty sheaf an
//! ordinary case, and the only branch is the caller's own test for NULL. The cost: a pop that finds
//! the dummy writes to it (a zero over a zero).
//!
//! `push_tested` is for the C interfaces, whose callers may pass any pointer. It tests inside the
//! sequence, where the top object is this CPU's and the slot's cache line is loaded. It is short:
//! `free` with it takes two cache lines of code, and longer forms were measured to cost a cycle
//! (ADR 0024).
//!
//! `exchange` is atomic because a drainer on another CPU changes the slot as well. A thread that
//! takes a sheaf out of a slot by an exchange owns the sheaf. Threads of the same CPU that were
//! inside a sequence were preempted, so they restart. Threads of a drained CPU are restarted by
//! [`crate::os::membarrier`] before the drainer reads the sheaf. `exchange` tests the CPU: the
//! thread has marked that CPU as used, and a fork parks the slots of marked CPUs alone
//! (`percpu::used`).
//!
//! # What must never be done here
//! A second store that other threads can see before the commit. A system call inside a sequence. A
//! branch out of it, other than to its beginning or its failure exit. A write to any field of the
//! kernel's area but `rseq_cs`.
//!
//! # Registration
//! glibc 2.35 and newer registers each thread. With musl and older glibc the library can register a
//! thread at its first slow call (`own`). In a build that does, the sequences read `cpu_id`, which
//! is -1 before that, and find the slot before the first one, which holds a dummy ([`LEAD`]).
//!
//! In locked mode (see [`Mode`]) no sequence uses a registered area. The sequences read an area
//! that the library fills in, and find dummies alone: pop finds the sheaf empty, and push finds it
//! full.
//! Then `percpu` takes the steps of this contract under the slot's lock ([`locked`]). Where no
//! sequence is compiled, each step fails at once, and `percpu` takes the lock as well.
//!
//! A pop writes the dummy, so threads on different CPUs are to find different ones. The number in
//! that area is therefore a hint of the thread's CPU (`hint`), below [`area_numbers`].
//!
//! A step that does not get the lock changes nothing: `pop_bulk` and `push_bulk` return 0 whatever
//! the sheaf holds, and `exchange` returns [`Exchanged::Taken`].

// With musl sequences need the library's own area (`area`).
#[cfg(any(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    all(target_env = "musl", not(any(target_feature = "crt-static", feature = "register-threads")))
))]
#[path = "absent.rs"]
mod arch;
#[cfg(all(
    target_arch = "aarch64",
    any(not(target_env = "musl"), target_feature = "crt-static", feature = "register-threads")
))]
#[path = "aarch64.rs"]
mod arch;
#[cfg(all(
    target_arch = "x86_64",
    any(not(target_env = "musl"), target_feature = "crt-static", feature = "register-threads")
))]
#[path = "x86_64.rs"]
mod arch;
mod copy;
mod cpu;
mod detect;
pub mod fake;
mod hint;
mod layout;
pub mod lend;
pub mod locked;
mod own;
#[cfg(test)]
mod tests;

#[cfg(all(uslab_inject, target_arch = "x86_64", not(target_env = "musl")))]
pub use arch::{ABORTS, INJECT_TURNS};
pub use arch::{exchange, pop, pop_bulk, push, push_bulk, push_tested};
pub use copy::copy;
pub use cpu::Cpu;
pub use detect::{Mode, Wish, area_numbers, init, mode, reason};
pub use layout::{
    DUMMIES, FACTS, LEAD, MAX_CPUS, Owner, PLAIN_OWNERS, SHEAF_HEADER_BYTES, Sheaf, Slot, StartTest, Which,
    dummy, dummy_for_pushes, dummy_of, dummy_slots, is_dummy,
};

use core::sync::atomic::AtomicU32;

/// Not 0 while a fork copies the memory: then no sequence exchanges a slot's sheaf.
///
/// To close the gate, the forking thread stores to it and then calls
/// [`crate::os::membarrier::restart_all`].
pub static GATE: AtomicU32 = AtomicU32::new(0);

/// The result of [`push_tested`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// The object is on top of the sheaf.
    Done,
    /// Nothing changed: the sheaf is full, or no object starts there. The slow path finds out
    /// which.
    Slow,
    /// Nothing changed: the object is on top already, so this is a double free.
    Twice,
}

/// The result of [`exchange`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exchanged {
    /// The sheaf that was in the slot, now owned by the caller; the dummy where there was none.
    Old(*mut Sheaf),
    /// Nothing changed: the gate is closed.
    GateClosed,
    /// Nothing changed: the thread has left the slot's CPU, or another thread holds the slot's lock
    /// (locked mode).
    Taken,
}

/// The result of an exchange's sequence on another CPU than the given one. No sheaf has this
/// address.
#[allow(dead_code, reason = "some targets have no sequences")]
const MOVED: usize = 1;

impl Exchanged {
    /// The result of an exchange's sequence: the old sheaf, [`MOVED`], or null for a closed gate.
    #[allow(dead_code, reason = "some targets have no sequences")]
    fn of(old: *mut Sheaf) -> Exchanged {
        match old.addr() {
            0 => Exchanged::GateClosed,
            MOVED => Exchanged::Taken,
            _ => Exchanged::Old(old),
        }
    }
}

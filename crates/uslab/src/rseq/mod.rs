//! Restartable sequences: the per-CPU steps of the allocator, without locks or atomic instructions.
//!
//! A sequence is a few instructions that the kernel restarts if the thread was preempted, migrated or signalled within them
//! (`rseq(2)`). So a thread may treat what it reads of its CPU's slot as its own until its last instruction, the **one
//! committing store**. Before that store nothing that it did can be seen; after it everything has happened.
//!
//! ```text
//!  cache ──▶ slots ─┬─ cpu 0: Slot { main ─────▶ Sheaf { count, capacity, NULL, object 1 … object capacity }
//!                   │              spare ──────▶ Sheaf …
//!                   ├─ cpu 1: Slot { main ─────▶ DUMMY { count 0, capacity 0, NULL }
//! ```
//!
//! # The contract (normative pseudo-code)
//!
//! Every sequence starts with `rseq_cs := &descriptor; slot := slots + cpu_id_start`. Line ends with `◀` commit.
//!
//! ```text
//! pop:       s := slot.main; n := s.count; object := s.objects[n]        (objects[0] is NULL: an empty sheaf yields NULL)
//!            s.count := n - 1, or 0 where n = 0  ◀
//! push:      s := slot.main; n := s.count; if n ≥ s.capacity: full
//!            s.objects[n + 1] := object; s.count := n + 1  ◀
//! push_tested: if slot.start_test refuses object: slow; s := slot.main; n := s.count
//!            if s.objects[n] = object: twice; if n ≥ s.capacity: slow
//!            s.objects[n + 1] := object; s.count := n + 1  ◀
//! pop_bulk:  k := min(wanted, s.count); out[0..k] := s.objects[n - k + 1 ..= n]; s.count := n - k  ◀
//! push_bulk: k := min(given, s.capacity - n); s.objects[n + 1 ..= n + k] := in[0..k]; s.count := n + k  ◀
//! exchange:  if GATE is closed: closed
//!            old := atomic exchange of slot.which with new  ◀                       (a locked instruction)
//! ```
//!
//! `pop` needs no test in the sequence: the sentinel at `objects[0]` makes the empty case an ordinary one, and the caller's own
//! test for NULL, which every allocation has, is the only branch. The price is that the dummy sheaf is written (a zero over a zero).
//!
//! `push_tested` is for callers that may give any pointer: the C interfaces. It tests in the sequence,
//! where the top is this CPU's and the slot's cache line is at hand. It is written to be short: with it
//! `free` takes two cache lines of code; longer forms were seen to cost a cycle (ADR 0024).
//!
//! `exchange` is atomic because a drainer on another CPU changes the slot as well. Whoever gets a sheaf out of a slot by an
//! exchange owns it: threads of the same CPU that were inside a sequence were preempted and restart; threads of the drained
//! CPU are restarted by [`crate::os::membarrier`] before the drainer looks into the sheaf.
//!
//! # What must never be done here
//! A second store that others can see before the commit; a system call or a branch out of a sequence other than to its
//! beginning or to its failure exit; a write to any field of the kernel's area but `rseq_cs`.
//!
//! # Without registration
//! The fast path is the same code. Where the process runs locked (see [`Mode`]) the area that it reads is a scratch part of the
//! thread control block that always says CPU 0, and there each cache has a dummy of its own: pop finds the sheaf empty and push
//! finds it full, and the slow path takes each step of this contract under the slot's lock ([`locked`]). A step that does not get it
//! changes nothing: `pop_bulk` and `push_bulk` then come to 0 whatever the sheaf holds, and `exchange` says so.

#[cfg(all(target_arch = "aarch64", not(target_env = "musl")))]
#[path = "aarch64.rs"]
mod arch;
#[cfg(any(target_env = "musl", not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[path = "absent.rs"]
mod arch;
#[cfg(all(target_arch = "x86_64", not(target_env = "musl")))]
#[path = "x86_64.rs"]
mod arch;
mod cpu;
mod detect;
pub mod fake;
mod layout;
pub mod lend;
pub mod locked;
#[cfg(test)]
mod tests;

#[cfg(all(uslab_inject, target_arch = "x86_64", not(target_env = "musl")))]
pub use arch::{ABORTS, INJECT_TURNS};
pub use arch::{exchange, pop, pop_bulk, push, push_bulk, push_tested};
pub use cpu::Cpu;
pub use detect::{Mode, init, mode, reason};
pub use layout::{
    MAX_CPUS, Owner, PLAIN_OWNERS, SHEAF_HEADER_BYTES, Sheaf, Slot, StartTest, Which, dummy, dummy_slots,
    is_dummy,
};

use core::sync::atomic::AtomicU32;

/// While not 0, no sequence puts a sheaf into a slot or takes one out: a fork is copying the memory.
///
/// Closing it takes a store followed by [`crate::os::membarrier::restart_all`].
pub static GATE: AtomicU32 = AtomicU32::new(0);

/// What became of an object given to [`push_tested`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// It is on top of the sheaf.
    Done,
    /// Nothing was changed: the sheaf is full, or no object starts there. The slow path decides.
    Slow,
    /// Nothing was changed: it is on top already, so it is free.
    Twice,
}

/// What [`exchange`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exchanged {
    /// The sheaf that was in the slot, now the caller's; the dummy where there was none.
    Old(*mut Sheaf),
    /// Nothing was changed: the gate is closed.
    GateClosed,
    /// Nothing was changed: another thread has the slot's lock (locked mode).
    Taken,
}

//! Per-CPU sheaves: the layer between the fast path and the slabs.
//!
//! ```text
//!            fast path               slow path (in a long streak, 1 call in ~60)
//!  cpu 0  main ◀─ pop, push ─▶  spare ◀──▶ ┐
//!  cpu 1  main                  spare ◀──▶ ├── barn of the group ◀─▶ slabs of the group
//!  …                                       ┘   full and empty sheaves
//! ```
//!
//! A **group** is the CPUs of a node that share a last-level cache ([`crate::os::sharing`]).
//!
//! A sheaf is an array of free objects. Sheaves move by pointer: an exchange for the dummy takes a
//! sheaf out of a slot, and an exchange for a sheaf puts that sheaf into it. **The thread that
//! takes a sheaf out of a slot owns it.** The owner may be preempted, migrate or sleep. A refill
//! tries, in this order, the spare, a full sheaf of the barn, a full sheaf of a richer barn of the
//! node (`surplus`), and the slabs.
//!
//! A **drain** empties the slots of other CPUs. The drainer exchanges each sheaf for the dummy,
//! then issues a `membarrier`. After that no sequence works on the old sheaf: it is private to the
//! drainer. No thread waits for the thread that runs on another CPU. Shrinking, destroying and
//! forking use the same steps. If the kernel refuses the barrier, they skip the steps that need it
//! (`drain`, `fork`).
//!
//! The **capacity** of sheaves adapts per cache. It doubles when a CPU runs out of objects and then
//! of room, or the other way round, when the barn serves the cache again and again, or when a CPU
//! exchanges its two sheaves over and over. Capacity beyond the default counts against a bound of
//! bytes per CPU for all caches ([`adapt`]). The slow path replaces sheaves of the old size as it
//! meets them.
//!
//! In locked mode the same code holds the slot's lock for each step (see `access`), and the fast
//! path serves no call: a short step does (`step`), or the slow path.

mod access;
pub mod adapt;
mod barn;
mod bypass;
mod counted;
mod counts;
mod cpu_cache;
mod drain;
mod flush_idle;
mod fork;
mod hidden;
mod hidden_row;
mod lending;
pub mod local;
pub mod owners;
mod ownership;
mod refill;
mod regions;
mod rows;
mod runs;
mod saturated;
pub mod sheaf;
mod step;
mod surplus;
#[cfg(test)]
mod tests;
mod used;
mod valid;

use crate::os::facts::Fact;

pub use counted::{most_counted, needs_counted_row};
pub use cpu_cache::{CpuCache, Parts};
pub use drain::{Drain, Keep, free_private};
pub use fork::{begin_fork, end_fork, park_slots, unpark_slots};
pub use hidden::{allow_hidden, is_allowed as may_hide, shuffle_refills};
pub use valid::{Walked, check_dummy};

/// The facts of this layer, for a debugger.
pub const FACTS: &[&[Fact]] =
    &[cpu_cache::FACTS, barn::FACTS[0], barn::FACTS[1], counted::FACTS, local::FACTS[0], local::FACTS[1]];

//! Per-CPU sheaves: what stands between the fast path and the slabs.
//!
//! ```text
//!            fast path                    slow path (one call in some sixty)
//!  cpu 0  main ◀─ pop, push ─▶       spare ◀──▶ ┐
//!  cpu 1  main                       spare ◀──▶ ├── barn of the node ◀──▶ slabs of the node
//!  …                                            ┘   full and empty sheaves
//! ```
//!
//! A sheaf is an array of free objects. Sheaves move by pointer: out of a slot by an exchange with
//! the dummy, into it by an exchange with the sheaf. **The thread that takes a sheaf out of a slot
//! owns it** and may be preempted, migrate or sleep while it holds the sheaf. Refill asks, in this
//! order: the spare, a full sheaf of the barn, the slabs.
//!
//! **Drain** empties the slots of other CPUs: exchange with the dummy, `membarrier` so that no
//! sequence still works on the old sheaf, then it is private. No thread waits for another CPU's
//! user. The same serves shrinking, destroying and forking. Where the kernel refuses the barrier,
//! steps that need it are left undone (`drain`, `fork`).
//!
//! **Capacity** of sheaves adapts per cache: a CPU that went to the barn for want of objects and
//! then for want of room (or the other way round), or that lives off the barn, doubles it, as long
//! as all caches together stay below a byte bound a CPU beyond their defaults ([`adapt`]). Sheaves
//! of the old size are replaced as they pass by.
//!
//! In locked mode the same code takes each step with the slot locked (see `access`); the fast path
//! then always ends up here.

mod access;
pub mod adapt;
mod barn;
mod cpu_cache;
mod drain;
mod flush_idle;
mod fork;
mod ownership;
mod runs;
pub mod sheaf;
#[cfg(test)]
mod tests;
mod valid;

pub use cpu_cache::{CpuCache, Parts};
pub use drain::{Drain, Keep, free_private};
pub use fork::{begin_fork, end_fork, hide_slots, show_slots};
pub use valid::{Walked, check_dummy};

//! Slabs: runs of pages cut into objects of one cache, with the free ones in an out-of-line bitmap.
//!
//! ```text
//!  descriptor of the slab's pages (64 bytes a page, beside the arena)          the pages themselves
//!  ┌ free count │ list │ node │ next │ prev ┐┌ bitmap: bit i set = object i free ┐      ┌───┬───┬───┬───┬─┐
//!  └────────────────────────────────────────┘└──────────────────────────────────┘      │ 0 │ 1 │ 2 │ … │ │ leftover
//!                                                                                       └───┴───┴───┴───┴─┘
//! ```
//!
//! A free object is never written: what a constructor made survives, zero pages stay zero, a heap
//! overflow finds nothing to corrupt, and a double free is a bit that is set already.
//!
//! # Protocol
//! * **Give** (free) needs no lock: set the object's bit, then add to the free count, in that
//!   order. Only where the count crosses a boundary that a list cares about does the giver take the
//!   lists' lock and *relist*: look at the count as it is now and put the slab where it belongs.
//!   Reconciling is idempotent, so several may do it, late and in any order.
//! * **Take** runs under the lists' lock: whole words at a time, then the count is lowered. It may
//!   lower a count before a giver raised it: the count is signed and settles.
//! * A slab whose count equals its objects is *empty*: no giver is between its two steps. It is
//!   kept up to an adaptive target and otherwise leaves, under the lock, by losing its entry in the
//!   page map; a late reconciler sees that and goes away.
//!
//! Every slab stands in one list, the full ones as well: so a cache that is destroyed whole costs
//! what it owns, whatever else lives.
//!
//! `slab` does not know that per-CPU caches exist. Lock: `SlabLists`; the page layer and
//! constructors are called without it.

mod geometry;
mod lists;
mod misuse;
mod node;
mod one;
mod pool;
mod run;
mod shrink;
#[cfg(test)]
mod tests;
mod valid;
pub mod words;

pub use geometry::{Geometry, GeometryError, GeometryOptions, Layout};
pub use misuse::{Misuse, report_misuse, set_abort_on_misuse};
pub use node::{ListsLock, NodeMemory};
pub use pool::{Constructor, Slabs};
pub use valid::Walked;

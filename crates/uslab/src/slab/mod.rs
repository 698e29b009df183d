//! A slab is a run of pages cut into objects of one cache; an out-of-line bitmap marks the free
//! ones.
//!
//! ```text
//!  descriptor of the slab's pages (64 bytes a page, beside the arena)          the pages themselves
//!  ┌ free count │ list │ group │ next │ prev ┐┌ bitmap: bit i set = object i free ┐      ┌───┬───┬───┬───┬─┐
//!  └────────────────────────────────────────┘└──────────────────────────────────┘      │ 0 │ 1 │ 2 │ … │ │ leftover
//!                                                                                       └───┴───┴───┴───┴─┘
//! ```
//!
//! The allocator never writes a free object. So constructed state survives, zero pages stay zero,
//! and a heap overflow finds no link to corrupt. A double free is a bit that is already set.
//!
//! # Protocol
//! * **Free** takes no lock: the freeing thread sets the object's bit, then adds to the free count.
//!   If the count now calls for another list, the thread takes the lists' lock and *relists* the
//!   slab: it reads the count again and moves the slab to the list that the count calls for.
//!   Relisting is idempotent, so several threads may relist one slab, late and in any order.
//! * **Take** (a refill) clears bits, a word at a time, then lowers the count. It may lower the
//!   count before a freeing thread has raised it. So the count is signed, and right again once that
//!   thread has counted. One thread at a time takes from a slab: it holds the lists' lock, or has
//!   moved the slab to the *taking* list under it, where all other threads leave the slab alone.
//! * A slab whose count equals its objects is *empty*: no freeing thread is between its two steps.
//!   A group keeps empty slabs up to an adaptive target (`shrink`) and releases the others. A
//!   release removes the slab from the page map, under the lock. A thread that relists late finds
//!   the slab gone and returns.
//!
//! Every slab stands in exactly one list, full slabs too. So destroying a whole cache costs what
//! that cache owns, whatever else is alive.
//!
//! Slabs of 16 to 64 pages are charged page by page. Slabs of 2 to 64 pages give free pages back
//! while others are in use, unless the cache has a constructor: see `resident`. The classes of
//! `malloc` have slabs of 32 pages, which keep the objects of a class together.
//!
//! `slab` does not know that per-CPU caches exist. Its lock is `SlabLists`. A thread does not hold
//! that lock while it runs constructors, or allocates and frees runs of pages. It may hold the lock
//! while it charges a page. Under `ListMarks` a thread notes that a group's lists are used.

mod checks;
mod claimed;
mod delayed;
mod free;
mod geometry;
mod group;
mod homes;
mod kept;
mod lists;
mod misuse;
mod one;
mod pool;
mod regions;
mod resident;
mod run;
mod shrink;
mod surplus;
mod take;
#[cfg(test)]
mod tests;
mod used;
mod valid;
mod walk;
pub mod words;

use crate::os::facts::Fact;

pub use delayed::{Delayed, forget_other_threads, report_misuse};
pub use geometry::{Geometry, GeometryError, GeometryOptions, Layout};
pub use group::{GroupMemory, ListsLock};
pub use kept::keep_addresses;
pub use misuse::{Headline, Misuse};
pub use pool::{Constructor, Slabs};
pub use resident::Walk;
pub use used::{lock_marks_for_fork, unlock_marks_after_fork};
pub use valid::Walked;

/// The facts of this layer, for a debugger.
pub const FACTS: &[&[Fact]] = &[geometry::FACTS, one::FACTS, lists::FACTS, group::FACTS, pool::FACTS];

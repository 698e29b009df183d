//! What a pass works on: the process ([`super::super::pass`]), or a model of it in tests.
//!
//! The ladder decides, a [`World`] acts. No method calls back into the ladder, so that one thread
//! and a counter for a clock are enough to test every decision.

use super::super::balance::{Owed, Weight};
use crate::pages::Scattered;

/// The memory of a process, and the shrinkers that can be asked for more of it.
pub trait World {
    /// The name of a shrinker, for as long as a pass lasts.
    type Shrinker: Copy + PartialEq;
    /// The right to call a shrinker; dropping it leaves.
    type Visit<'a>: Visit
    where
        Self: 'a;

    /// Bytes that any thread has purged since the process started.
    fn purged_bytes(&self) -> u64;

    /// Bytes that entries are taken to be a part of.
    fn used_bytes(&self, basis: Basis) -> usize;

    /// Purges about `bytes` of free pages; returns the bytes that went to the system.
    fn purge(&self, bytes: usize, scattered: Scattered) -> usize;

    /// Flushes sheaves that are not about to be used, shrinks empty slabs, purges their pages:
    /// about `bytes`.
    fn trim_some(&self, bytes: usize, scattered: Scattered);

    /// Flushes every sheaf, shrinks every empty slab, purges every free page. With `waits`, memory
    /// in flight is waited for before and after.
    fn trim_all(&self, waits: bool);

    /// All shrinkers, in the order in which they are asked.
    fn shrinkers(&self) -> impl Iterator<Item = Self::Shrinker>;

    /// Enters a shrinker; `None` where another thread is inside, or it is gone.
    fn visit(&self, shrinker: Self::Shrinker) -> Option<Self::Visit<'_>>;

    /// Whether the shrinker would be asked if no other thread were inside.
    fn is_live(&self, shrinker: Self::Shrinker) -> bool;

    /// A clock that does not go back, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Blocks for `ms` milliseconds.
    fn pause_ms(&self, ms: u64);
}

/// A shrinker from inside: no other thread calls it meanwhile.
pub trait Visit {
    /// Entries that could go.
    fn count(&mut self, priority: u32) -> usize;

    /// Has the shrinker free up to `entries`; returns how many went, or `None` for "not now".
    fn scan(&mut self, priority: u32, entries: usize) -> Option<usize>;

    /// Whether it may be called again: a callback may unregister its own shrinker.
    fn is_open(&self) -> bool;

    /// Cost of making one of `freeable` entries again.
    fn weight(&mut self, freeable: usize) -> Weight;

    /// Entries asked for at once.
    fn batch(&mut self) -> usize;

    /// What earlier rounds asked for and did not get.
    fn owed(&mut self) -> Owed;

    /// Changes what is owed.
    fn set_owed(&mut self, owed: Owed);

    /// Records that `entries` went.
    fn note_evicted(&mut self, entries: usize);
}

/// What the mean size of an entry is estimated from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Pages in use: one counter.
    Pages,
    /// Objects that programs hold: a sum over all caches, which takes a line from each slow path.
    Objects,
}

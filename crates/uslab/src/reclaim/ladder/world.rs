//! The world that a pass acts on: the process ([`super::super::pass`]), or a model of it in tests.
//!
//! The ladder decides and a [`World`] acts. No method calls back into the ladder. So one thread,
//! and a counter as clock, are enough to test every decision.

use super::super::balance::{Owed, Weight};
use crate::pages::Scattered;

/// The memory of a process, and the shrinkers that can free more of it.
pub trait World {
    /// The name of a shrinker, valid as long as a pass lasts.
    type Shrinker: Copy + PartialEq;
    /// The right to call a shrinker; dropping it leaves.
    type Visit<'a>: Visit
    where
        Self: 'a;

    /// Bytes that any thread has purged since the process started.
    fn purged_bytes(&self) -> u64;

    /// Bytes in use, from which the ladder estimates the size of an entry.
    fn used_bytes(&self, basis: Basis) -> usize;

    /// Purges about `bytes` of free pages; returns the bytes that went to the system.
    fn purge(&self, bytes: usize, scattered: Scattered) -> usize;

    /// Flushes sheaves that no thread needs soon, shrinks empty slabs and purges their pages, about
    /// `bytes` in all.
    fn trim_some(&self, bytes: usize, scattered: Scattered);

    /// Flushes every sheaf, shrinks every empty slab, purges every free page. With `waits` it waits
    /// for memory in flight before and after.
    fn trim_all(&self, waits: bool);

    /// All shrinkers, in the order in which they are asked.
    fn shrinkers(&self) -> impl Iterator<Item = Self::Shrinker>;

    /// Enters a shrinker; `None` if another thread is inside, or the shrinker was unregistered.
    fn visit(&self, shrinker: Self::Shrinker) -> Option<Self::Visit<'_>>;

    /// Whether the shrinker is registered, so that only a thread inside keeps a pass from asking
    /// it.
    fn is_live(&self, shrinker: Self::Shrinker) -> bool;

    /// A clock that does not go back, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Blocks for `ms` milliseconds.
    fn pause_ms(&self, ms: u64);
}

/// A shrinker that the calling thread has entered: no other thread calls it meanwhile.
pub trait Visit {
    /// Returns the number of entries that could go.
    fn count(&mut self, priority: u32) -> usize;

    /// Asks the shrinker to free up to `entries`; returns how many it freed, or `None` for "not
    /// now".
    fn scan(&mut self, priority: u32, entries: usize) -> Option<usize>;

    /// Whether it may be called again: a callback may unregister its own shrinker.
    fn is_open(&self) -> bool;

    /// The cost of making one of `freeable` entries again.
    fn weight(&mut self, freeable: usize) -> Weight;

    /// Entries that one call asks for.
    fn batch(&mut self) -> usize;

    /// The entries that earlier rounds asked for and did not get.
    fn owed(&mut self) -> Owed;

    /// Sets the entries owed.
    fn set_owed(&mut self, owed: Owed);

    /// Records that the shrinker freed `entries`.
    fn note_evicted(&mut self, entries: usize);

    /// Records why a round stopped asking the shrinker. Nothing depends on it.
    fn note_end(&mut self, _end: End) {}
}

/// Why a round stopped asking a shrinker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was asked for all of its share.
    Share,
    /// It answered "not now".
    Answered,
    /// It used up its time.
    Time,
    /// It had no entry that could go.
    Empty,
    /// It was unregistered in its own callback, or panicked.
    Gone,
}

/// The figure from which the ladder estimates the mean size of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Pages in use: a single counter.
    Pages,
    /// Objects in use: a sum over all caches, which takes a cache line from each slow path.
    Objects,
}

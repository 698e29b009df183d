//! Who owns what, kept beside a model to judge it by.
//!
//! In `std`'s atomics: loom neither sees them nor switches threads at them, so an entry is made at the very step that it
//! belongs to, and adds no interleavings.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Owners of a number of things; 0 is nobody.
pub struct Ledger {
    owners: Vec<AtomicUsize>,
    what: &'static str,
}

impl Ledger {
    pub fn new(what: &'static str, things: usize) -> Ledger {
        Ledger { owners: (0..things).map(|_| AtomicUsize::new(0)).collect(), what }
    }

    /// `who` now owns `thing`, which must be nobody's.
    pub fn seize(&self, thing: usize, who: usize) {
        let before = self.owners[thing].swap(who, SeqCst);
        assert_eq!(before, 0, "{} {thing} has two owners: {before} and {who}", self.what);
    }

    /// `who` lets go of `thing`, which must be its own.
    pub fn let_go(&self, thing: usize, who: usize) {
        let before = self.owners[thing].swap(0, SeqCst);
        assert_eq!(before, who, "{} {thing} is let go of by {who}, and is {before}'s", self.what);
    }

    /// All things that somebody owns.
    pub fn owned(&self) -> Vec<usize> {
        (0..self.owners.len()).filter(|&thing| self.owners[thing].load(SeqCst) != 0).collect()
    }
}

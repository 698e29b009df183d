//! The owners of things in a model, against which the model is checked.
//!
//! It uses `std`'s atomics: loom does not see them and does not switch threads at them. So an entry
//! changes in the same step as the thing itself, and adds no interleavings.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The owner of each thing; 0 is none.
pub struct Ledger {
    owners: Vec<AtomicUsize>,
    what: &'static str,
}

impl Ledger {
    pub fn new(what: &'static str, things: usize) -> Ledger {
        Ledger { owners: (0..things).map(|_| AtomicUsize::new(0)).collect(), what }
    }

    /// Makes `thread_id` the owner of `thing`, which must have none.
    pub fn seize(&self, thing: usize, thread_id: usize) {
        let before = self.owners[thing].swap(thread_id, SeqCst);
        assert_eq!(before, 0, "{} {thing} has two owners: {before} and {thread_id}", self.what);
    }

    /// Removes `thread_id`, which must be the owner of `thing`.
    pub fn let_go(&self, thing: usize, thread_id: usize) {
        let before = self.owners[thing].swap(0, SeqCst);
        assert_eq!(before, thread_id, "{thread_id} releases {} {thing}, which {before} owns", self.what);
    }

    /// All things that have an owner.
    pub fn owned(&self) -> Vec<usize> {
        (0..self.owners.len()).filter(|&thing| self.owners[thing].load(SeqCst) != 0).collect()
    }
}

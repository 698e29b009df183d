//! The lists of one node behind their lock: one of their own, or one that many share.

use super::lists::Lists;
use crate::os::{Guard, Lock};
use crate::sync::Rank;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// Where the lists stand, and what locks them.
pub struct NodeMemory {
    /// [`super::Slabs::node_bytes`] bytes, aligned to 64.
    pub start: *mut u8,
    /// Nodes of the machine.
    pub nodes: usize,
    /// A lock that many slabs share, so that a fork has few to take. Such slabs also share a
    /// record, which they write where their slabs change, and keep no empty slab. `None`: all
    /// of their own.
    pub shared: Option<&'static ListsLock>,
}

/// A lock of slab lists.
pub struct ListsLock(Lock<()>);

impl Default for ListsLock {
    fn default() -> Self {
        Self::new()
    }
}

impl ListsLock {
    /// A free lock.
    pub const fn new() -> ListsLock {
        ListsLock(Lock::new(Rank::SlabLists, ()))
    }

    /// Takes the lock for the time of a fork.
    pub fn lock_for_fork(&self) {
        self.0.acquire_for_fork();
    }

    /// Undoes [`ListsLock::lock_for_fork`]; true in the child.
    pub fn unlock_after_fork(&self, child: bool) {
        if child { self.0.reset_in_child() } else { self.0.release_after_fork() }
    }
}

/// The lists of one node, on cache lines of their own.
#[repr(align(64))]
pub(super) struct Node {
    own: ListsLock,
    /// The lock of the lists, where it is not `own`.
    shared: Option<&'static ListsLock>,
    lists: UnsafeCell<Lists>,
}

// SAFETY: the lists are reached under the lock alone.
unsafe impl Sync for Node {}

/// Lists whose lock the thread holds.
pub(super) struct Guarded<'a> {
    lists: &'a mut Lists,
    _held: Guard<'a, ()>,
}

impl Node {
    /// `lists` behind a lock of their own, or behind `shared`.
    pub(super) const fn new(lists: Lists, shared: Option<&'static ListsLock>) -> Node {
        Node { own: ListsLock::new(), shared, lists: UnsafeCell::new(lists) }
    }

    /// Takes the lock, sleeping if it must.
    pub(super) fn lock(&self) -> Guarded<'_> {
        let held = self.shared.unwrap_or(&self.own).0.lock();
        // SAFETY: these lists have one lock, for ever, and the guard keeps it for as long as the
        // reference lives.
        Guarded { lists: unsafe { &mut *self.lists.get() }, _held: held }
    }

    /// Takes the lock for the time of a fork, if it is the lists' own.
    pub(super) fn lock_for_fork(&self) {
        self.own.lock_for_fork();
    }

    /// Undoes [`Node::lock_for_fork`]; true in the child.
    pub(super) fn unlock_after_fork(&self, child: bool) {
        self.own.unlock_after_fork(child);
    }
}

impl Deref for Guarded<'_> {
    type Target = Lists;
    fn deref(&self) -> &Lists {
        self.lists
    }
}

impl DerefMut for Guarded<'_> {
    fn deref_mut(&mut self) -> &mut Lists {
        self.lists
    }
}

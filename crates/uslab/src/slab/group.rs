//! The slab lists of one group of CPUs ([`crate::os::sharing`]) and their lock: the group's own
//! lock, or one that several caches share.

use super::lists::Lists;
use crate::counters::Tally;
use crate::os::facts::{Fact, facts};
use crate::os::{Guard, Lock};
use crate::sync::Rank;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The memory of a cache's lists, and their lock.
pub struct GroupMemory {
    /// [`super::Slabs::group_bytes`] bytes, aligned to 64.
    pub start: *mut u8,
    /// Groups of CPUs that have lists of their own: all of the machine, or one.
    pub groups: usize,
    /// Nodes that have lists of their own: all of the machine, or one.
    pub nodes: usize,
    /// A lock that several caches share, so that a fork has few locks to take. Such caches also
    /// share a record of counters, to which each adds its changes, and they keep no empty slab.
    /// `None`: the cache has a lock for each group and a record of its own.
    pub shared: Option<&'static ListsLock>,
    /// A line of counts for each CPU. Empty where so few threads use the cache that it counts on
    /// one line.
    pub tallies: &'static [Tally],
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

    /// Takes the lock for the duration of a fork.
    pub fn lock_for_fork(&self) {
        self.0.acquire_for_fork();
    }

    /// Undoes [`ListsLock::lock_for_fork`]; `child` is true in the child.
    pub fn unlock_after_fork(&self, child: bool) {
        if child { self.0.reset_in_child() } else { self.0.release_after_fork() }
    }
}

/// The lists of one group, on their own cache lines.
#[repr(align(64))]
pub(super) struct Group {
    own: ListsLock,
    /// The lock of the lists, if it is not `own`.
    shared: Option<&'static ListsLock>,
    /// Changes of the lists wait to be published.
    is_behind: AtomicBool,
    /// The lists have slabs with free objects. Read only in caches of several groups.
    has_free: AtomicBool,
    lists: UnsafeCell<Lists>,
}

/// A group's lists, for a debugger.
pub(super) const FACTS: &[Fact] = facts!(Group { lists });

// SAFETY: threads reach the lists only under the lock.
unsafe impl Sync for Group {}

/// Lists whose lock the current thread holds.
pub(super) struct Guarded<'a> {
    lists: &'a mut Lists,
    _held: Guard<'a, ()>,
}

impl Group {
    /// `lists` behind their own lock, or behind `shared`.
    pub(super) const fn new(lists: Lists, shared: Option<&'static ListsLock>) -> Group {
        Group {
            own: ListsLock::new(),
            shared,
            is_behind: AtomicBool::new(false),
            has_free: AtomicBool::new(false),
            lists: UnsafeCell::new(lists),
        }
    }

    /// Takes the lock, sleeping if it must.
    pub(super) fn lock(&self) -> Guarded<'_> {
        let held = self.shared.unwrap_or(&self.own).0.lock();
        // SAFETY: the lists have one lock for ever, and the guard holds it as long as the reference
        // lives.
        Guarded { lists: unsafe { &mut *self.lists.get() }, _held: held }
    }

    /// Whether changes wait to be published. A hint without the lock.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Relaxed)
    }

    /// Notes whether changes wait to be published. The caller holds the lock.
    pub(super) fn set_behind(&self, is_behind: bool) {
        set(&self.is_behind, is_behind);
    }

    /// Whether the lists have slabs with free objects. A hint without the lock.
    pub(super) fn has_free(&self) -> bool {
        self.has_free.load(Relaxed)
    }

    /// Notes whether the lists have slabs with free objects. The caller holds the lock.
    pub(super) fn set_has_free(&self, has_free: bool) {
        set(&self.has_free, has_free);
    }

    /// Takes the group's own lock for the duration of a fork; a shared one is not this group's to
    /// take.
    pub(super) fn lock_for_fork(&self) {
        self.own.lock_for_fork();
    }

    /// Undoes [`Group::lock_for_fork`]; `child` is true in the child, where `mend` gets the lists
    /// first.
    pub(super) fn unlock_after_fork(&self, child: bool, mend: impl FnOnce(&mut Lists)) {
        if child {
            // SAFETY: the forking thread took the lock, and its child has no other thread.
            mend(unsafe { &mut *self.lists.get() });
        }
        self.own.unlock_after_fork(child);
    }
}

fn set(flag: &AtomicBool, value: bool) {
    if flag.load(Relaxed) != value {
        flag.store(value, Relaxed);
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

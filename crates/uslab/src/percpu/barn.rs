//! The barn: the full and empty sheaves of one cache on one node that no CPU holds. A thread takes
//! its lock once for a whole sheaf.

use super::ownership;
use super::sheaf::is_sheaf;
use crate::os::Lock;
use crate::os::facts::{Fact, facts};
use crate::os::invariant::invariant;
use crate::rseq::Sheaf;
use crate::sync::{CachePadded, Rank};
use core::mem::offset_of;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

mod valid;

/// Upper bound on the sheaves of each kind in a barn, as in the kernel.
const ROOM: usize = 10;
/// Upper bound on the bytes of objects in a barn's full sheaves; two full sheaves always fit.
const FULL_BYTES: usize = 256 << 10;

struct Stacks {
    full: [*mut Sheaf; ROOM],
    fulls: usize,
    empty: [*mut Sheaf; ROOM],
    empties: usize,
    /// The least number of full sheaves since the period began: so many were not used in it.
    least_fulls: usize,
    /// The same of empty sheaves.
    least_empties: usize,
}

// SAFETY: the barn owns the sheaves whose pointers it holds.
unsafe impl Send for Stacks {}

/// A barn. A sheaf counts as full if it has at least one object.
#[repr(align(64))]
pub struct Barn {
    stacks: Lock<Stacks>,
    /// Number of full sheaves, for readers without the lock. Its cache line changes only with that
    /// number.
    fulls: CachePadded<AtomicUsize>,
}

/// A barn's sheaves, for a debugger. The lock's value is the stacks.
pub(super) const FACTS: &[&[Fact]] = &[
    facts!(Stacks { full, fulls }),
    &[
        Fact::new("Barn.bytes", size_of::<Barn>()),
        Fact::new("Barn.stacks", offset_of!(Barn, stacks) + Lock::<Stacks>::VALUE_OFFSET),
    ],
];

impl Default for Barn {
    fn default() -> Self {
        Self::new()
    }
}

impl Barn {
    /// An empty barn.
    pub const fn new() -> Barn {
        let nothing = [core::ptr::null_mut(); ROOM];
        let stacks =
            Stacks { full: nothing, fulls: 0, empty: nothing, empties: 0, least_fulls: 0, least_empties: 0 };
        Barn { stacks: Lock::new(Rank::Barn, stacks), fulls: CachePadded(AtomicUsize::new(0)) }
    }

    /// The approximate number of full sheaves. Takes no lock.
    pub fn fulls(&self) -> usize {
        self.fulls.load(Relaxed)
    }

    /// Whether another full sheaf of `bytes` fits, approximately. Takes no lock.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.fulls() < room(bytes)
    }

    /// Runs `change` under the lock, and publishes the number of full sheaves.
    fn change<R>(&self, change: impl FnOnce(&mut Stacks) -> R) -> R {
        let mut stacks = self.stacks.lock();
        let before = stacks.fulls;
        let result = change(&mut stacks);
        if stacks.fulls != before {
            self.fulls.store(stacks.fulls, Relaxed);
        }
        self.assert_valid(&stacks);
        result
    }

    /// [`Barn::change`] for a sheaf that leaves: a corrupted one is lost, with its objects.
    fn take(&self, change: impl FnOnce(&mut Stacks) -> *mut Sheaf) -> *mut Sheaf {
        let sheaf = self.change(change);
        if sheaf.is_null() || is_sheaf(sheaf) { sheaf } else { core::ptr::null_mut() }
    }

    /// Takes a full sheaf, if there is one. In exchange it puts `empty` (null for none) into the
    /// barn if there is room; the flag returned is true if it did.
    pub fn take_full(&self, empty: *mut Sheaf) -> Option<(*mut Sheaf, bool)> {
        let mut has_put_empty = false;
        let full = self.take(|stacks| {
            if stacks.fulls == 0 {
                return core::ptr::null_mut();
            }
            let full = stacks.pop_full();
            has_put_empty = stacks.push_empty(empty);
            full
        });
        (!full.is_null()).then_some((full, has_put_empty))
    }

    /// Puts `full`, which holds up to `bytes` of objects, into the barn if there is room; returns
    /// whether it did.
    pub fn put_full(&self, full: *mut Sheaf, bytes: usize) -> bool {
        self.change(|stacks| stacks.push_full(full, bytes))
    }

    /// Puts `full` into the barn, and takes an empty sheaf in exchange (null if there is none).
    /// Returns `None` if there is no room.
    pub fn exchange_full(&self, full: *mut Sheaf, bytes: usize) -> Option<*mut Sheaf> {
        let mut is_put = false;
        let empty = self.take(|stacks| {
            is_put = stacks.push_full(full, bytes);
            if is_put { stacks.pop_empty() } else { core::ptr::null_mut() }
        });
        is_put.then_some(empty)
    }

    /// Takes an empty sheaf; null if there is none.
    pub fn take_empty(&self) -> *mut Sheaf {
        self.take(|stacks| stacks.pop_empty())
    }

    /// Puts an empty sheaf into the barn if there is room; returns whether it did.
    pub fn put_empty(&self, empty: *mut Sheaf) -> bool {
        self.change(|stacks| stacks.push_empty(empty))
    }

    /// Takes any sheaf, for a drain.
    pub fn take_any(&self) -> Option<*mut Sheaf> {
        self.change(|stacks| {
            if stacks.fulls > 0 {
                return Some(stacks.pop_full());
            }
            let empty = stacks.pop_empty();
            (!empty.is_null()).then_some(empty)
        })
    }

    /// Takes the oldest of the sheaves that stayed in the barn since [`Barn::begin_period`].
    pub fn take_unused(&self) -> Option<*mut Sheaf> {
        self.change(|stacks| {
            let (sheaves, count, least) = if stacks.least_fulls > 0 {
                (&mut stacks.full, &mut stacks.fulls, &mut stacks.least_fulls)
            } else if stacks.least_empties > 0 {
                (&mut stacks.empty, &mut stacks.empties, &mut stacks.least_empties)
            } else {
                return None;
            };
            let oldest = sheaves[0];
            sheaves.copy_within(1..*count, 0);
            *count -= 1;
            *least -= 1;
            ownership::claim(oldest);
            Some(oldest)
        })
    }

    /// Starts a period in which the barn counts the sheaves that stay. Returns whether the barn has
    /// a sheaf.
    pub fn begin_period(&self) -> bool {
        let mut stacks = self.stacks.lock();
        (stacks.least_fulls, stacks.least_empties) = (stacks.fulls, stacks.empties);
        stacks.fulls + stacks.empties > 0
    }

    /// Calls `visit` for each sheaf in the barn, under its lock.
    pub fn for_each_sheaf(&self, mut visit: impl FnMut(*mut Sheaf)) {
        let stacks = self.stacks.lock();
        stacks.full[..stacks.fulls]
            .iter()
            .chain(&stacks.empty[..stacks.empties])
            .for_each(|&sheaf| visit(sheaf));
    }

    /// Takes the barn's lock for the duration of a fork.
    pub fn lock_for_fork(&self) {
        self.stacks.acquire_for_fork();
    }

    /// Undoes [`Barn::lock_for_fork`].
    pub fn unlock_after_fork(&self, child: bool) {
        if child { self.stacks.reset_in_child() } else { self.stacks.release_after_fork() }
    }
}

/// Full sheaves of `bytes` that a barn has room for.
fn room(bytes: usize) -> usize {
    (FULL_BYTES / bytes.max(1)).clamp(2, ROOM)
}

impl Stacks {
    fn push_full(&mut self, full: *mut Sheaf, bytes: usize) -> bool {
        let room = self.fulls < room(bytes);
        if room {
            invariant!(!full.is_null(), "a full sheaf is not null");
            ownership::release(full);
            self.full[self.fulls] = full;
            self.fulls += 1;
        }
        room
    }

    /// Takes the full sheaf that was put last. There must be one.
    fn pop_full(&mut self) -> *mut Sheaf {
        invariant!(self.fulls > 0, "a barn that gives a full sheaf has one");
        self.fulls -= 1;
        self.least_fulls = self.least_fulls.min(self.fulls);
        ownership::claim(self.full[self.fulls]);
        self.full[self.fulls]
    }

    fn pop_empty(&mut self) -> *mut Sheaf {
        if self.empties == 0 {
            return core::ptr::null_mut();
        }
        self.empties -= 1;
        self.least_empties = self.least_empties.min(self.empties);
        ownership::claim(self.empty[self.empties]);
        self.empty[self.empties]
    }

    fn push_empty(&mut self, empty: *mut Sheaf) -> bool {
        let room = !empty.is_null() && self.empties < ROOM;
        if room {
            ownership::release(empty);
            self.empty[self.empties] = empty;
            self.empties += 1;
        }
        room
    }
}

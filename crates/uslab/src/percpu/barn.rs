//! The barn: the full and empty sheaves of one cache that no CPU of a group holds. A thread takes
//! its lock once for a whole sheaf.
//!
//! A group is the CPUs of a node that share a last-level cache ([`crate::os::sharing`]). A node
//! with one last-level cache has one barn. If a node has several, the room of its barns follows the
//! number of CPUs in the largest group. Sheaves that stayed in a barn for a whole period go back to
//! the slabs ([`Barn::take_unused`]).

use super::ownership;
use super::sheaf::is_sheaf;
use crate::os::Lock;
use crate::os::facts::{Fact, facts};
use crate::os::invariant::invariant;
use crate::rseq::Sheaf;
use crate::sync::{CachePadded, Rank};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

mod valid;

/// Upper bound on the sheaves of each kind in a barn, as in the kernel.
const ROOM: usize = 10;
/// Upper bound on the bytes of objects in the full sheaves of a node's only barn; two full sheaves
/// always fit.
const FULL_BYTES: usize = 256 << 10;
/// The same bound for each CPU of the largest group, where a node has several barns. Their sum is
/// clamped to the two that follow.
const CPU_FULL_BYTES: usize = 32 << 10;
const MIN_FULL_BYTES: usize = 128 << 10;
const MAX_FULL_BYTES: usize = 1 << 20;

/// The counts stand first, on the line of the lock, which the caller has fetched. Each further line
/// would prolong the hold by a cache miss.
#[repr(C)]
struct Stacks {
    fulls: u32,
    empties: u32,
    /// The least number of full sheaves since the period began: so many were not used in it.
    least_fulls: u32,
    /// The same of empty sheaves.
    least_empties: u32,
    full: [*mut Sheaf; ROOM],
    empty: [*mut Sheaf; ROOM],
}

// SAFETY: the barn owns the sheaves whose pointers it holds.
unsafe impl Send for Stacks {}

/// A barn. A sheaf counts as full if it has at least one object.
#[repr(align(64))]
pub struct Barn {
    stacks: Lock<Stacks>,
    /// For readers without the lock. The cache line changes only with the number of full sheaves,
    /// and while a barn rests.
    hint: CachePadded<Hint>,
}

struct Hint {
    /// Number of full sheaves.
    fulls: AtomicUsize,
    /// Upper bound on the bytes of objects in full sheaves; never changes.
    full_bytes: usize,
    /// See [`Rest`].
    rest: Rest,
}

/// What [`Barn::take_unused`] found.
pub enum Unused {
    /// A sheaf, which is the caller's now.
    Sheaf(*mut Sheaf),
    /// Every sheaf was used: the next period has begun.
    None {
        /// Whether the barn has a sheaf.
        has_sheaf: bool,
    },
}

/// How long a barn that its own CPUs emptied keeps its sheaves to itself; see `surplus`.
pub(super) struct Rest {
    /// Visits to a rich barn before it may serve other groups again.
    pub visits: AtomicU32,
    /// The visits of the next rest.
    pub next: AtomicU32,
}

/// A barn's sheaves, for a debugger. The lock's value is the stacks.
pub(super) const FACTS: &[&[Fact]] = &[
    facts!(Stacks { full, fulls }),
    &[
        Fact::new("Barn.bytes", size_of::<Barn>()),
        Fact::new("Barn.stacks", offset_of!(Barn, stacks) + Lock::<Stacks>::VALUE_OFFSET),
    ],
];

impl Barn {
    /// The bound of a barn whose group has up to `cpus` CPUs; 0 for a node's only barn.
    pub const fn full_bytes_for(cpus: usize) -> usize {
        match cpus * CPU_FULL_BYTES {
            0 => FULL_BYTES,
            1..MIN_FULL_BYTES => MIN_FULL_BYTES,
            bytes @ ..MAX_FULL_BYTES => bytes,
            _ => MAX_FULL_BYTES,
        }
    }

    /// An empty barn, for up to `full_bytes` of objects.
    pub const fn new(full_bytes: usize) -> Barn {
        let nothing = [core::ptr::null_mut(); ROOM];
        let stacks =
            Stacks { fulls: 0, empties: 0, least_fulls: 0, least_empties: 0, full: nothing, empty: nothing };
        Barn {
            stacks: Lock::new(Rank::Barn, stacks),
            hint: CachePadded(Hint {
                fulls: AtomicUsize::new(0),
                full_bytes,
                rest: Rest { visits: AtomicU32::new(0), next: AtomicU32::new(0) },
            }),
        }
    }

    /// The approximate number of full sheaves. Takes no lock.
    pub fn fulls(&self) -> usize {
        self.hint.fulls.load(Relaxed)
    }

    /// Whether another full sheaf of `bytes` fits, approximately. Takes no lock.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.fulls() < self.room(bytes)
    }

    /// Full sheaves of `bytes` that the barn has room for.
    pub(super) fn room(&self, bytes: usize) -> usize {
        (self.hint.full_bytes / bytes.max(1)).clamp(2, ROOM)
    }

    /// How long the barn keeps its sheaves to itself.
    pub(super) fn rest(&self) -> &Rest {
        &self.hint.rest
    }

    /// Runs `change` under the lock, and publishes the number of full sheaves.
    fn change<R>(&self, change: impl FnOnce(&mut Stacks) -> R) -> R {
        let mut stacks = self.stacks.lock();
        let before = stacks.fulls;
        let result = change(&mut stacks);
        if stacks.fulls != before && self.fulls() != stacks.fulls as usize {
            self.hint.fulls.store(stacks.fulls as usize, Relaxed);
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
    /// barn if there is room, and leaves null in its place.
    pub fn take_full(&self, empty: &mut *mut Sheaf) -> Option<*mut Sheaf> {
        let full = self.take(|stacks| {
            if stacks.fulls == 0 {
                return core::ptr::null_mut();
            }
            if stacks.push_empty(*empty) {
                *empty = core::ptr::null_mut();
            }
            stacks.pop_full(&self.hint.fulls)
        });
        (!full.is_null()).then_some(full)
    }

    /// Puts `full`, which holds up to `bytes` of objects, into the barn if there is room; returns
    /// whether it did.
    pub fn put_full(&self, full: *mut Sheaf, bytes: usize) -> bool {
        let room = self.room(bytes);
        self.change(|stacks| stacks.push_full(full, room, &self.hint.fulls))
    }

    /// Puts `full` into the barn, and takes an empty sheaf in exchange (null if there is none).
    /// Returns `None` if there is no room.
    pub fn exchange_full(&self, full: *mut Sheaf, bytes: usize) -> Option<*mut Sheaf> {
        let (room, mut is_put) = (self.room(bytes), false);
        let empty = self.take(|stacks| {
            is_put = stacks.push_full(full, room, &self.hint.fulls);
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
            loop {
                let sheaf =
                    if stacks.fulls > 0 { stacks.pop_full(&self.hint.fulls) } else { stacks.pop_empty() };
                // A corrupted one is lost.
                if sheaf.is_null() || is_sheaf(sheaf) {
                    return (!sheaf.is_null()).then_some(sheaf);
                }
            }
        })
    }

    /// Takes the oldest of the sheaves that stayed in the barn for a whole period. If there is
    /// none, starts the next period, and returns whether the barn has a sheaf.
    pub fn take_unused(&self) -> Unused {
        self.change(|stacks| {
            loop {
                let (sheaves, count, least) = if stacks.least_fulls > 0 {
                    (&mut stacks.full, &mut stacks.fulls, &mut stacks.least_fulls)
                } else if stacks.least_empties > 0 {
                    (&mut stacks.empty, &mut stacks.empties, &mut stacks.least_empties)
                } else {
                    (stacks.least_fulls, stacks.least_empties) = (stacks.fulls, stacks.empties);
                    return Unused::None { has_sheaf: stacks.fulls + stacks.empties > 0 };
                };
                let oldest = sheaves[0];
                sheaves.copy_within(1..*count as usize, 0);
                *count -= 1;
                *least -= 1;
                ownership::claim(oldest);
                // A corrupted one is lost.
                if is_sheaf(oldest) {
                    return Unused::Sheaf(oldest);
                }
            }
        })
    }

    /// Calls `visit` for each sheaf in the barn, under its lock.
    pub fn for_each_sheaf(&self, mut visit: impl FnMut(*mut Sheaf)) {
        let stacks = self.stacks.lock();
        stacks.fulls().iter().chain(stacks.empties()).for_each(|&sheaf| visit(sheaf));
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

impl Stacks {
    fn fulls(&self) -> &[*mut Sheaf] {
        &self.full[..self.fulls as usize]
    }

    fn empties(&self) -> &[*mut Sheaf] {
        &self.empty[..self.empties as usize]
    }

    /// Adds a full sheaf, if there are fewer than `most`. Shows the number in `shown` at once: the
    /// processor takes that line while the call goes on, and the unlock need not wait for it.
    fn push_full(&mut self, full: *mut Sheaf, most: usize, shown: &AtomicUsize) -> bool {
        let room = (self.fulls as usize) < most;
        if room {
            invariant!(!full.is_null(), "a full sheaf is not null");
            ownership::release(full);
            shown.store(self.fulls as usize + 1, Relaxed);
            self.full[self.fulls as usize] = full;
            self.fulls += 1;
        }
        room
    }

    /// Takes the full sheaf that was put last. There must be one. Shows the number as
    /// [`Stacks::push_full`] does.
    fn pop_full(&mut self, shown: &AtomicUsize) -> *mut Sheaf {
        invariant!(self.fulls > 0, "a barn that gives a full sheaf has one");
        self.fulls -= 1;
        shown.store(self.fulls as usize, Relaxed);
        self.least_fulls = self.least_fulls.min(self.fulls);
        let full = self.full[self.fulls as usize];
        ownership::claim(full);
        full
    }

    fn pop_empty(&mut self) -> *mut Sheaf {
        if self.empties == 0 {
            return core::ptr::null_mut();
        }
        self.empties -= 1;
        self.least_empties = self.least_empties.min(self.empties);
        let empty = self.empty[self.empties as usize];
        ownership::claim(empty);
        empty
    }

    fn push_empty(&mut self, empty: *mut Sheaf) -> bool {
        let room = !empty.is_null() && (self.empties as usize) < ROOM;
        if room {
            ownership::release(empty);
            self.empty[self.empties as usize] = empty;
            self.empties += 1;
        }
        room
    }
}

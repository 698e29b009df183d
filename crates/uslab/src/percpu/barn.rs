//! The barn: full and empty sheaves of one cache on one node, behind a lock that is taken once for a whole sheaf.

use crate::os::Lock;
use crate::rseq::Sheaf;
use crate::sync::Rank;

/// Sheaves of each kind that a barn holds (as the kernel's).
const ROOM: usize = 10;
/// Bytes of objects that the full sheaves of a barn may hold, but for the first two.
const FULL_BYTES: usize = 256 << 10;

struct Stacks {
    full: [*mut Sheaf; ROOM],
    fulls: usize,
    empty: [*mut Sheaf; ROOM],
    empties: usize,
}

// SAFETY: the barn owns the sheaves whose pointers it holds.
unsafe impl Send for Stacks {}

/// Sheaves that no CPU holds. Those called full have at least one object.
#[repr(align(64))]
pub struct Barn(Lock<Stacks>);

impl Default for Barn {
    fn default() -> Self {
        Self::new()
    }
}

impl Barn {
    /// An empty barn.
    pub const fn new() -> Barn {
        let nothing = [core::ptr::null_mut(); ROOM];
        Barn(Lock::new(Rank::Barn, Stacks { full: nothing, fulls: 0, empty: nothing, empties: 0 }))
    }

    /// Takes a sheaf with objects; if there is one, leaves `empty` (null for none) in exchange if there is room, and says whether
    /// it did.
    pub fn take_full(&self, empty: *mut Sheaf) -> Option<(*mut Sheaf, bool)> {
        let mut stacks = self.0.lock();
        if stacks.fulls == 0 {
            return None;
        }
        stacks.fulls -= 1;
        let full = stacks.full[stacks.fulls];
        Some((full, stacks.push_empty(empty)))
    }

    /// Leaves `full`, which holds up to `bytes` of objects, if there is room.
    pub fn leave_full(&self, full: *mut Sheaf, bytes: usize) -> bool {
        self.0.lock().push_full(full, bytes)
    }

    /// Leaves `full` and takes an empty sheaf in exchange (null if there is none): `None` if there was no room.
    pub fn exchange_full(&self, full: *mut Sheaf, bytes: usize) -> Option<*mut Sheaf> {
        let mut stacks = self.0.lock();
        stacks.push_full(full, bytes).then(|| stacks.pop_empty())
    }

    /// Takes an empty sheaf; null if there is none.
    pub fn take_empty(&self) -> *mut Sheaf {
        self.0.lock().pop_empty()
    }

    /// Leaves an empty sheaf if there is room.
    pub fn leave_empty(&self, empty: *mut Sheaf) -> bool {
        self.0.lock().push_empty(empty)
    }

    /// Takes any sheaf, for a drain.
    pub fn take_any(&self) -> Option<*mut Sheaf> {
        let mut stacks = self.0.lock();
        if stacks.fulls > 0 {
            stacks.fulls -= 1;
            return Some(stacks.full[stacks.fulls]);
        }
        let empty = stacks.pop_empty();
        (!empty.is_null()).then_some(empty)
    }

    /// Adds up `of` over the full sheaves.
    pub fn sum_full(&self, of: impl Fn(*mut Sheaf) -> usize) -> usize {
        let stacks = self.0.lock();
        stacks.full[..stacks.fulls].iter().map(|&sheaf| of(sheaf)).sum()
    }

    /// For a fork.
    pub fn lock_for_fork(&self) {
        self.0.acquire_for_fork();
    }

    /// Undoes [`Barn::lock_for_fork`].
    pub fn unlock_after_fork(&self, child: bool) {
        if child { self.0.reset_in_child() } else { self.0.release_after_fork() }
    }
}

impl Stacks {
    fn push_full(&mut self, full: *mut Sheaf, bytes: usize) -> bool {
        let room = self.fulls < (FULL_BYTES / bytes.max(1)).clamp(2, ROOM);
        if room {
            self.full[self.fulls] = full;
            self.fulls += 1;
        }
        room
    }

    fn pop_empty(&mut self) -> *mut Sheaf {
        if self.empties == 0 {
            return core::ptr::null_mut();
        }
        self.empties -= 1;
        self.empty[self.empties]
    }

    fn push_empty(&mut self, empty: *mut Sheaf) -> bool {
        let room = !empty.is_null() && self.empties < ROOM;
        if room {
            self.empty[self.empties] = empty;
            self.empties += 1;
        }
        room
    }
}

//! Sheaves of a richer group: a CPU whose barn has no full sheaf takes one from a barn with a
//! surplus before it goes to the slabs.
//!
//! ```text
//!   full sheaves of a barn   0 ── ¼ ──────────────── ¾ ── 1 of its room
//!                            ◀─ bit off      bit on ─▶
//! ```
//!
//! The bits are hints ([`Surplus`]): a drain leaves them, and the next thread that finds such a
//! barn poor turns its bit off.
//!
//! Where CPUs free and allocate hundreds of objects by turns, their barn becomes rich and poor
//! thousands of times a second, and all CPUs of the node would write the word of bits. So a barn
//! that its own CPUs emptied keeps its bit off for a number of visits, which doubles each time, up
//! to [`MAX_REST`]. A barn that other groups emptied does not wait.

use super::CpuCache;
use super::access::Home;
use super::barn::Barn;
use crate::rseq::Sheaf;
use core::sync::atomic::Ordering::Relaxed;

/// Most visits to a rich barn before it serves other groups again.
const MAX_REST: u32 = 256;

impl CpuCache {
    /// The barn of a group, marked as used. May sleep until a fork has copied the memory.
    pub(super) fn barn(&self, group: usize) -> &Barn {
        let barns = self.barns();
        let group = if group < barns.len() { group } else { 0 };
        self.used.add_group(group);
        &barns[group]
    }

    /// Takes a full sheaf of the barn of the CPU's group, or of a richer one of its node. In
    /// exchange it puts `empty` (null for none) there, as `Barn::take_full` does.
    pub(super) fn take_full(&self, empty: &mut *mut Sheaf, home: Home) -> Option<*mut Sheaf> {
        let own = self.barn(home.group).take_full(empty);
        if own.is_some() {
            self.note_stock(home.node, home.group, false);
            return own;
        }
        let group = self.rich_neighbour(home)?;
        let taken = self.barn(group).take_full(empty);
        self.note_stock(home.node, group, true);
        taken
    }

    /// Puts a full sheaf into the barn of the CPU's group, as `Barn::put_full` does.
    pub(super) fn put_full(&self, full: *mut Sheaf, home: Home) -> bool {
        let is_put = self.barn(home.group).put_full(full, self.sheaf_bytes());
        self.note_stock(home.node, home.group, false);
        is_put
    }

    /// Exchanges a full sheaf for an empty one of the barn of the CPU's group, as
    /// `Barn::exchange_full` does.
    pub(super) fn exchange_full(&self, full: *mut Sheaf, home: Home) -> Option<*mut Sheaf> {
        let empty = self.barn(home.group).exchange_full(full, self.sheaf_bytes());
        self.note_stock(home.node, home.group, false);
        empty
    }

    /// Another group of the node whose barn has a surplus.
    pub(super) fn rich_neighbour(&self, home: Home) -> Option<usize> {
        self.surplus().get(home.node)?.neighbour(home.node, home.group)
    }

    /// Turns the bit of a group on or off, if its barn has become rich or poor. Called after each
    /// attempt to take or put a full sheaf. `by_neighbour`: a CPU of another group took a sheaf.
    fn note_stock(&self, node: usize, group: usize, by_neighbour: bool) {
        let Some(surplus) = self.surplus().get(node) else { return };
        let barn = self.barn(group);
        let (fulls, room) = (barn.fulls(), barn.room(self.sheaf_bytes()));
        let (is_on, rest) = (surplus.has(node, group), barn.rest());
        // Two threads may lose a visit here, which does no harm.
        if is_on && 4 * fulls <= room {
            let visits = if by_neighbour { 0 } else { rest.next.load(Relaxed) };
            rest.visits.store(visits, Relaxed);
            rest.next.store((2 * visits).clamp(1, MAX_REST), Relaxed);
            surplus.set(node, group, false);
        } else if !is_on && 4 * fulls >= 3 * room {
            match rest.visits.load(Relaxed) {
                0 => surplus.set(node, group, true),
                visits => rest.visits.store(visits - 1, Relaxed),
            }
        }
    }
}

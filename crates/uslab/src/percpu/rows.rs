//! Rows: on a machine of several nodes a cache has a row of slots for each node, in which a CPU
//! keeps the objects of that node.
//!
//! ```text
//!   free ─── page map ─▶ row of the object's node: this CPU's sheaf for it ─▶ that node's barn
//!   malloc ─ table ────▶ lending row: a few objects of this CPU's node ◀─ row of its node
//! ```
//!
//! The page map names the row of the node of a slab. So a free pushes, by the same instructions, to
//! the sheaf that this CPU fills for that node. A full sheaf of another node's objects goes to a
//! barn of that node, whole. Until then no CPU allocates from that sheaf.
//!
//! An allocation has no page to ask: tables of sizes and handles of caches name one row for all
//! nodes. This is the **lending row**. The slow path moves some objects of the CPU's own node there
//! ([`super::lending`]). Its sheaves have no room, like those of counted rows (`counted`), with
//! which they share code. So a free that names this row finds the sheaf full. Its slow path then
//! asks the page map, and pushes to the row of the object's node.
//!
//! ```text
//!   one node         owner = slots with sheaves = slots to allocate from     no lending row
//!   several nodes    row of node 0 (owner) │ row of node 1 │ … │ lending row
//!   hidden           owner: dummies │ row of node 0 │ row of node 1 │ …
//!   locked           row of node 0 │ row of node 1 │ …       owner: see `owners`
//!   with a policy    as with one node
//! ```
//!
//! Before each row there is a slot with a dummy, for threads that are not registered ([`LEAD`]).
//!
//! Where sheaves are hidden, and in locked mode, the fast path serves no call. There the short step
//! or the slow path chooses the row.

use super::access::Home;
use super::hidden;
use super::{CpuCache, Parts};
use crate::pages::boot;
use crate::rseq::{self, Cpu, LEAD, Mode, Pushed, Slot, dummy, dummy_of, dummy_slots, mode};
use crate::slab::Slabs;
use core::sync::atomic::Ordering::Relaxed;

/// Allocates boot memory for `slots` slots, and writes the slots before them. Null if there is no
/// memory.
pub(super) fn alloc_row(slots: usize) -> *mut Slot {
    let bytes = (LEAD + slots) * size_of::<Slot>();
    let before = boot::alloc(bytes, align_of::<Slot>()).cast::<Slot>();
    if before.is_null() {
        return before;
    }
    // SAFETY: fresh memory for so many slots, and for those before them.
    unsafe { write_lead(before) }
}

/// Writes the slots before a row, for threads that have no CPU yet. Returns the row's first slot.
///
/// # Safety
/// The memory must have room for them, and belong to the caller.
pub(super) unsafe fn write_lead(before: *mut Slot) -> *mut Slot {
    // SAFETY: the caller's promise.
    unsafe {
        (0..LEAD).for_each(|at| before.add(at).write(Slot::holding(dummy())));
        before.add(LEAD)
    }
}

/// Slots from one row of a cache to the next on a machine of `cpus` CPUs: one for each CPU, then
/// the slots before the next row.
pub(super) fn row_distance(cpus: usize) -> usize {
    cpus + LEAD
}

/// Whether the page map names a row for each node, for a cache that hides its sheaves (`hides`) or
/// does not.
fn are_named(nodes: usize, hides: bool) -> bool {
    nodes > 1 && mode() == Mode::Rseq && !hides
}

/// The rows of a new cache.
pub(super) struct Rows {
    /// The rows with sheaves, one for each node.
    pub slots: *const Slot,
    /// The slots to allocate from.
    pub fast: *mut Slot,
    /// The slots for bulk frees: dummies where there is a lending row, because `push_bulk` would
    /// not find a lending sheaf full.
    pub fast_bulk: *mut Slot,
    /// The lending row; null if there is none.
    pub lending: *mut Slot,
}

impl Rows {
    /// Writes the slots of a cache.
    ///
    /// # Safety
    /// The slabs' owner must come from [`CpuCache::owner`], with the memory of `parts.slots`, for
    /// as many CPUs and nodes.
    pub unsafe fn write(slabs: &Slabs, parts: &Parts) -> Rows {
        let (distance, nodes) = (row_distance(parts.cpus), parts.nodes);
        let (owner, id) = (slabs.owner().slots(), u32::from(slabs.id()));
        // SAFETY: the caller's promise: the memory is that of the slots, and the cache's alone.
        let first = unsafe { hidden::slots_behind(parts.slots, distance, parts.hides) };
        for at in 0..distance * nodes - LEAD {
            // SAFETY: the caller's promise. The owner itself has been written, with its id.
            unsafe {
                let slot = first.add(at);
                if slot != owner {
                    slot.write(Slot::holding(dummy_of(at % distance)));
                }
                (*slot).set_start_test(slabs.geometry().start_test());
                if at % distance == 0 {
                    (*slot).id.store(id, Relaxed);
                }
            }
        }
        if !slabs.has_owner_of_each_node() {
            // A pop writes a dummy, which must be that of the thread's number.
            let fast = if mode() == Mode::Locked { dummy_slots() } else { owner };
            return Rows { slots: first, fast, fast_bulk: fast, lending: core::ptr::null_mut() };
        }
        // SAFETY: the memory has room for the lending row and the slots before it.
        let lending = unsafe { write_lead(first.add(distance * nodes - LEAD)) };
        for cpu in 0..parts.cpus {
            // SAFETY: as above.
            unsafe { lending.add(cpu).write(Slot::holding(dummy_of(cpu))) };
        }
        // SAFETY: just written.
        unsafe { (*lending).id.store(id, Relaxed) };
        Rows { slots: first, fast: lending, fast_bulk: dummy_slots(), lending }
    }
}

impl CpuCache {
    /// Bytes of slots for `cpus` CPUs and `nodes` nodes. Enough for a cache that hides its sheaves,
    /// where caches may.
    pub fn slot_bytes(cpus: usize, nodes: usize) -> usize {
        let rows = nodes + usize::from(hidden::is_allowed()) + usize::from(are_named(nodes, false));
        rows * row_distance(cpus) * size_of::<Slot>()
    }

    /// Bytes from the slots that the page map names for one node to those for the next, of a
    /// cache that `hides` its sheaves or not; 0 where it names the same for all nodes.
    pub fn owner_distance(cpus: usize, nodes: usize, hides: bool) -> usize {
        if are_named(nodes, hides) { row_distance(cpus) * size_of::<Slot>() } else { 0 }
    }

    /// The slots for the objects of `node` that slow paths work on.
    pub(super) fn row(&self, node: usize) -> &[Slot] {
        let node = if node < self.nodes { node } else { 0 };
        &self.slots_in_use()[node * self.row_distance..][..self.cpus]
    }

    /// The node of the CPU that the thread runs on, if it is one of the cache's.
    pub(super) fn this_node(&self) -> usize {
        let node = Cpu::current().node();
        if node < self.nodes { node } else { 0 }
    }

    /// Whether allocations pop from a lending row.
    pub(super) fn lends(&self) -> bool {
        self.slabs().has_owner_of_each_node()
    }

    /// Whether other CPUs may take the objects of a slot with this home by whole sheaves.
    pub(super) fn may_share(&self, home: Home) -> bool {
        home.is_pure || self.nodes == 1
    }

    /// Frees an object into this CPU's sheaf for its node, where the caller did not ask the page
    /// map, or where a hidden row has the sheaf. `None`: the slow path is to do it.
    ///
    /// # Safety
    /// `object` must be an object of this cache that is not used any more.
    pub unsafe fn push_home(&self, object: *mut u8) -> Option<Pushed> {
        if !self.lends() && !self.has_row_in_use() {
            return None;
        }
        let node = if self.nodes == 1 { 0 } else { self.slabs().home_of(object)? };
        let row = self.row(node);
        // SAFETY: the row is this cache's, for every possible CPU, and the mode is rseq.
        Some(unsafe { rseq::push_tested(row.as_ptr(), object) }).filter(|&pushed| pushed != Pushed::Slow)
    }
}

//! Counted allocations of a cache, for the heap profile; see `percpu::counted`.

use super::body::Core;
use super::debugged::Request;
use super::registry;
use crate::percpu::{Drain, Keep, most_counted, needs_counted_row};
use crate::rseq::Slot;

/// Moves the objects of all counted sheaves to their slabs: no profile runs any more. A sheaf that
/// a thread installs meanwhile goes when it was idle for a tick of the background thread. The
/// caller holds no lock.
pub(crate) fn drain_counted() {
    let _registry = registry::lock();
    let mut drain = Drain::of_idle(Keep::Target);
    registry::for_each(|core| core.cpu.drain_counted(&mut drain));
}

impl Core {
    /// The counted row of the cache, which is made at the first call. `None` if the cache serves
    /// every call on the slow path, where calls can be counted one by one, and without memory. The
    /// caller holds no lock.
    pub(crate) fn counted_row(&self) -> Option<*mut Slot> {
        if self.is_debugged() {
            return None;
        }
        let _registry = registry::lock();
        self.cpu.make_counted_row()
    }

    /// Whether the tables of sizes must name the counted row: otherwise sized frees would push into
    /// the cache's own sheaves.
    pub(crate) fn needs_counted_row(&self) -> bool {
        !self.is_debugged() && needs_counted_row()
    }

    /// Whether the counted row was made.
    pub(crate) fn has_counted_row(&self) -> bool {
        !self.cpu.counted_row().is_null()
    }

    /// The first slot of the counted row, which must have been made.
    pub(crate) fn counted_slots(&self) -> *mut Slot {
        self.cpu.counted_row()
    }

    /// Notes whether the profile counts what allocations pop from the counted row.
    pub(crate) fn set_counted(&self, is_counted: bool) {
        self.cpu.set_counted(is_counted);
    }

    /// Forgets the distances to the next samples.
    pub(crate) fn forget_distances(&self) {
        self.cpu.forget_distances();
    }

    /// Charges allocations to this CPU's distance; returns how many, and 0 where the calling one is
    /// the sample. See `percpu::counted`.
    pub(crate) fn charge(&self, draw: impl FnMut() -> u32) -> usize {
        self.cpu.charge(self.most_counted(), draw)
    }

    /// Serves one of `n` charged allocations, and leaves the objects for the others in this CPU's
    /// counted sheaf. `serve` is called where these cannot; null if it fails, too.
    pub(crate) fn take_counted(
        &self,
        n: usize,
        request: Request,
        serve: fn(&Core, Request) -> *mut u8,
    ) -> *mut u8 {
        let object = if self.late.is_on() { core::ptr::null_mut() } else { self.cpu.take_counted(n) };
        if object.is_null() { serve(self, request) } else { object }
    }

    fn most_counted(&self) -> usize {
        if self.late.is_on() { 1 } else { most_counted(self.cpu.slabs().geometry().object_bytes) }
    }
}

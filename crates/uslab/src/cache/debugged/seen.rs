//! Debugged objects as a search for leaks sees them: it takes no lock and no object, since the
//! threads that may hold them are stopped.

use super::Debug;
use super::object::{FREE, LIVE, LOOKED_AT, NEVER, Object};
use super::run::Large;
use crate::cache::body::Core;
use crate::pages::{self, PageIndex};
use crate::report::leak::Allocation;
use core::ops::Range;

/// The state of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// The program has none of its bytes.
    Free,
    /// In use, with the bytes that the program asked for.
    Live(Range<usize>),
    /// A thread was allocating or freeing it, or the program overwrote its record: the bytes that
    /// it may have.
    Changing(Range<usize>),
}

impl Object<'_> {
    fn seen(&self) -> Seen {
        match self.state() {
            FREE | NEVER | LOOKED_AT => Seen::Free,
            LIVE => Seen::Live(self.pointer..self.pointer + self.asked()),
            _ => Seen::Changing(self.bytes()),
        }
    }

    fn allocation(&self, cache: &'static str) -> Allocation {
        let (stack, thread, cpu, time_ms) = self.allocated_by();
        let (pointer, bytes, family) = (self.pointer, self.asked(), self.family().name());
        Allocation { pointer, bytes, cache, family, stack, thread, cpu, time_ms }
    }
}

impl Large<'_> {
    /// The state of the run.
    pub fn seen(&self) -> Seen {
        self.object.seen()
    }

    /// Its allocation.
    pub fn allocation(&self, cache: &'static str) -> Allocation {
        self.object.allocation(cache)
    }
}

impl Core {
    /// Objects of a debugged cache that may be in use: an upper bound while no thread allocates.
    pub(crate) fn tracked_objects(&self) -> usize {
        if self.is_debugged() { self.cpu.slabs().taken() } else { 0 }
    }

    /// The first page of the slab that contains `page`, and the slab's number of pages.
    pub(crate) fn slab_around(&self, page: PageIndex) -> (PageIndex, usize) {
        let geometry = self.cpu.slabs().geometry();
        (PageIndex(page.0 & !((1 << geometry.order) - 1)), geometry.pages())
    }

    /// Calls `visit` with each object of the slab of a debugged cache whose first page is `first`.
    pub(crate) fn for_each_seen(&self, first: PageIndex, visit: &mut dyn FnMut(Seen)) {
        let (Some(debug), geometry) = (&self.debug, self.cpu.slabs().geometry()) else { return };
        for index in 0..geometry.objects {
            let start = pages::address_of(first).wrapping_add(index * geometry.object_bytes);
            visit(debug.object(start).seen());
        }
    }

    /// The object around `address`, in the slab of a debugged cache whose first page is `first`.
    pub(crate) fn seen_around(&self, first: PageIndex, address: usize) -> Seen {
        self.object_of(first, address).map_or(Seen::Free, |object| object.seen())
    }

    /// The allocation of the object at `pointer`, in such a slab.
    pub(crate) fn allocation_of(&self, first: PageIndex, pointer: usize) -> Option<Allocation> {
        let object = self.object_of(first, pointer).filter(|object| object.pointer == pointer)?;
        (object.state() == LIVE).then(|| object.allocation(self.cpu.slabs().name()))
    }

    fn object_of(&self, first: PageIndex, address: usize) -> Option<Object<'_>> {
        let (debug, geometry) = (self.debug.as_ref()?, self.cpu.slabs().geometry());
        let start = pages::address_of(first);
        let spill = debug.spill_bytes();
        let index = geometry.index_around(address.checked_sub(start as usize + spill)?)?;
        Some(debug.object(start.wrapping_add(index * geometry.object_bytes)))
    }
}

impl Debug {
    fn object(&self, start: *mut u8) -> Object<'_> {
        Object { debug: self, pointer: self.pointer(start) as usize }
    }
}

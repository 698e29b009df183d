//! The live objects of a cache, one after the other.

use super::body::Core;
use super::registry;
use crate::os;
use crate::os::numa::NumaPolicy;
use crate::pages;
use crate::percpu::adapt;
use core::ops::ControlFlow;
use core::ptr::NonNull;

/// The node that an object's slab belongs to; `None` for what is no object of a cache. No other
/// thread may free the object meanwhile.
pub fn home_of(object: *const u8) -> Option<usize> {
    let owner = pages::owner_of(object)?;
    registry::cache(owner.id())?.cpu.slabs().home_of(object)
}

/// The node of the memory behind an address, as far as the page layer knows; `None` for interleaved
/// memory, and for what lies outside its memory.
pub fn node_of_memory(pointer: *const u8) -> Option<usize> {
    pages::page_of(pointer).map(pages::home_of)?.node()
}

/// The policy of the memory behind an address, as the page layer chose it; `None` for what lies
/// outside its memory.
pub fn policy_of_memory(pointer: *const u8) -> Option<NumaPolicy> {
    Some(pages::home_of(pages::page_of(pointer)?).policy())
}

impl Core {
    /// Flushes all sheaves, so that the slabs know which objects are free.
    fn drain_for_walk(&self) {
        let _errno = os::errno::Preserved::new();
        // The library's own threads, and a thread that grows another cache's sheaves, may hold
        // sheaves of this cache. The lock and the pause wait for them.
        let _registry = registry::lock();
        let _pause = adapt::pause();
        self.cpu.drain_all();
    }

    /// The number of objects in use, and bytes of all slabs. Flushes all sheaves first.
    pub(crate) fn count_live(&self) -> (usize, usize) {
        self.drain_for_walk();
        (self.live_objects(), self.cpu.slabs().all_bytes())
    }

    /// Calls `visit` for each live object, in the order of addresses, until it breaks off.
    ///
    /// Free objects in sheaves count as used in their slabs. So the walk first moves them there.
    pub fn for_each_live(&self, mut visit: impl FnMut(NonNull<u8>) -> ControlFlow<()>) {
        self.drain_for_walk();
        let is_live = |object| self.debug.as_ref().is_none_or(|debug| debug.is_live(object));
        let pointer = |object| self.debug.as_ref().map_or(object, |debug| debug.pointer(object));
        self.cpu.slabs().visit_taken(is_live, |object| {
            NonNull::new(pointer(object)).is_some_and(|object| visit(object).is_continue())
        });
    }
}

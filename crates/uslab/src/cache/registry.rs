//! The registry: which cache has which id.

use super::body::{Core, Memory};
use crate::os::{Guard, Lock};
use crate::percpu::sheaf::RUN_ID;
use crate::rseq::PLAIN_OWNERS;
use crate::sync::Rank;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Ids there are: those of the page map.
const IDS: usize = 1 << 16;
/// Page map id of large objects (see `malloc`).
pub const LARGE_ID: u16 = 1;
/// Ids below belong to the library itself.
pub const FIRST_CACHE_ID: u16 = PLAIN_OWNERS as u16;

const _: () = assert!(RUN_ID < FIRST_CACHE_ID);

static CORES: [AtomicPtr<Core>; IDS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; IDS];

/// What the lock guards.
pub struct Registry {
    next_id: u32,
    /// Ids of destroyed caches, in a ring of the latest.
    spare_ids: [u16; 64],
    spare_id_count: usize,
    spare_memory: [Option<Memory>; 64],
    spare_memory_count: usize,
}

// SAFETY: the memory that it keeps belongs to nobody else.
unsafe impl Send for Registry {}

static REGISTRY: Lock<Registry> = Lock::new(
    Rank::Registry,
    Registry {
        next_id: FIRST_CACHE_ID as u32,
        spare_ids: [0; 64],
        spare_id_count: 0,
        spare_memory: [const { None }; 64],
        spare_memory_count: 0,
    },
);

pub(super) fn lock() -> Guard<'static, Registry> {
    REGISTRY.lock()
}

pub(super) fn lock_for_fork() {
    REGISTRY.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { REGISTRY.reset_in_child() } else { REGISTRY.release_after_fork() }
}

/// The cache of `id`.
#[inline]
pub fn cache(id: u16) -> Option<&'static Core> {
    // SAFETY: cores are at addresses that live for ever, and are written before they are entered.
    unsafe { CORES[usize::from(id)].load(Acquire).as_ref() }
}

/// Calls `visit` for each live cache. Caches made meanwhile may be missed.
pub fn for_each(mut visit: impl FnMut(&'static Core)) {
    let used = crate::stats::header().records_used.load(Relaxed).min(IDS as u32) as u16;
    (FIRST_CACHE_ID..used.max(FIRST_CACHE_ID)).filter_map(cache).for_each(&mut visit);
}

impl Registry {
    pub(super) fn new_id(&mut self) -> Option<u16> {
        if self.spare_id_count > 0 {
            self.spare_id_count -= 1;
            return Some(self.spare_ids[self.spare_id_count]);
        }
        let id = u16::try_from(self.next_id).ok()?;
        self.next_id += 1;
        Some(id)
    }

    pub(super) fn enter(&mut self, id: u16, core: &'static Core) {
        CORES[usize::from(id)].store((&raw const *core).cast_mut(), Release);
    }

    pub(super) fn leave(&mut self, id: u16) {
        CORES[usize::from(id)].store(core::ptr::null_mut(), Release);
        if self.spare_id_count < self.spare_ids.len() {
            self.spare_ids[self.spare_id_count] = id;
            self.spare_id_count += 1;
        }
    }

    pub(super) fn spare_memory(&mut self) -> Option<Memory> {
        if self.spare_memory_count == 0 {
            return None;
        }
        self.spare_memory_count -= 1;
        self.spare_memory[self.spare_memory_count].take()
    }

    pub(super) fn keep_memory(&mut self, memory: Memory) {
        if self.spare_memory_count < self.spare_memory.len() {
            self.spare_memory[self.spare_memory_count] = Some(memory);
            self.spare_memory_count += 1;
        }
    }
}

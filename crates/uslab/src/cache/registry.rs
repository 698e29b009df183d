//! The registry: which cache has which id.

use super::body::{Core, Memory, Spare};
use crate::os::{Guard, Lock};
use crate::percpu::sheaf::RUN_ID;
use crate::rseq::PLAIN_OWNERS;
use crate::sync::Rank;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Release};

/// Ids there are: those of the page map.
const IDS: usize = 1 << 16;
/// Page map id of large objects (see `malloc`).
pub const LARGE_ID: u16 = 1;
/// Ids below belong to the library itself.
pub const FIRST_CACHE_ID: u16 = PLAIN_OWNERS as u16;

const _: () = assert!(RUN_ID < FIRST_CACHE_ID);

static CORES: [AtomicPtr<Core>; IDS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; IDS];

/// Ids that were ever in use lie below.
static USED_IDS: AtomicU32 = AtomicU32::new(FIRST_CACHE_ID as u32);

/// What the lock guards.
pub struct Registry {
    /// No id below it is free.
    first_free: u16,
    spare: *mut Spare,
}

// SAFETY: the memory that it keeps belongs to nobody else.
unsafe impl Send for Registry {}

static REGISTRY: Lock<Registry> =
    Lock::new(Rank::Registry, Registry { first_free: FIRST_CACHE_ID, spare: core::ptr::null_mut() });

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

/// Ids that caches have or had. Those of caches made meanwhile may be missed.
pub(super) fn ids() -> impl Iterator<Item = u16> {
    (FIRST_CACHE_ID as u32..USED_IDS.load(Acquire)).map(|id| id as u16)
}

/// Calls `visit` for each live cache. Caches made meanwhile may be missed.
pub fn for_each(visit: impl FnMut(&'static Core)) {
    ids().filter_map(cache).for_each(visit);
}

impl Registry {
    /// An id that no cache has.
    pub(super) fn new_id(&mut self) -> Option<u16> {
        let id = (self.first_free..=u16::MAX).find(|&id| cache(id).is_none())?;
        self.first_free = id;
        Some(id)
    }

    pub(super) fn enter(&mut self, id: u16, core: &'static Core) {
        CORES[usize::from(id)].store((&raw const *core).cast_mut(), Release);
        USED_IDS.fetch_max(u32::from(id) + 1, Release);
    }

    pub(super) fn leave(&mut self, id: u16) {
        CORES[usize::from(id)].store(core::ptr::null_mut(), Release);
        self.first_free = self.first_free.min(id);
    }

    pub(super) fn spare_memory(&mut self) -> Option<Memory> {
        Memory::pop(&mut self.spare)
    }

    pub(super) fn keep_memory(&mut self, memory: Memory) {
        memory.push(&mut self.spare);
    }
}

//! The registry maps ids to caches.
//!
//! The memory of a destroyed cache serves the next one. A thread that reads caches holds the lock,
//! which keeps them alive, or walks without it (`any`). The registry does not use memory again
//! before such a walk has ended. So a walk sees a cache that is alive or was a moment ago, and
//! never one that is being made.

use super::body::{Core, Memory, Spare};
use crate::counters;
use crate::os::invariant::invariant;
use crate::os::{self, Futex, Guard, Lock};
use crate::percpu::sheaf::RUN_ID;
use crate::rseq::PLAIN_OWNERS;
use crate::slab::Delayed;
use crate::sync::{CachePadded, Rank};
use core::sync::atomic::{
    AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

mod valid;
pub use valid::check;

/// Number of ids: all values of [`crate::rseq::Owner::id`].
const IDS: usize = 1 << 16;
/// Id of the owner of large objects (see `malloc`).
pub const LARGE_ID: u16 = 1;
/// Id of the owner of sampled objects, which lie between guard pages (see `malloc`).
pub const SAMPLED_ID: u16 = RUN_ID + 1;
/// First of [`HEAP_IDS`] ids for the slabs of heaps that have no cache. Each stands for one size
/// class of all heaps together.
pub const FIRST_HEAP_ID: u16 = PLAIN_OWNERS as u16;
/// Number of these ids: one for each size class.
pub const HEAP_IDS: u16 = 45;
/// First id of a cache. Lower ids belong to the library itself.
pub const FIRST_CACHE_ID: u16 = FIRST_HEAP_ID + HEAP_IDS;

const _: () = assert!(SAMPLED_ID < FIRST_HEAP_ID);
const _: () = assert!(FIRST_CACHE_ID as usize <= counters::RESERVED_RECORDS);

/// In the section of large tables; see `rseq/layout.rs`.
#[unsafe(link_section = ".bss.uslab_tables")]
static CORES: [AtomicPtr<Core>; IDS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; IDS];

/// Every id that was ever in use is less than this.
static USED_IDS: AtomicU32 = AtomicU32::new(FIRST_CACHE_ID as u32);

/// The table of caches, for a debugger.
pub(super) const fn cores() -> *const () {
    (&raw const CORES).cast()
}

/// The place of the number of ids ever used, for a debugger.
pub(super) const fn used_ids() -> *const () {
    (&raw const USED_IDS).cast()
}

/// Number of live caches.
static CACHES: AtomicU32 = AtomicU32::new(0);

/// Heaps create caches only while there are fewer caches than this. The other ids stay free for the
/// program's caches.
const HEAP_CACHES_BELOW: u32 = 1 << 15;

/// Whether a heap may create a cache. Approximate if several threads ask at once.
pub(crate) fn has_room_for_heaps() -> bool {
    CACHES.load(Relaxed) < HEAP_CACHES_BELOW
}

const WORDS: usize = IDS / 64;

/// The ids in use and the memory for new caches: all that the registry's lock guards.
pub struct Registry {
    /// A bit for each id that a cache has.
    used: [u64; WORDS],
    /// A bit for each word of `used` that is full.
    full: [u64; WORDS / 64],
    spare: *mut Spare,
    /// The last wait for walks was in vain.
    waited_in_vain: bool,
}

// SAFETY: no other structure owns the memory that the registry keeps.
unsafe impl Send for Registry {}

/// The library's own ids, which no cache gets.
const OWN_IDS: [u64; WORDS] = {
    let mut used = [0; WORDS];
    used[0] = (1 << FIRST_CACHE_ID) - 1;
    used
};

#[unsafe(link_section = "uslab_tables")]
static REGISTRY: CachePadded<Lock<Registry>> = CachePadded(Lock::new(
    Rank::Registry,
    Registry { used: OWN_IDS, full: [0; WORDS / 64], spare: core::ptr::null_mut(), waited_in_vain: false },
));

/// The registry's lock, held. Misuse that drains find meanwhile is reported after its release.
pub(super) type Held = Delayed<Guard<'static, Registry>>;

/// Takes the registry's lock.
pub(super) fn lock() -> Held {
    Delayed::within(REGISTRY.lock())
}

/// Time that a woken thread takes to run, usually.
const WAKE_US: u64 = 50;

/// Releases the lock between two parts of a walk. Pauses if a thread waits for it: until that
/// thread runs, this one would have the lock again.
pub(super) fn unlock_between(held: Held) {
    let is_waited_for = REGISTRY.is_waited_for();
    drop(held);
    if is_waited_for {
        let _errno = os::errno::Preserved::new();
        os::sleep::pause_us(WAKE_US);
    }
}

pub(super) fn lock_for_fork() {
    REGISTRY.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child {
        WALKS.whole().iter().for_each(|walks| walks.store(0, Relaxed));
        REGISTRY.reset_in_child()
    } else {
        REGISTRY.release_after_fork()
    }
}

/// The cache of `id`.
#[inline]
pub fn cache(id: u16) -> Option<&'static Core> {
    // SAFETY: a core's address is valid for ever, and `enter` stores it after the core was written.
    unsafe { CORES[usize::from(id)].load(Acquire).as_ref() }
}

/// Ids that caches have or had. May miss those of caches that are created meanwhile.
pub(super) fn ids() -> impl Iterator<Item = u16> {
    (FIRST_CACHE_ID as u32..USED_IDS.load(Acquire)).map(|id| id as u16)
}

/// Runs `with` under the registry's lock, so that no cache is created or destroyed meanwhile.
pub(crate) fn with_lock<R>(with: impl FnOnce() -> R) -> R {
    let _registry = lock();
    with()
}

/// Calls `visit` for each live cache. Takes no lock: the caller must hold the registry's lock, so
/// that no cache is destroyed meanwhile.
pub fn for_each(visit: impl FnMut(&'static Core)) {
    ids().filter_map(cache).for_each(visit);
}

/// Whether `check` returns true for any cache. Takes no lock: other threads may destroy caches
/// meanwhile, even the one that `check` reads. `check` must be short, and must not block.
pub(super) fn any(check: impl FnMut(&'static Core) -> bool) -> bool {
    let _walk = Walk::begin();
    ids().filter_map(cache).any(check)
}

/// The sum of `count` over all caches. As [`any`]; `count` may take longer. A thread that creates a
/// cache meanwhile is delayed by up to 40 ms, once, and its cache gets fresh memory.
pub(crate) fn sum(count: impl Fn(&'static Core) -> usize) -> usize {
    let _walk = Walk::begin();
    ids().filter_map(cache).map(count).sum()
}

/// Number of walks in progress, by the phase in which they began: the present one or the one
/// before.
static WALKS: CachePadded<[AtomicU32; 2]> = CachePadded([const { AtomicU32::new(0) }; 2]);
/// The present phase, 0 or 1. It changes under the registry's lock, and only when no walk of the
/// other phase is left.
static PHASE: AtomicU32 = AtomicU32::new(0);

/// Spins of a thread that waits for the last walks. A walk takes microseconds if its thread runs.
const SPINS: u32 = 200;
/// Naps of a millisecond after the spins: longer than threads usually are off their CPUs. The wait
/// is bounded, because a debugger may have stopped the walking thread.
const NAPS: u32 = 20;

/// Keeps the registry from using the memory of destroyed caches again, as long as the returned
/// value lives: what a thread read of a cache, such as its name, stays as it was. As [`sum`].
pub(crate) fn keep_memory() -> Walk {
    Walk::begin()
}

/// A walk in progress. While it lives, the registry does not use the memory of destroyed caches
/// again.
pub(crate) struct Walk(&'static AtomicU32);

impl Walk {
    fn begin() -> Walk {
        loop {
            let phase = PHASE.load(SeqCst);
            let walk = Walk(&WALKS[phase as usize]);
            walk.0.fetch_add(1, SeqCst);
            // If the phase changed before this walk was counted, `walks_have_ended` may have read
            // this counter already, and would miss the walk: begin again.
            if PHASE.load(SeqCst) == phase {
                return walk;
            }
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        // A callback within a walk may fork. The child counts no walk, and ends this one, too.
        let _ = self.0.fetch_update(SeqCst, SeqCst, |walks| walks.checked_sub(1));
    }
}

/// Waits a little for the walks of `phase`, with up to `naps`; returns whether they have ended.
fn wait_for_walks(phase: u32, naps: u32) -> bool {
    let walks = &WALKS[phase as usize];
    let spun = (0..SPINS).any(|_| {
        core::hint::spin_loop();
        walks.load(SeqCst) == 0
    });
    if spun {
        return true;
    }
    let _errno = os::errno::Preserved::new();
    (0..naps).any(|_| {
        // A walk that ends does not wake this thread: there are many more walks than new caches,
        // and each wake is a system call. So the nap has a timeout.
        match walks.load(SeqCst) {
            0 => return true,
            left => Futex::wait_for(walks, left, 1),
        }
        walks.load(SeqCst) == 0
    })
}

/// Whether every walk that could have seen a destroyed cache has ended. Waits a little for walks in
/// progress, but not for one that an earlier call waited for in vain: it may take seconds.
fn walks_have_ended(registry: &mut Registry) -> bool {
    let phase = PHASE.load(SeqCst);
    let naps = if registry.waited_in_vain { 0 } else { NAPS };
    registry.waited_in_vain = true;
    if !wait_for_walks(phase ^ 1, naps) {
        return false;
    }
    // Walks that begin in the new phase see the table without the destroyed caches. The phase does
    // not change again before the walks of the old one have ended.
    PHASE.store(phase ^ 1, SeqCst);
    let have_ended = wait_for_walks(phase, naps);
    registry.waited_in_vain = !have_ended;
    have_ended
}

/// Calls `visit` for the structures of each cache. No other thread may use the library.
pub fn for_each_region(visit: &mut os::region::Visit<'_>) {
    let used = USED_IDS.load(Acquire) as usize;
    visit(os::region::Region::of("registry", &CORES[usize::from(FIRST_CACHE_ID)..used]));
    for_each(|core| {
        visit(os::region::Region::of("cache", core));
        core.cpu.for_each_region(visit);
    });
}

impl Registry {
    /// The lowest id that no cache has: memory for records is mapped in the order of ids.
    pub(super) fn new_id(&self) -> Option<u16> {
        let group = self.full.iter().position(|&word| word != u64::MAX)?;
        let word = group * 64 + self.full[group].trailing_ones() as usize;
        Some((word * 64) as u16 + self.used[word].trailing_ones() as u16)
    }

    fn mark(&mut self, id: u16, used: bool) {
        let (word, bit) = (usize::from(id) / 64, id % 64);
        invariant!(id >= FIRST_CACHE_ID, "the library's own ids are never given to caches", id);
        invariant!((self.used[word] >> bit & 1 != 0) != used, "an id is taken once and left once", id);
        self.used[word] = self.used[word] & !(1 << bit) | u64::from(used) << bit;
        let is_full = u64::from(self.used[word] == u64::MAX);
        self.full[word / 64] = self.full[word / 64] & !(1 << (word % 64)) | is_full << (word % 64);
        CACHES.fetch_add(if used { 1 } else { u32::MAX }, Relaxed);
    }

    pub(super) fn enter(&mut self, id: u16, core: &'static Core) {
        self.mark(id, true);
        invariant!(cache(id).is_none(), "an id has one cache", id);
        CORES[usize::from(id)].store((&raw const *core).cast_mut(), Release);
        USED_IDS.fetch_max(u32::from(id) + 1, Release);
        self.assert_entry(id);
    }

    pub(super) fn leave(&mut self, id: u16) {
        invariant!(cache(id).is_some(), "a cache that leaves was entered", id);
        CORES[usize::from(id)].store(core::ptr::null_mut(), Release);
        self.mark(id, false);
        self.assert_entry(id);
    }

    /// Memory of a destroyed cache that no thread reads any more. `None` if there is none, or if a
    /// walk takes long; a later call may get that memory.
    pub(super) fn spare_memory(&mut self) -> Option<Memory> {
        if self.spare.is_null() || !walks_have_ended(self) {
            return None;
        }
        Memory::pop(&mut self.spare)
    }

    pub(super) fn keep_memory(&mut self, memory: Memory) {
        memory.push(&mut self.spare);
    }
}

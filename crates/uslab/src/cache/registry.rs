//! The registry: which cache has which id.
//!
//! The memory of a cache that goes serves the next one. A thread that looks at caches keeps them
//! from going by the lock, or walks without it (`any`): then memory is not used again before the
//! walk has ended. So what a walk sees is a cache that lives or lived a moment ago, and never
//! another one that is being made.

use super::body::{Core, Memory, Spare};
use crate::os::invariant::invariant;
use crate::os::{self, Futex, Guard, Lock};
use crate::percpu::sheaf::RUN_ID;
use crate::rseq::PLAIN_OWNERS;
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
/// First of [`HEAP_IDS`] ids that stand for the size classes of all heaps together: those of their
/// slabs that have no cache.
pub const FIRST_HEAP_ID: u16 = PLAIN_OWNERS as u16;
/// As many as there are size classes.
pub const HEAP_IDS: u16 = 40;
/// Ids below belong to the library itself.
pub const FIRST_CACHE_ID: u16 = FIRST_HEAP_ID + HEAP_IDS;

const _: () = assert!(RUN_ID < FIRST_HEAP_ID);

static CORES: [AtomicPtr<Core>; IDS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; IDS];

/// Ids that were ever in use lie below.
static USED_IDS: AtomicU32 = AtomicU32::new(FIRST_CACHE_ID as u32);

/// Caches there are now.
static CACHES: AtomicU32 = AtomicU32::new(0);

/// Caches of heaps are made as long as there are fewer caches than this: so the rest of the ids is
/// the program's.
const HEAP_CACHES_BELOW: u32 = 1 << 15;

/// Whether a heap may have a cache: close, where several ask at once.
pub(crate) fn has_room_for_heaps() -> bool {
    CACHES.load(Relaxed) < HEAP_CACHES_BELOW
}

const WORDS: usize = IDS / 64;

/// What the lock guards.
pub struct Registry {
    /// A bit for each id that a cache has.
    used: [u64; WORDS],
    /// A bit for each word of `used` that is full.
    full: [u64; WORDS / 64],
    spare: *mut Spare,
}

// SAFETY: no other structure has the memory that it keeps.
unsafe impl Send for Registry {}

/// The ids that no cache gets.
const OWN_IDS: [u64; WORDS] = {
    let mut used = [0; WORDS];
    used[0] = (1 << FIRST_CACHE_ID) - 1;
    used
};

static REGISTRY: CachePadded<Lock<Registry>> = CachePadded(Lock::new(
    Rank::Registry,
    Registry { used: OWN_IDS, full: [0; WORDS / 64], spare: core::ptr::null_mut() },
));

pub(super) fn lock() -> Guard<'static, Registry> {
    REGISTRY.lock()
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
    // SAFETY: cores are at addresses that live for ever, and are written before they are entered.
    unsafe { CORES[usize::from(id)].load(Acquire).as_ref() }
}

/// Ids that caches have or had. Those of caches made meanwhile may be missed.
pub(super) fn ids() -> impl Iterator<Item = u16> {
    (FIRST_CACHE_ID as u32..USED_IDS.load(Acquire)).map(|id| id as u16)
}

/// Runs `with` while no cache is made or destroyed.
pub(crate) fn with_lock<R>(with: impl FnOnce() -> R) -> R {
    let _registry = lock();
    with()
}

/// Calls `visit` for each live cache. Takes no lock: the caller must hold the registry's lock, so
/// that no cache is destroyed meanwhile.
pub fn for_each(visit: impl FnMut(&'static Core)) {
    ids().filter_map(cache).for_each(visit);
}

/// Whether `check` is true of any cache. Takes no lock: caches may be destroyed meanwhile, also the
/// one that is looked at. `check` must be short and block nowhere.
pub(super) fn any(check: impl FnMut(&'static Core) -> bool) -> bool {
    let _walk = Walk::begin();
    ids().filter_map(cache).any(check)
}

/// Walks that are under way, by the phase in which they began: this one or the last.
static WALKS: CachePadded<[AtomicU32; 2]> = CachePadded([const { AtomicU32::new(0) }; 2]);
/// Changed under the registry's lock, and only when no walk of the phase before is left.
static PHASE: AtomicU32 = AtomicU32::new(0);

/// Looks for the end of the last walks: they take microseconds, if their threads run.
const SPINS: u32 = 200;
/// And then naps of a millisecond: longer than threads are off their CPUs as a rule. For one that
/// stands still, in a debugger, no thread waits for ever.
const NAPS: u32 = 20;

/// Keeps the memory of caches that go from being used again.
struct Walk(&'static AtomicU32);

impl Walk {
    fn begin() -> Walk {
        loop {
            let phase = PHASE.load(SeqCst);
            let walk = Walk(&WALKS[phase as usize]);
            walk.0.fetch_add(1, SeqCst);
            // The phase changed before this walk was counted: `walks_have_ended` may have looked at
            // this counter already, and would miss the walk.
            if PHASE.load(SeqCst) == phase {
                return walk;
            }
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        let walks = self.0.fetch_sub(1, SeqCst);
        invariant!(walks > 0, "a walk that ends was counted", walks);
    }
}

/// Whether the walks of `phase` have ended, or do soon.
fn ended(phase: u32) -> bool {
    let walks = &WALKS[phase as usize];
    let spun = (0..SPINS).any(|_| {
        core::hint::spin_loop();
        walks.load(SeqCst) == 0
    });
    if spun {
        return true;
    }
    let _errno = os::errno::Preserved::new();
    (0..NAPS).any(|_| {
        // A walk that ends does not wake this thread: there are many more walks than new caches,
        // and each wake is a system call. So the nap has a timeout.
        match walks.load(SeqCst) {
            0 => return true,
            left => Futex::wait_for(walks, left, 1),
        }
        walks.load(SeqCst) == 0
    })
}

/// Whether every walk that could have seen a cache which is gone has ended. Waits a little for
/// those that have not.
fn walks_have_ended(_: &mut Registry) -> bool {
    let phase = PHASE.load(SeqCst);
    if !ended(phase ^ 1) {
        return false;
    }
    // Walks that begin now find the table as it is. Where some of the other phase stay, it does not
    // begin again.
    PHASE.store(phase ^ 1, SeqCst);
    ended(phase)
}

impl Registry {
    /// The lowest id that no cache has: low ones are listed in the figures.
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

    /// Memory of a cache that is gone, which no thread looks at any more. None where a walk takes
    /// long: the next one can have it.
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

//! How large a cache's sheaves are: learnt from misses, bounded in bytes over all caches.
//!
//! A cache starts with the kernel's capacity for its object size, rounded up to a size of sheaves.
//! This default is free of charge: what the sheaves hold was in use a moment ago, or lies in a
//! slab that exists, and goes when the cache rests. The cache doubles the capacity
//! where that proves too small: where a CPU overflows and then underflows (it frees and allocates
//! more in a row than its sheaves hold), is served by the barn many times (objects wander between
//! CPUs), or exchanges its two sheaves over and over. For the last reason alone it may grow only
//! while the charge stays within half of the bound. Where it may not, the slow path moves objects
//! until both sheaves hold about equally many: then one is mostly enough.
//!
//! ```text
//!   capacity of each cache  ▓▓▓▓▓▓▓▓▓▓▓▓ default   free of charge
//!                           ▒▒▒▒▒▒▒▒▒▒▒▒ beyond    of all caches together: at most bound_bytes()
//! ```
//!
//! The bound follows the memory that slabs hold, and falls to its floor under pressure. Caches
//! beyond their default stand in a ring. One that wants more when nothing is left takes it from
//! those in the ring that had no misses lately; the background thread takes it from those that
//! rest, and, where the bound has fallen, from all in turn. Sheaves are drained for it, many with
//! one barrier.
//!
//! Where `USLAB_CPU_BYTES` says the bound, it is what it says, and capacity beyond the smallest
//! sheaf is charged from the first object on.

use super::sheaf::{SIZES, Size};
use super::{CpuCache, Drain, Keep};
use crate::counters;
use crate::os::invariant::invariant;
use crate::os::{self, Lock};
use crate::slab::Geometry;
use crate::sync::list::{Linked, Links, List};
use crate::sync::{CachePadded, Rank};
use core::cell::Cell;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

mod valid;
pub use valid::check;
#[cfg(test)]
pub(super) use valid::check_broken;

/// Floor of [`bound_bytes`]: 1.5 MiB.
const FLOOR_BYTES: usize = 3 << 19;
/// Part of the memory of slabs that the sheaves of all CPUs may hold beyond their defaults.
const HEAP_PART: usize = 64;
/// Bytes of objects in one sheaf, at most.
const MAX_SHEAF_BYTES: usize = 512 << 10;
/// Bytes of runs in the one sheaf that a CPU has of their cache, at most: so much counts as the
/// floor of the bound. Less where there are many CPUs, and never less than that floor.
const MAX_RUN_BYTES: usize = 4 << 20;
/// The same for all CPUs together.
const MAX_ALL_RUN_BYTES: usize = 16 << 20;
/// Times that the barn served a cache before that counts as a reason to grow.
const BARN_SERVED: u32 = 16;
/// Times that the spare had room for a cache before that counts as one. Where a CPU exchanges its
/// sheaves over and over, the spare serves objects as often.
const SPARE_SERVED: u32 = 32;
/// Most caches that one [`Ring::take_back`] looks at.
const LOOKS: usize = 256;
/// Least time between two [`Ring::take_back`]s for growing caches. A cache without misses since it
/// was last asked counts as idle; what it gives costs all threads a barrier.
const LOOK_MS: u64 = 20;
/// How long the bound stays at its floor after memory was short.
const PRESSED_MS: u64 = 10_000;

/// The bound that the user chose; [`FOLLOWS`] if none.
static CHOSEN: AtomicUsize = AtomicUsize::new(FOLLOWS);
const FOLLOWS: usize = usize::MAX;
static CPUS: AtomicUsize = AtomicUsize::new(1);
/// Bytes that are charged. Changed under the ring's lock.
static USED: AtomicUsize = AtomicUsize::new(0);
static NEXT_LOOK_MS: AtomicU64 = AtomicU64::new(0);
static PRESSED_UNTIL_MS: AtomicU64 = AtomicU64::new(0);

/// Bound of the bytes that caches are charged, for one CPU and over all caches. A cache beyond its
/// default is charged for all that its two sheaves may hold. A cache of runs has one sheaf, and is
/// charged as if [`MAX_RUN_BYTES`] were the floor.
pub fn bound_bytes() -> usize {
    match CHOSEN.load(Relaxed) {
        FOLLOWS if os::clock::coarse_ms() < PRESSED_UNTIL_MS.load(Relaxed) => FLOOR_BYTES,
        FOLLOWS => {
            let header = counters::header();
            let slabs = header.used_bytes.load(Relaxed).saturating_sub(header.large_bytes.load(Relaxed));
            FLOOR_BYTES.max(slabs as usize / HEAP_PART / CPUS.load(Relaxed))
        }
        chosen => chosen,
    }
}

/// Sets the number of CPUs, and [`bound_bytes`] for good if it is chosen, before the first cache is
/// made.
pub fn init(cpus: usize, chosen_bytes: Option<usize>) {
    CPUS.store(cpus.max(1), Relaxed);
    CHOSEN.store(chosen_bytes.map_or(FOLLOWS, |bytes| bytes.min(FOLLOWS - 1)), Relaxed);
}

/// Memory is short: for a while the bound does not follow the slabs.
pub fn note_pressure() {
    PRESSED_UNTIL_MS.store(os::clock::coarse_ms() + PRESSED_MS, Relaxed);
}

/// What a CPU last went beyond its own sheaves for; kept in [`crate::rseq::Slot::last_miss`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Miss {
    /// Objects.
    Underflow = 1,
    /// Room.
    Overflow = 2,
}

/// The adaptive part of a cache.
pub(super) struct Adapt {
    /// Changed under the ring's lock.
    size: AtomicU8,
    start: Size,
    /// Up to here nothing is charged.
    free_of_charge: Size,
    most: Size,
    /// The user chose the size.
    fixed: bool,
    /// Bytes that a place in one of two sheaves is charged.
    charged_bytes: usize,
    /// Neighbours in the ring, under its lock; null outside.
    links: Cell<Links<*const CpuCache>>,
    /// Apart from the rest, which passes look at.
    counts: CachePadded<Counts>,
}

// SAFETY: the links are read and written under the ring's lock alone; the rest are atomics or never
// change.
unsafe impl Sync for Adapt {}

#[derive(Default)]
struct Counts {
    /// Misses, and services by the spare, since the cache was last asked to give.
    misses: AtomicU32,
    barn_served: AtomicU32,
    spare_served: AtomicU32,
}

/// The kernel's capacity for an object size.
fn default_capacity(object_bytes: usize) -> usize {
    match object_bytes {
        16384.. => 2,
        4096.. => 4,
        1024.. => 12,
        256.. => 26,
        _ => 60,
    }
}

impl Adapt {
    /// For objects of `geometry`. `wanted` is the user's capacity, which then is fixed. With 0 the
    /// cache starts at the default and adapts.
    pub fn new(geometry: &Geometry, wanted: usize) -> Adapt {
        let object_bytes = geometry.object_bytes;
        let run_bytes = (MAX_ALL_RUN_BYTES / CPUS.load(Relaxed)).clamp(FLOOR_BYTES, MAX_RUN_BYTES);
        let (max_bytes, charged_bytes) = if geometry.is_run() {
            (run_bytes, object_bytes * FLOOR_BYTES / run_bytes / 2)
        } else {
            (MAX_SHEAF_BYTES, object_bytes)
        };
        let fixed = wanted > 0;
        let start = Size::holding(if fixed { wanted } else { default_capacity(object_bytes) });
        let most = (0..SIZES as u8)
            .map(Size)
            .take_while(|size| size.capacity() * object_bytes <= max_bytes)
            .last()
            .unwrap_or(Size(0));
        let charged = CHOSEN.load(Relaxed) != FOLLOWS;
        Adapt {
            size: AtomicU8::new(if charged { 0 } else { start.0 }),
            start,
            free_of_charge: if charged { Size(0) } else { start },
            most: if fixed { start } else { most.max(start) },
            fixed,
            charged_bytes,
            links: Cell::new(Links::OUTSIDE),
            counts: CachePadded(Counts::default()),
        }
    }

    /// The size that sheaves of the cache should have now.
    pub fn size(&self) -> Size {
        Size(self.size.load(Relaxed))
    }

    /// A CPU whose last miss was `last` missed again; `barn` says whether the barn could help. True
    /// if that is a reason to grow.
    fn is_too_small(&self, last: u32, miss: Miss, barn: bool) -> bool {
        self.counts.misses.fetch_add(1, Relaxed);
        let bounced = last != 0 && last != miss as u32;
        let wandered = barn && self.counts.barn_served.fetch_add(1, Relaxed) + 1 >= BARN_SERVED;
        if bounced || wandered {
            self.counts.barn_served.store(0, Relaxed);
        }
        bounced || wandered
    }

    /// A CPU went on with the room of its spare. That is cheap, and still some twenty times what
    /// the fast path costs. True if it has become a reason to grow.
    fn is_exchanging(&self) -> bool {
        self.counts.misses.fetch_add(1, Relaxed);
        let often = self.counts.spare_served.fetch_add(1, Relaxed) + 1 >= SPARE_SERVED;
        if often {
            self.counts.spare_served.store(0, Relaxed);
        }
        often
    }

    /// Bytes that sheaves of `size` are charged.
    pub(super) fn charge(&self, size: Size) -> usize {
        if size > self.free_of_charge { 2 * size.capacity() * self.charged_bytes } else { 0 }
    }

    /// Whether the cache had a miss since it was last asked.
    fn had_misses(&self) -> bool {
        self.counts.misses.swap(0, Relaxed) > 0
    }
}

/// See [`Adapt::is_too_small`].
pub(super) fn note_miss(cache: &CpuCache, last: u32, miss: Miss, barn: bool) {
    if cache.adapt().is_too_small(last, miss, barn) {
        grow(cache, bound_bytes(), true);
    }
}

/// A CPU went on with the objects of its spare.
pub(super) fn note_spare_objects(cache: &CpuCache) {
    cache.adapt().counts.misses.fetch_add(1, Relaxed);
}

/// See [`Adapt::is_exchanging`]. True if the cache should grow and may not: then the two sheaves
/// had better share what they hold.
pub(super) fn note_spare_room(cache: &CpuCache) -> bool {
    cache.adapt().is_exchanging() && !grow(cache, bound_bytes() / 2, false)
}

impl Linked for CpuCache {
    type Name = *const CpuCache;

    unsafe fn links(cache: *const CpuCache) -> *mut Links<*const CpuCache> {
        // SAFETY: the caller's promise.
        unsafe { (*cache).adapt().links.as_ptr() }
    }
}

/// The caches that are charged for something; the first one is looked at next.
struct Ring(List<CpuCache>);
// SAFETY: the pointers are used under the lock only, by which entered caches are kept from going
// away.
unsafe impl Send for Ring {}

static RING: Lock<Ring> = Lock::new(Rank::Adapt, Ring(List::new()));

impl Ring {
    /// Sets the size of a cache, its charge, and whether it stands here: at the end, where it is
    /// asked last.
    fn set_size(&mut self, cache: &CpuCache, size: Size) {
        let adapt = cache.adapt();
        let (before, now) = (adapt.charge(adapt.size()), adapt.charge(size));
        invariant!(size <= adapt.most, "a cache's sheaves are no larger than allowed", size.0);
        invariant!(USED.load(Relaxed) >= before, "what caches are charged is summed up", before);
        adapt.size.store(size.0, Relaxed);
        USED.fetch_add(now.wrapping_sub(before), Relaxed);
        cache.publish_capacity();
        match (before > 0, now > 0) {
            // SAFETY: the charge says that it is in no list, and each is taken out before it goes.
            (false, true) => unsafe { self.0.link_last(cache) },
            // SAFETY: the charge says that it is in the list.
            (true, false) => unsafe { self.0.unlink(cache) },
            _ => {}
        }
        self.assert_valid(cache);
    }

    /// Takes capacity from the caches in turn until no more than `goal` bytes are charged, or
    /// `looks` were looked at.
    fn take_back(&mut self, goal: usize, looks: usize, may_give: impl Fn(&CpuCache) -> bool) {
        // One barrier for many: it ends, at the latest, before the lock does.
        let mut drain = Drain::of_idle(Keep::Target);
        for _ in 0..looks {
            if USED.load(Relaxed) <= goal {
                return;
            }
            // SAFETY: caches in the list are valid: each is taken out before it goes.
            let Some(cache) = (unsafe { self.0.turn().as_ref() }) else { return };
            if !cache.adapt().fixed && may_give(cache) {
                invariant!(cache.adapt().size().0 > 0, "a cache that is charged can shrink its sheaves");
                self.set_size(cache, Size(cache.adapt().size().0 - 1));
                cache.drain_slots(&mut drain);
            }
        }
    }
}

/// Doubles the capacity, if all caches together are then charged at most `bound`. Where it
/// `may_take`, idle caches give capacity for that. Gives up if another thread has the ring.
/// False if the capacity is what it was.
fn grow(cache: &CpuCache, bound: usize, may_take: bool) -> bool {
    let adapt = cache.adapt();
    let size = adapt.size();
    if size >= adapt.most {
        return false;
    }
    let next = Size(size.0 + 1);
    let Some(goal) = bound.checked_sub(adapt.charge(next) - adapt.charge(size)) else { return false };
    let fits = || USED.load(Relaxed) <= goal;
    if !(fits() || may_take && is_time_to_look()) {
        return false;
    }
    let Some(mut ring) = RING.try_lock() else { return false };
    // Another thread may have changed it meanwhile.
    if adapt.size() != size {
        return true;
    }
    if !fits() {
        ring.take_back(goal, LOOKS, |other| !core::ptr::eq(other, cache) && !other.adapt().had_misses());
    }
    let grows = fits();
    if grows {
        ring.set_size(cache, next);
    }
    grows
}

fn is_time_to_look() -> bool {
    let now_ms = os::clock::coarse_ms();
    let next_ms = NEXT_LOOK_MS.load(Relaxed);
    now_ms >= next_ms && NEXT_LOOK_MS.compare_exchange(next_ms, now_ms + LOOK_MS, Relaxed, Relaxed).is_ok()
}

/// While the guard lives no cache is drained for another's sake: what is in slots is there, and in
/// no thread's hands.
pub fn pause() -> impl Drop {
    RING.lock()
}

/// The cache rests: no sheaf is in its slots or barns. Its capacity falls to where it started, and
/// what that charges less is free for other caches.
pub(super) fn rest(cache: &CpuCache) {
    let adapt = cache.adapt();
    if adapt.size() > adapt.start {
        RING.lock().set_size(cache, adapt.start);
    }
}

/// A cache begins. Where its default is charged, it gets that if the bound has room.
///
/// # Safety
/// `cache` must stay valid at this address until [`leave`].
pub(super) unsafe fn enter(cache: &CpuCache) {
    let adapt = cache.adapt();
    if adapt.size() < adapt.start {
        let mut ring = RING.lock();
        if USED.load(Relaxed).saturating_add(adapt.charge(adapt.start)) <= bound_bytes() {
            ring.set_size(cache, adapt.start);
        }
    }
}

/// The cache goes; when this returns no thread looks at it any more.
pub(super) fn leave(cache: &CpuCache) {
    RING.lock().set_size(cache, Size(0));
}

/// Takes back what is beyond the bound, which may have fallen; some of it, if it is much. Once a
/// look of the background thread.
pub fn begin_period() {
    let bound = bound_bytes();
    if USED.load(Relaxed) > bound {
        RING.lock().take_back(bound, LOOKS, |_| true);
    }
}

pub(super) fn lock_for_fork() {
    RING.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { RING.reset_in_child() } else { RING.release_after_fork() }
}

//! How large a cache's sheaves are: learnt from misses, bounded in bytes over all caches.
//!
//! Every cache starts at the kernel's capacity for its object size and doubles where that proves too small: where a CPU
//! overflows and then underflows (it frees and allocates more in a row than its sheaves hold), is served by the barn many
//! times (objects wander between CPUs), or, as long as half of the bound is free, exchanges its two sheaves over and over. Two sheaves a CPU of every cache together may hold at most [`bound_bytes`] of objects; a
//! cache that wants more when nothing is left takes it from one that had no misses lately, whose sheaves are drained.

use super::sheaf::{SIZES, Size};
use super::{CpuCache, Drain, Keep};
use crate::os::{self, Lock};
use crate::sync::{CachePadded, Rank};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Default of [`bound_bytes`]: 1.5 MiB.
const BOUND_BYTES: usize = 3 << 19;
/// Bytes of objects in one sheaf, at most.
const SHEAF_MOST_BYTES: usize = 512 << 10;
/// Times that the barn served a cache before that counts as a reason to grow.
const BARN_SERVED: u32 = 16;
/// Times that the spare served a cache before that counts as one.
const SPARE_SERVED: u32 = 64;
/// Caches that are looked at for one that can give.
const LOOKS: usize = 64;
/// Between two such looks. A cache without misses in that time is idle; what it gives costs everybody a barrier.
const LOOK_MS: u64 = 20;

static BOUND: AtomicUsize = AtomicUsize::new(BOUND_BYTES);
static USED: AtomicUsize = AtomicUsize::new(0);
static NEXT_LOOK_MS: AtomicU64 = AtomicU64::new(0);

/// Bytes of objects that the sheaves of one CPU may hold, over all caches.
pub fn bound_bytes() -> usize {
    BOUND.load(Relaxed)
}

/// Sets [`bound_bytes`], before the first cache is made.
pub fn set_bound_bytes(bytes: usize) {
    BOUND.store(bytes, Relaxed);
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
    size: AtomicU8,
    most: Size,
    /// The user chose the size.
    fixed: bool,
    object_bytes: usize,
    /// Link of the ring below, under its lock.
    next: AtomicPtr<CpuCache>,
    /// Apart from the rest, which passes look at.
    counts: CachePadded<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Misses, and services by the spare, since somebody last looked for a cache that can give.
    misses: AtomicU32,
    barn_served: AtomicU32,
    spare_served: AtomicU32,
}

/// Bytes that one CPU's two sheaves of `size` hold.
fn pair_bytes(size: Size, object_bytes: usize) -> usize {
    2 * size.capacity() * object_bytes
}

fn reserve(bytes: usize, bound: usize) -> bool {
    let fits = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= bound);
    USED.fetch_update(Relaxed, Relaxed, fits).is_ok()
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
    /// For objects of `object_bytes`; `wanted` is the user's capacity, 0 for the default, which then is fixed.
    pub fn new(object_bytes: usize, wanted: usize) -> Adapt {
        let fixed = wanted > 0;
        let start = Size::holding(if fixed { wanted } else { default_capacity(object_bytes) });
        let most = (0..SIZES as u8)
            .map(Size)
            .take_while(|size| size.capacity() * object_bytes <= SHEAF_MOST_BYTES)
            .last()
            .unwrap_or(Size(0));
        // The smallest sheaf is everyone's right, whatever is left of the bound.
        let size = match start {
            Size(0) => start,
            _ if reserve(pair_bytes(start, object_bytes), bound_bytes()) => start,
            _ => Size(0),
        };
        Adapt {
            size: AtomicU8::new(size.0),
            most: if fixed { start } else { most.max(start) },
            fixed,
            object_bytes,
            next: AtomicPtr::new(core::ptr::null_mut()),
            counts: CachePadded(Counts::default()),
        }
    }

    /// The size that sheaves of the cache should have now.
    pub fn size(&self) -> Size {
        Size(self.size.load(Relaxed))
    }

    /// The cache goes: what it reserved is free again.
    fn retire(&self) {
        let size = Size(self.size.swap(0, Relaxed));
        if size.0 > 0 {
            USED.fetch_sub(pair_bytes(size, self.object_bytes), Relaxed);
        }
    }

    /// A CPU whose last miss was `last` missed again; `barn` says whether the barn could help.
    pub fn note_miss(&self, last: u32, miss: Miss, barn: bool) {
        self.counts.misses.fetch_add(1, Relaxed);
        let bounced = last != 0 && last != miss as u32;
        let wandered = barn && self.counts.barn_served.fetch_add(1, Relaxed) + 1 >= BARN_SERVED;
        if bounced || wandered {
            self.counts.barn_served.store(0, Relaxed);
            self.grow(bound_bytes(), true);
        }
    }

    /// A CPU went on with its spare. That is cheap, and still some twenty times what the fast path costs.
    pub fn note_spare(&self) {
        self.counts.misses.fetch_add(1, Relaxed);
        if self.counts.spare_served.fetch_add(1, Relaxed) + 1 >= SPARE_SERVED {
            self.counts.spare_served.store(0, Relaxed);
            self.grow(bound_bytes() / 2, false);
        }
    }

    /// Bytes that growing from `size` to the next one adds.
    fn step_bytes(&self, size: Size) -> usize {
        let have = if size.0 > 0 { pair_bytes(size, self.object_bytes) } else { 0 };
        pair_bytes(Size(size.0 + 1), self.object_bytes) - have
    }

    /// Doubles the capacity, if all caches together then stay below `bound`, or, where it `may_take` from others, can be made to.
    fn grow(&self, bound: usize, may_take: bool) {
        let size = self.size();
        if size >= self.most {
            return;
        }
        let next = Size(size.0 + 1);
        let more = self.step_bytes(size);
        let reserved = reserve(more, bound)
            || (may_take && take_from_the_idle(self, more, bound) && reserve(more, bound));
        if !reserved {
            return;
        }
        // Somebody may have grown it meanwhile; then give ours back.
        if self.size.compare_exchange(size.0, next.0, Relaxed, Relaxed).is_err() {
            USED.fetch_sub(more, Relaxed);
        }
    }

    /// Halves the capacity, if the cache had no misses since it was last asked; says what that frees.
    fn give_up(&self) -> usize {
        let size = self.size();
        if self.fixed || self.counts.misses.swap(0, Relaxed) > 0 || size.0 == 0 {
            return 0;
        }
        let next = Size(size.0 - 1);
        let less = pair_bytes(size, self.object_bytes)
            - if next.0 > 0 { pair_bytes(next, self.object_bytes) } else { 0 };
        if self.size.compare_exchange(size.0, next.0, Relaxed, Relaxed).is_err() {
            return 0;
        }
        USED.fetch_sub(less, Relaxed);
        less
    }
}

/// The caches that can be asked to give, through [`Adapt::next`], and where the last look ended.
struct Ring {
    head: *const CpuCache,
    hand: *const CpuCache,
}
// SAFETY: the pointers are used under the lock only, by which entered caches are kept from going away.
unsafe impl Send for Ring {}

static RING: Lock<Ring> = Lock::new(Rank::Adapt, Ring { head: core::ptr::null(), hand: core::ptr::null() });

/// Enters a cache into the list of those that can be asked to give.
///
/// # Safety
/// `cache` must stay valid at this address until [`leave`].
pub(super) unsafe fn enter(cache: &CpuCache) {
    let mut ring = RING.lock();
    cache.adapt().next.store(ring.head.cast_mut(), Relaxed);
    ring.head = cache;
}

/// While the guard lives no cache is drained for another's sake: what is in slots is there, not in somebody's hand.
pub fn pause() -> impl Drop {
    RING.lock()
}

/// Takes a cache out; when this returns nobody looks at it any more.
pub(super) fn leave(cache: &CpuCache) {
    let mut ring = RING.lock();
    cache.adapt().retire();
    let next = cache.adapt().next.load(Relaxed).cast_const();
    if core::ptr::eq(ring.hand, cache) {
        ring.hand = next;
    }
    if core::ptr::eq(ring.head, cache) {
        ring.head = next;
        return;
    }
    let mut at = ring.head;
    // SAFETY: entered caches are valid, and the lock keeps them.
    while let Some(other) = unsafe { at.as_ref() } {
        let following = other.adapt().next.load(Relaxed).cast_const();
        if core::ptr::eq(following, cache) {
            other.adapt().next.store(next.cast_mut(), Relaxed);
            return;
        }
        at = following;
    }
}

/// Makes room of `bytes` under `bound`, if caches without recent misses have as much to give. Waits for nobody.
fn take_from_the_idle(asking: &Adapt, bytes: usize, bound: usize) -> bool {
    let now_ms = os::clock::coarse_ms();
    let next_ms = NEXT_LOOK_MS.load(Relaxed);
    if now_ms < next_ms || NEXT_LOOK_MS.compare_exchange(next_ms, now_ms + LOOK_MS, Relaxed, Relaxed).is_err()
    {
        return false;
    }
    let Some(mut ring) = RING.try_lock() else { return false };
    for _ in 0..LOOKS {
        if ring.hand.is_null() {
            ring.hand = ring.head;
        }
        // SAFETY: as in `leave`.
        let Some(cache) = (unsafe { ring.hand.as_ref() }) else { return false };
        ring.hand = cache.adapt().next.load(Relaxed);
        if core::ptr::eq(cache.adapt(), asking) {
            continue;
        }
        let given = cache.adapt().give_up();
        if given > 0 {
            cache.drain_slots(&mut Drain::of_idle(Keep::Target));
            if USED.load(Relaxed) + bytes <= bound {
                return true;
            }
        }
    }
    false
}

pub(super) fn lock_for_fork() {
    RING.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { RING.reset_in_child() } else { RING.release_after_fork() }
}

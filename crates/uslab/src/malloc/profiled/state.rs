//! Whether the heap profile runs, and which classes count their allocations.

use crate::cache::Core;
use crate::malloc::classes;
use crate::os;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Classes with a cache: small ones, then medium ones.
pub const CLASSES: usize = classes::CLASSES + 20;

/// Mean bytes from one sample to the next; 0 while no samples are taken.
static PERIOD_BYTES: AtomicU64 = AtomicU64::new(0);
/// The period of the last start, which a profile that is stopped still shows.
static LAST_PERIOD_BYTES: AtomicU64 = AtomicU64::new(0);
/// The times of the first start: of the coarse clock, and milliseconds since 1970. 0 before it.
static FIRST_MS: AtomicU64 = AtomicU64::new(0);
static FIRST_UNIX_MS: AtomicU64 = AtomicU64::new(0);
/// When the coarse clock saw sampling start; 0 while no samples are taken.
static SINCE_MS: AtomicU64 = AtomicU64::new(0);
/// Time for which samples were taken before [`SINCE_MS`].
static SAMPLED_MS: AtomicU64 = AtomicU64::new(0);
static FORKED_UNIX_MS: AtomicU64 = AtomicU64::new(0);
/// See [`phase`].
static PHASE: AtomicU8 = AtomicU8::new(NEW);

/// Requests of other processes cannot reach the profile yet.
pub const NEW: u8 = 0;
/// The profile never ran.
pub const READY: u8 = 1;
/// It ran, or runs.
pub const BEGUN: u8 = 2;

/// What is known of the profile, in one word for the slow path: [`NEW`], [`READY`] or [`BEGUN`].
#[inline]
pub fn phase() -> u8 {
    PHASE.load(Relaxed)
}

/// Moves from [`NEW`] to [`READY`].
pub fn set_ready() {
    let _ = PHASE.compare_exchange(NEW, READY, Relaxed, Relaxed);
}

/// Mean bytes from one sample to the next; 0 while no samples are taken.
pub fn period_bytes() -> u64 {
    PERIOD_BYTES.load(SeqCst)
}

/// Sets the period; 0 ends sampling.
pub fn set_period_bytes(bytes: u64) {
    PERIOD_BYTES.store(bytes, SeqCst);
    let now_ms = os::clock::coarse_ms().max(1);
    if bytes != 0 {
        LAST_PERIOD_BYTES.store(bytes, Relaxed);
        let _ = SINCE_MS.compare_exchange(0, now_ms, Relaxed, Relaxed);
    } else {
        let since_ms = SINCE_MS.swap(0, Relaxed);
        SAMPLED_MS.fetch_add(passed_ms(since_ms, now_ms), Relaxed);
    }
}

fn passed_ms(since_ms: u64, now_ms: u64) -> u64 {
    if since_ms == 0 { 0 } else { now_ms.saturating_sub(since_ms) }
}

/// Time for which samples were taken, in all.
pub fn sampled_ms() -> u64 {
    SAMPLED_MS.load(Relaxed) + passed_ms(SINCE_MS.load(Relaxed), os::clock::coarse_ms())
}

/// The period of the last start.
pub fn last_period_bytes() -> u64 {
    LAST_PERIOD_BYTES.load(Relaxed)
}

/// Milliseconds of a unit of [`now`]: 2^32 units are two years.
const UNIT_MS: u64 = 16;

/// The time since the first start, in units of [`UNIT_MS`].
pub fn now() -> u32 {
    let ms = os::clock::coarse_ms().saturating_sub(FIRST_MS.load(Relaxed));
    u32::try_from(ms / UNIT_MS).unwrap_or(u32::MAX)
}

/// The milliseconds from `born` to `now`, two results of [`now`].
pub fn age_ms(now: u32, born: u32) -> u64 {
    u64::from(now.saturating_sub(born)) * UNIT_MS
}

/// The time of the first start in milliseconds since 1970.
pub fn first_unix_ms() -> u64 {
    FIRST_UNIX_MS.load(Relaxed)
}

/// The time since which this process has the profile, in milliseconds since 1970: that of the first
/// start, or of the fork that made the process.
pub fn own_unix_ms() -> u64 {
    FORKED_UNIX_MS.load(Relaxed).max(first_unix_ms())
}

/// Notes, in a fork child, when it began.
pub fn note_fork() {
    FORKED_UNIX_MS.store(os::clock::unix_ms(), Relaxed);
}

/// Notes the first start.
pub fn begin() {
    let _ = FIRST_MS.compare_exchange(0, os::clock::coarse_ms().max(1), Relaxed, Relaxed);
    let _ = FIRST_UNIX_MS.compare_exchange(0, os::clock::unix_ms().max(1), Relaxed, Relaxed);
    PHASE.store(BEGUN, SeqCst);
}

/// Whether the profile ever ran.
#[inline]
pub fn has_begun() -> bool {
    phase() == BEGUN
}

/// A class under profiling.
pub struct Class {
    /// The cache, while the tables of sizes name its counted row; else null.
    counting: AtomicPtr<Core>,
    /// Sampled objects in use that a sized free would push into the class's own sheaf.
    samples: AtomicU32,
}

static ALL: [Class; CLASSES] =
    [const { Class { counting: AtomicPtr::new(ptr::null_mut()), samples: AtomicU32::new(0) } }; CLASSES];

/// The class at `index`.
pub fn class(index: usize) -> &'static Class {
    &ALL[index.min(CLASSES - 1)]
}

impl Class {
    /// The cache, if its allocations pop from the counted row.
    pub fn counting(&self) -> Option<&'static Core> {
        // SAFETY: null, or the cache of a class, which lives at its address for ever.
        unsafe { self.counting.load(SeqCst).as_ref() }
    }

    /// Sets the cache whose counted row the tables name.
    pub fn set_counting(&self, core: Option<&'static Core>) {
        let core = core.map_or(ptr::null_mut(), |core| (&raw const *core).cast_mut());
        self.counting.store(core, SeqCst);
    }

    /// Whether sized frees must not push into the class's own sheaf.
    pub fn has_samples(&self) -> bool {
        self.samples.load(SeqCst) > 0
    }

    /// Notes a sampled object. The caller then asks again whether a profile runs and the class may
    /// be sampled: otherwise the tables may have changed already, and it must undo this.
    pub fn add_sample(&self) {
        self.samples.fetch_add(1, SeqCst);
    }

    /// Notes the free of a sampled object; returns whether it was the last.
    pub fn remove_sample(&self) -> bool {
        self.samples.fetch_sub(1, SeqCst) == 1
    }
}

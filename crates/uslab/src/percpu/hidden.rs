//! Hidden sheaves: the fast path finds dummies alone. The short step (`step`) and the slow path use
//! the sheaves.
//!
//! ```text
//!   tables, page map ──▶ owner: dummy │ dummy │ …      pop and push fail
//!   slow path ─────────▶ slots: main  │ main  │ …      as without hiding
//! ```
//!
//! A hardened or debugged cache checks each call, so the fast path may serve none. The cache still
//! has sheaves. In rseq mode a row of dummies hides them, if the cache asks for it; start-up
//! decides whether caches get memory for such a row. In locked mode every cache hides its sheaves:
//! allocations name the common dummy slots, and the page map an owner of dummies
//! ([`super::owners`]).

use crate::os;
use crate::rseq::{LEAD, Mode, Slot, dummy_of, mode};
use crate::sync::CachePadded;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static ARE_ALLOWED: AtomicBool = AtomicBool::new(false);
static SHUFFLES_REFILLS: AtomicBool = AtomicBool::new(false);

/// Has refills shuffle their objects, a few at a time. Start-up calls it, as [`allow_hidden`].
pub fn shuffle_refills() {
    SHUFFLES_REFILLS.store(true, Relaxed);
}

/// Groups of objects that were shuffled so far: all CPUs write it, where refills are shuffled.
static SHUFFLES: CachePadded<AtomicU64> = CachePadded(AtomicU64::new(0));

/// Lets caches hide their sheaves ([`super::Parts::hides`]). Start-up calls it, before there is a
/// cache.
pub fn allow_hidden() {
    ARE_ALLOWED.store(true, Relaxed);
}

/// Whether caches may hide their sheaves.
pub fn is_allowed() -> bool {
    ARE_ALLOWED.load(Relaxed)
}

/// The slots with sheaves in the memory of a cache, whose rows are `distance` slots apart. If the
/// cache hides its sheaves (`hides`) in rseq mode, this writes the row of dummies before them,
/// except the first dummy, which is the owner.
///
/// # Safety
/// `slots` must be the memory of `CpuCache::owner`, and belong to the caller.
pub(super) unsafe fn slots_behind(slots: *mut u8, distance: usize, hides: bool) -> *mut Slot {
    // SAFETY: the caller's promise: the memory begins with the slots before the first row.
    let first = unsafe { slots.cast::<Slot>().add(LEAD) };
    let before = if hides && mode() == Mode::Rseq { distance } else { 0 };
    for cpu in 1..before {
        // SAFETY: the caller's promise: the memory has a slot for each of these.
        unsafe { first.add(cpu).write(Slot::holding(dummy_of(cpu))) };
    }
    // SAFETY: the memory has more slots behind these.
    unsafe { first.add(before) }
}

/// The objects of one group: a shuffle moves objects only within their group. A program walks its
/// objects mostly in the order in which it made them. A group is so small that the walk is as fast
/// as without a shuffle.
const SHUFFLED_TOGETHER: usize = 16;

/// Puts objects that come from slabs in random order, if that was chosen. Each stays within
/// [`SHUFFLED_TOGETHER`] places.
pub(super) fn shuffle(objects: &mut [*mut u8]) {
    if !SHUFFLES_REFILLS.load(Relaxed) {
        return;
    }
    let groups = objects.len().div_ceil(SHUFFLED_TOGETHER) as u64;
    let first = SHUFFLES.fetch_add(groups, Relaxed);
    for (group, objects) in (first..).zip(objects.chunks_mut(SHUFFLED_TOGETHER)) {
        let mut random = os::random::at(group);
        for at in (1..objects.len()).rev() {
            // The linear congruential generator of Knuth's MMIX; its upper half is random enough.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            objects.swap(at, (((random >> 32) * (at as u64 + 1)) >> 32) as usize);
        }
    }
}

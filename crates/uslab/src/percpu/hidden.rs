//! Hidden sheaves: the fast path finds dummies alone, and the slow path uses the sheaves.
//!
//! ```text
//!   tables, page map ──▶ owner: dummy │ dummy │ …      pop and push fail
//!   slow path ─────────▶ slots: main  │ main  │ …      as without hiding
//! ```
//!
//! A hardened process checks each call, and so takes the slow path each time. Its caches then still
//! have sheaves: in locked mode they are always hidden, by one slot; in rseq mode by a row of slots.

use crate::os;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static IS_ON: AtomicBool = AtomicBool::new(false);
/// Shuffles so far.
static SHUFFLES: AtomicU64 = AtomicU64::new(0);

/// Hides the sheaves of all caches. Start-up calls it, before there is a cache.
pub fn hide_sheaves() {
    IS_ON.store(true, Relaxed);
}

/// Whether sheaves are hidden.
pub(super) fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// Puts objects that come from slabs in random order, where sheaves are hidden.
pub(super) fn shuffle(objects: &mut [*mut u8]) {
    if !is_on() {
        return;
    }
    let place = SHUFFLES.fetch_add(1, Relaxed) << 16;
    for at in (1..objects.len()).rev() {
        objects.swap(at, os::random::at(place + at as u64) as usize % (at + 1));
    }
}

//! Whether free memory is bounded, and how the background thread learns that it should purge.

use super::decay;
use crate::os;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The background thread was woken to purge, and has not started.
static IS_NOTIFIED: AtomicBool = AtomicBool::new(false);
/// A limit counted mapped bytes when the background thread last looked.
static IS_MAPPING_LIMITED: AtomicBool = AtomicBool::new(false);

/// Whether free memory is bounded: it cannot wait until it is idle.
pub fn is_bounded() -> bool {
    !os::sleep::has_background_thread() || IS_MAPPING_LIMITED.load(Relaxed) || decay::is_at_once()
}

/// Finds out whether a limit counts mapped bytes. Makes a system call.
pub fn look_at_limits() {
    IS_MAPPING_LIMITED.store(os::memory::is_mapping_limited(), Relaxed);
}

/// Wakes the background thread, which will purge.
pub fn notify() {
    // A load first, so that `swap` writes rarely: every slow path reads this cache line.
    if !IS_NOTIFIED.load(Relaxed) && !IS_NOTIFIED.swap(true, Relaxed) {
        os::sleep::wake();
    }
}

/// Takes the notice of [`notify`]; returns whether there was one.
pub fn take_notice() -> bool {
    IS_NOTIFIED.swap(false, Relaxed)
}

/// Has the background thread purge: the process took fresh pages, and holds more than it needs.
/// Called under the buddy's lock.
pub fn note_too_large() {
    if !is_bounded() && decay::period_ms().is_some() {
        notify();
    }
}

//! Whether free memory is bounded (see `purge`), and how other threads ask the background thread to
//! purge.

use super::{PAGE_BYTES, decay};
use crate::os;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Fresh pages after which the background thread searches for caches that are nearly free: 4 MiB.
pub(super) const GROWTH_PAGES: usize = (4 << 20) / PAGE_BYTES;

/// The background thread was woken to purge, and has not started.
static IS_NOTIFIED: AtomicBool = AtomicBool::new(false);
/// The process took [`GROWTH_PAGES`] fresh pages since the last [`begin_growth`].
static HAS_GROWN: AtomicBool = AtomicBool::new(false);
/// A limit counted mapped bytes when the background thread last checked.
static IS_MAPPING_LIMITED: AtomicBool = AtomicBool::new(false);

/// Whether free memory is bounded: it cannot wait until it is idle.
pub fn is_bounded() -> bool {
    !os::sleep::has_background_thread() || IS_MAPPING_LIMITED.load(Relaxed) || decay::is_at_once()
}

/// Finds out whether a limit counts mapped bytes. Makes a system call.
pub fn check_limits() {
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

/// Has the background thread search for caches that are nearly free: the process took
/// [`GROWTH_PAGES`] fresh pages. Called under the buddy's lock.
pub fn note_growth() {
    if !is_bounded() && decay::period_ms().is_some() && !HAS_GROWN.swap(true, Relaxed) {
        os::sleep::wake();
    }
}

/// Whether the process has grown since [`begin_growth`].
pub fn has_grown() -> bool {
    HAS_GROWN.load(Relaxed)
}

/// Growth counts from now on: the background thread begins a search.
pub fn begin_growth() {
    HAS_GROWN.store(false, Relaxed);
}

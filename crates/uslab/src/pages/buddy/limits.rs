//! The limits on held memory: pages in use, and free pages with memory behind them.

use super::{BUDDY, Buddy, NO_LIMIT};
use crate::counters;
use crate::os::probe;
use crate::pages::PAGE_BYTES;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A copy of [`Buddy::soft_pages`], for readers without the lock.
static SOFT_PAGES: AtomicUsize = AtomicUsize::new(NO_LIMIT);

impl Buddy {
    /// Tells tools of an allocation of more pages than the hard limit allows in all.
    pub(super) fn note_impossible(&self, pages: usize) {
        if pages > self.hard_pages {
            probe::limit_hit(|| [pages * PAGE_BYTES, (self.used_pages + self.dirty_pages) * PAGE_BYTES]);
        }
    }
}

/// Sets the limits on held memory, in bytes; 0 for no limit.
pub fn set_limits(soft_bytes: usize, hard_bytes: usize) {
    let pages = |bytes: usize| if bytes == 0 { NO_LIMIT } else { bytes / PAGE_BYTES };
    let mut buddy = BUDDY.lock();
    (buddy.soft_pages, buddy.hard_pages, buddy.is_soft_notified) =
        (pages(soft_bytes), pages(hard_bytes), false);
    SOFT_PAGES.store(buddy.soft_pages, Relaxed);
    let header = counters::header();
    header.soft_limit_bytes.store(soft_bytes as u64, Relaxed);
    header.hard_limit_bytes.store(hard_bytes as u64, Relaxed);
}

/// Returns the soft limit in bytes, if there is one. The next allocation beyond it wakes the
/// background thread again.
pub fn soft_limit_bytes() -> Option<usize> {
    let mut buddy = BUDDY.lock();
    buddy.is_soft_notified = false;
    (buddy.soft_pages != NO_LIMIT).then(|| buddy.soft_pages * PAGE_BYTES)
}

/// Whether there is a soft limit. Takes no lock, and wakes no thread.
pub fn has_soft_limit() -> bool {
    SOFT_PAGES.load(Relaxed) != NO_LIMIT
}

/// Whether held memory exceeds the soft limit. Takes no lock, and wakes no thread.
pub fn is_beyond_soft() -> bool {
    held_bytes() / PAGE_BYTES > SOFT_PAGES.load(Relaxed)
}

/// Held memory, in bytes, as the limits count it: pages in use, and free pages with memory behind
/// them. Takes no lock.
pub fn held_bytes() -> usize {
    let header = counters::header();
    (header.used_bytes.load(Relaxed) + header.dirty_bytes.load(Relaxed)) as usize
}

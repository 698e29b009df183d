//! The schedule of the background thread's ticks for idle memory.
//!
//! Two ticks are half a second apart. While the process takes fresh pages, the thread also searches
//! ten times a second for caches that are nearly free. It releases their slabs, so that the process
//! takes those pages instead of fresh ones.

use super::trim;
use crate::percpu::adapt;
use crate::{os, pages};

/// Time between two ticks.
pub(crate) const TICK_MS: u64 = pages::decay::TICK_MS;
/// Least time between two searches for caches that are nearly free.
const SEARCH_TICK_MS: u64 = 100;

/// The schedule of ticks: half a second apart, however often the background thread is woken.
pub(crate) struct Ticks {
    next_ms: u64,
    /// The last search for caches that are nearly free, or the last tick.
    searched_ms: u64,
    is_quiet: bool,
}

impl Ticks {
    /// A schedule whose first tick is a tick away.
    pub fn new() -> Ticks {
        let now_ms = os::clock::coarse_ms();
        Ticks { next_ms: now_ms + TICK_MS, searched_ms: now_ms, is_quiet: false }
    }

    /// Time to sleep until the next tick; at least 1.
    pub fn left_ms(&self) -> u64 {
        let next_ms = if pages::has_grown() { self.next_ms.min(self.next_search_ms()) } else { self.next_ms };
        pages::decay::due_ms(next_ms).saturating_sub(os::clock::coarse_ms()).max(1)
    }

    fn next_search_ms(&self) -> u64 {
        self.searched_ms + SEARCH_TICK_MS
    }

    /// Whether the last tick found nothing to do, and left nothing to do.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Takes the capacity that growing caches wait for. If it is time for a tick, trims idle
    /// memory. Otherwise purges what cannot wait. While the process grows, it also releases slabs
    /// of caches that are nearly free, and moves resident chunks into huge pages.
    pub fn tick(&mut self) {
        adapt::search();
        let now_ms = os::clock::coarse_ms();
        if now_ms >= self.next_ms {
            self.note_search(now_ms);
            self.is_quiet = trim::trim_idle();
            self.next_ms = now_ms + TICK_MS;
            return;
        }
        pages::purge_due(pages::rested());
        self.is_quiet = false;
        if pages::has_grown() && now_ms >= self.next_search_ms() {
            self.note_search(now_ms);
            trim::drain_sparse();
            pages::collapse_resident();
        }
    }

    fn note_search(&mut self, now_ms: u64) {
        pages::begin_growth();
        self.searched_ms = now_ms;
    }
}

//! The schedule of the background thread's looks for idle memory.

use super::trim;
use crate::{os, pages};

/// Time between two looks.
pub(crate) const TICK_MS: u64 = 500;

/// The schedule of looks: half a second apart, however often the background thread is woken.
pub(crate) struct Looks {
    next_ms: u64,
    is_quiet: bool,
}

impl Looks {
    /// A schedule whose first look is a tick away.
    pub fn new() -> Looks {
        Looks { next_ms: os::clock::coarse_ms() + TICK_MS, is_quiet: false }
    }

    /// Time to sleep until the next look; at least 1.
    pub fn left_ms(&self) -> u64 {
        self.next_ms.saturating_sub(os::clock::coarse_ms()).max(1)
    }

    /// Whether the last look found nothing to do, and left nothing to do.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// If it is time for a look, trims idle memory. Otherwise purges only the dirty pages beyond
    /// their limit.
    pub fn look(&mut self) {
        let now_ms = os::clock::coarse_ms();
        if now_ms < self.next_ms {
            pages::purge_excess();
            self.is_quiet = false;
        } else {
            self.is_quiet = trim::trim_idle();
            self.next_ms = now_ms + TICK_MS;
        }
    }
}

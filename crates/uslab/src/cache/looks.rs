//! When the background thread looks for what idles, and what it found.

use super::trim;
use crate::{os, pages};

/// Time between two looks.
pub(crate) const TICK_MS: u64 = 500;

/// The looks of the background thread: half a second apart, however often it is woken.
pub(crate) struct Looks {
    next_ms: u64,
    is_quiet: bool,
}

impl Looks {
    /// The first one is a tick away.
    pub fn new() -> Looks {
        Looks { next_ms: os::clock::coarse_ms() + TICK_MS, is_quiet: false }
    }

    /// Time to sleep until the next one, not 0.
    pub fn left_ms(&self) -> u64 {
        pages::decay::due_ms(self.next_ms).saturating_sub(os::clock::coarse_ms()).max(1)
    }

    /// Whether the last one found nothing to do and nothing left.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Looks, if it is time to; otherwise purges what cannot wait.
    pub fn look(&mut self) {
        let now_ms = os::clock::coarse_ms();
        if now_ms < self.next_ms {
            pages::purge_due();
            self.is_quiet = false;
        } else {
            self.is_quiet = trim::trim_idle();
            self.next_ms = now_ms + TICK_MS;
        }
    }
}

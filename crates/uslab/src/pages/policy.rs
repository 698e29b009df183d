//! The purge policy: the free memory that stays resident, and the time after which [`super::purge`]
//! tries locked pages again.

use super::PAGE_BYTES;
use super::chunk::Chunk;
use super::decay::{self, Window};
use crate::os;

/// Dirty pages that stay while pages are in use: 512 KiB.
pub(super) const BASE_PAGES: usize = (512 << 10) / PAGE_BYTES;
/// Period after which refusals of the system are forgotten and the chunks are tried again.
pub(super) const REFUSAL_MS: u64 = 10_000;
/// Upper bound of the learnt part of the allowance: 512 MiB.
const MAX_LEARNT_PAGES: usize = (512 << 20) / PAGE_BYTES;

/// The allowance and the period of refusals. Guarded by the buddy's lock.
pub(super) struct Policy {
    /// Dirty pages beyond [`BASE_PAGES`] that the allowance adds.
    learnt_pages: usize,
    /// Purged pages that no allocation has taken again.
    pub purged_pages: usize,
    last_ms: u64,
    /// The dirty pages that were idle, period by period.
    pub window: Window,
    /// Dirty pages that stayed when a purge tried all free ones.
    pub settled_pages: usize,
    /// An allocation took pages without memory, and that growth has not been judged yet.
    pub has_grown: bool,
    /// Pages without memory that allocations took since [`super::bound::note_growth`].
    pub fresh_pages: usize,
    /// The chunk at which the next purge starts.
    pub cursor: usize,
    /// The current period of [`REFUSAL_MS`], and when it began. Never 0.
    pub period: u32,
    period_ms: u64,
}

impl Policy {
    pub const fn new() -> Policy {
        Policy {
            learnt_pages: 0,
            purged_pages: 0,
            last_ms: 0,
            window: Window::new(),
            settled_pages: usize::MAX,
            has_grown: false,
            fresh_pages: 0,
            cursor: 0,
            period: 1,
            period_ms: 0,
        }
    }

    /// Whether the system refused to purge the chunk in this period.
    pub fn is_locked(&self, chunk: &Chunk) -> bool {
        chunk.refused_in == self.period
    }

    /// Notes that an allocation took `pages` pages without memory behind them.
    pub fn note_fresh(&mut self, pages: usize) {
        self.has_grown |= pages > 0;
        self.fresh_pages += pages;
        let retaken = pages.min(self.purged_pages);
        self.purged_pages -= retaken;
        // Half of them: in a single wave of frees some pages come and go by chance, and the
        // allowance should learn little from that.
        self.learnt_pages = (self.learnt_pages + retaken / 2).min(MAX_LEARNT_PAGES);
    }

    /// Lets `pages` free pages stay for now: those that a fork child finds.
    pub fn keep(&mut self, pages: usize) {
        self.learnt_pages = self.learnt_pages.max(pages);
        self.last_ms = os::clock::coarse_ms();
    }

    /// Where free memory is bounded, the dirty pages that may stay.
    pub fn allowance_pages(&self) -> usize {
        match decay::ms() {
            None => usize::MAX,
            Some(0) => 0,
            Some(_) => BASE_PAGES + self.learnt_pages,
        }
    }

    /// Begins a new period, which forgets all refusals, if the current one is over. Returns whether
    /// it did.
    pub fn forget_refusals(&mut self, now_ms: u64) -> bool {
        let is_over = now_ms.saturating_sub(self.period_ms) >= REFUSAL_MS;
        if is_over {
            (self.period, self.period_ms) = (self.period.wrapping_add(1).max(1), now_ms);
        }
        is_over
    }

    /// Halves what was learnt, once for each second that passed.
    pub fn halve_allowance(&mut self, now_ms: u64) {
        let seconds = now_ms.saturating_sub(self.last_ms) / 1000;
        if seconds > 0 {
            let shift = seconds.min(31) as u32;
            self.learnt_pages >>= shift;
            self.purged_pages >>= shift;
            self.last_ms = now_ms;
        }
    }
}

/// How a purge treats locked pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// Leaves them; the first refusal ends the purge.
    Stay,
    /// Purges them like other pages, where the kernel can.
    Go,
}

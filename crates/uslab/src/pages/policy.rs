//! How much free memory stays, when the background thread is told, and when [`super::purge`] tries
//! locked pages again.

use super::PAGE_BYTES;
use super::chunk::Chunk;
use super::decay::{self, Window};
use crate::os;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Dirty pages that stay while pages are in use: 512 KiB.
pub(super) const BASE_PAGES: usize = (512 << 10) / PAGE_BYTES;
/// A chunk whose purge was refused is tried again after so long.
pub(super) const REFUSAL_MS: u64 = 10_000;
/// Most that the limit can learn: 512 MiB.
const MAX_LEARNT_PAGES: usize = (512 << 20) / PAGE_BYTES;

/// The background thread knows that there is something to purge.
static IS_NOTIFIED: AtomicBool = AtomicBool::new(false);
/// A limit counted what is mapped when the background thread last looked.
static IS_MAPPING_LIMITED: AtomicBool = AtomicBool::new(false);

/// Wakes the background thread, which will purge.
pub(super) fn notify() {
    // A load first, so that `swap` writes rarely: every slow path reads this cache line.
    if !IS_NOTIFIED.load(Relaxed) && !IS_NOTIFIED.swap(true, Relaxed) {
        os::sleep::wake();
    }
}

/// The process took fresh pages, and holds more than it needs. Called with the buddy's lock held.
pub(super) fn note_too_large() {
    if !is_bounded() && decay::period_ms().is_some() {
        notify();
    }
}

/// Whether free memory has a limit: it cannot wait until it is idle.
pub(super) fn is_bounded() -> bool {
    !os::sleep::has_background_thread() || IS_MAPPING_LIMITED.load(Relaxed) || decay::is_at_once()
}

/// Whether the background thread was told, which counts as heard now.
pub(super) fn take_notice() -> bool {
    IS_NOTIFIED.load(Relaxed) && IS_NOTIFIED.swap(false, Relaxed)
}

/// Records whether a limit counts what is mapped.
pub(super) fn set_mapping_limited(is_limited: bool) {
    IS_MAPPING_LIMITED.store(is_limited, Relaxed);
}

/// What was learnt, and what the system refused; under the buddy's lock.
pub(super) struct Policy {
    /// Pages beyond [`BASE_PAGES`] that may stay.
    learnt_pages: usize,
    /// Purged pages that have not been asked for again.
    pub regret_pages: usize,
    last_ms: u64,
    /// What is idle.
    pub window: Window,
    /// Dirty pages that stayed when all that was free was tried.
    pub settled_pages: usize,
    /// Pages without memory were handed out, and the growth has not been judged yet.
    pub has_grown: bool,
    /// The chunk at which the next purge begins.
    pub cursor: usize,
    /// The current period of [`REFUSAL_MS`], and when it began. Never 0.
    pub period: u32,
    period_ms: u64,
}

impl Policy {
    pub const fn new() -> Policy {
        Policy {
            learnt_pages: 0,
            regret_pages: 0,
            last_ms: 0,
            window: Window::new(),
            settled_pages: usize::MAX,
            has_grown: false,
            cursor: 0,
            period: 1,
            period_ms: 0,
        }
    }

    /// Whether the system refused to purge the chunk in this period.
    pub fn is_locked(&self, chunk: &Chunk) -> bool {
        chunk.refused_in == self.period
    }

    /// `pages` pages without memory were handed out.
    pub fn note_fresh(&mut self, pages: usize) {
        self.has_grown |= pages > 0;
        let regretted = pages.min(self.regret_pages);
        self.regret_pages -= regretted;
        // Half, so that a single wave of frees, in which some pages come and go by chance, teaches
        // little.
        self.learnt_pages = (self.learnt_pages + regretted / 2).min(MAX_LEARNT_PAGES);
    }

    /// Lets `pages` free pages stay for now: those that a fork child finds.
    pub fn keep(&mut self, pages: usize) {
        self.learnt_pages = self.learnt_pages.max(pages);
        self.last_ms = os::clock::coarse_ms();
    }

    /// Where free memory is bounded, the dirty pages that may stay.
    pub fn limit_pages(&self) -> usize {
        match decay::ms() {
            None => usize::MAX,
            Some(0) => 0,
            Some(_) => BASE_PAGES + self.learnt_pages,
        }
    }

    /// Begins a new period if this one is over: refusals are forgotten. Says whether.
    pub fn forget_refusals(&mut self, now_ms: u64) -> bool {
        let is_over = now_ms.saturating_sub(self.period_ms) >= REFUSAL_MS;
        if is_over {
            (self.period, self.period_ms) = (self.period.wrapping_add(1).max(1), now_ms);
        }
        is_over
    }

    pub fn decay(&mut self, now_ms: u64) {
        let seconds = now_ms.saturating_sub(self.last_ms) / 1000;
        if seconds > 0 {
            let shift = seconds.min(31) as u32;
            self.learnt_pages >>= shift;
            self.regret_pages >>= shift;
            self.last_ms = now_ms;
        }
    }
}

/// What becomes of locked pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// They stay; the first refusal ends the purge.
    Stay,
    /// They go like others, where the kernel can.
    Go,
}

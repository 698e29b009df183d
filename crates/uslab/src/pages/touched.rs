//! Whether programs touch all of their large runs, as far as those that were freed show.
//!
//! A table of which only some entries are used must not get huge pages: each touch would bring 2 MiB.
//! The kernel can tell which pages of a run with small pages were touched. The library asks it about
//! the last chunk of a run that is freed or moved, now and then. Large runs get huge pages while the
//! answer is "all of them", and every eighth does not, so that there are answers.

use super::arena::{self, PageIndex};
use super::{CHUNK_PAGES, buddy, huge};
use crate::os;
use crate::os::config::HugePages;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Time between two questions: each costs microseconds.
const INTERVAL_MS: u64 = 10;
/// Dense runs in a row after which others are expected to be dense.
const ENOUGH: u8 = 2;
/// Pages of a dense chunk that may be untouched.
const MAX_UNTOUCHED: usize = CHUNK_PAGES / 64;
/// One run in so many keeps small pages.
const TRIAL_SHARE: u8 = 8;

static DENSE_IN_A_ROW: AtomicU8 = AtomicU8::new(0);
static ASKED_MS: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicU8 = AtomicU8::new(0);

/// Whether a large run should get huge pages. Called under the buddy's lock.
pub(super) fn expects_dense() -> bool {
    let run = RUNS.load(Relaxed).wrapping_add(1);
    RUNS.store(run, Relaxed);
    DENSE_IN_A_ROW.load(Relaxed) >= ENOUGH && !run.is_multiple_of(TRIAL_SHARE)
}

/// Learns from a run that its owner frees or moves now. The caller holds no lock.
pub fn learn(first: PageIndex, pages: usize) {
    if pages < CHUNK_PAGES || huge::mode() != HugePages::Auto || !os::huge::is_available() {
        return;
    }
    let now_ms = os::clock::coarse_ms();
    if now_ms.saturating_sub(ASKED_MS.load(Relaxed)) < INTERVAL_MS {
        return;
    }
    ASKED_MS.store(now_ms, Relaxed);
    let Some(index) = buddy::lock().last_small_chunk(first, pages) else { return };
    let dense = if is_touched(index) { DENSE_IN_A_ROW.load(Relaxed).saturating_add(1) } else { 0 };
    DENSE_IN_A_ROW.store(dense, Relaxed);
}

/// Whether nearly all pages of a chunk with small pages have memory. Makes a system call.
pub(super) fn is_touched(index: usize) -> bool {
    let mut residence = [0u8; CHUNK_PAGES];
    let is_known = os::memory::residence(arena::address_of_chunk(index), &mut residence);
    let touched = residence.iter().filter(|&&page| page & 1 != 0).count();
    is_known && touched + MAX_UNTOUCHED >= CHUNK_PAGES
}

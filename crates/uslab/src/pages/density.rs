//! Whether programs touch all of their large runs, as far as those that were freed show.
//!
//! A table of which only some entries are used must not get huge pages: each touch would bring
//! 2 MiB. Large runs get them while those that were freed had been touched in full. Every eighth
//! keeps small pages, of which the kernel can tell (see `touched`), so that there are answers.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Dense runs in a row after which others are expected to be dense.
const ENOUGH: u8 = 2;
/// One run in so many keeps small pages.
const TRIAL_SHARE: u8 = 8;

static DENSE_IN_A_ROW: AtomicU8 = AtomicU8::new(0);
static RUNS: AtomicU8 = AtomicU8::new(0);

/// Whether a large run should get huge pages. Called under the buddy's lock.
pub fn is_expected() -> bool {
    let run = RUNS.load(Relaxed).wrapping_add(1);
    RUNS.store(run, Relaxed);
    DENSE_IN_A_ROW.load(Relaxed) >= ENOUGH && !run.is_multiple_of(TRIAL_SHARE)
}

/// Notes whether a large run was touched in full.
pub fn note(is_dense: bool) {
    let dense = if is_dense { DENSE_IN_A_ROW.load(Relaxed).saturating_add(1) } else { 0 };
    DENSE_IN_A_ROW.store(dense, Relaxed);
}

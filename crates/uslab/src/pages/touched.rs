//! Which pages of a chunk with small pages were touched: the kernel can tell.
//!
//! The library asks about the last chunk of a large run that is freed or moved, now and then, and
//! so learns whether the program touches all of such runs (see `density`).

use super::arena::{self, PageIndex};
use super::{CHUNK_PAGES, buddy, density, huge};
use crate::os;
use crate::os::config::HugePages;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Time between two questions: each costs microseconds.
const INTERVAL_MS: u64 = 10;
/// Pages of a dense chunk that may be untouched.
const MAX_UNTOUCHED: usize = CHUNK_PAGES / 64;

static ASKED_MS: AtomicU64 = AtomicU64::new(0);

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
    density::note(is_touched(index));
}

/// Whether nearly all pages of a chunk with small pages have memory. Makes a system call.
pub(super) fn is_touched(index: usize) -> bool {
    let mut residence = [0u8; CHUNK_PAGES];
    let is_known = os::memory::residence(arena::address_of_chunk(index), &mut residence);
    let touched = residence.iter().filter(|&&page| page & 1 != 0).count();
    is_known && touched + MAX_UNTOUCHED >= CHUNK_PAGES
}

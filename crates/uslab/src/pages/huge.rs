//! Whether huge pages may back chunks: the program's choice.
//!
//! How a chunk gets its huge page, and when it is split, is told in `buddy/huge.rs`.

use super::CHUNK_PAGES;
use crate::os::config::HugePages;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A heap that has less in use gets small pages: 20 MiB. On average half of its last huge page is
/// unused, which must not exceed a twentieth of the heap.
pub(super) const MIN_USED_PAGES: usize = 10 * CHUNK_PAGES;

/// Of what is held, one part in so many may stay free in chunks that huge pages back.
pub(super) const KEPT_SHARE: usize = 40;

const NOT_CHOSEN: u8 = u8::MAX;

static MODE: AtomicU8 = AtomicU8::new(NOT_CHOSEN);

/// Chooses for chunks that are touched first from now on.
pub fn set_mode(mode: HugePages) {
    MODE.store(mode as u8, Relaxed);
}

/// Chooses as [`set_mode`], unless the program has chosen already.
pub fn set_default_mode(mode: HugePages) {
    let _ = MODE.compare_exchange(NOT_CHOSEN, mode as u8, Relaxed, Relaxed);
}

pub(super) fn mode() -> HugePages {
    match MODE.load(Relaxed) {
        mode if mode == HugePages::Never as u8 => HugePages::Never,
        mode if mode == HugePages::Always as u8 => HugePages::Always,
        _ => HugePages::Auto,
    }
}

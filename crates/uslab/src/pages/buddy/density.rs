//! Whether the program touches what it allocates, measured on chunks with small pages.
//!
//! Objects beyond a page may stay untouched in part, and a huge page would give all of them memory.
//! So a few of the chunks that serve them keep small pages: the probes. The kernel tells how much
//! of a probe is resident. While nearly all of the last finished probe is, the next chunks get huge
//! pages, up to a quota; then another chunk becomes a probe.
//!
//! ```text
//!   chunks that serve objects beyond a page, in the order in which they were opened
//!
//!     probe   huge  huge  huge   probe   huge  huge   …
//!       ▲                          ▲
//!     `before`: decides now      `last`: still being filled
//! ```
//!
//! A program that stops touching its memory is found out after two quotas. Chunks of a run that was
//! taken at once are probes without memory at first, so most of a long run keeps small pages.

use super::arena;
use crate::os;
use crate::pages::chunk::NONE;
use crate::pages::{CHUNK_BYTES, CHUNK_PAGES};

/// A dense probe has memory behind all its pages but one in so many.
const ABSENT_SHARE: usize = 16;
/// Of the chunks in use, one in so many may get a huge page because of one probe. Probes split the
/// mapping of the arena, so a large heap must not have more of them than this leaves.
const QUOTA_SHARE: usize = 8;

/// The last two probes. Guarded by the buddy's lock.
pub(super) struct Probes {
    before: u32,
    last: u32,
    /// Chunks that got huge pages since `last` was opened.
    backed: usize,
}

impl Probes {
    pub const fn new() -> Probes {
        Probes { before: NONE, last: NONE, backed: 0 }
    }

    /// Chunk `index` is opened for objects beyond a page, and keeps small pages.
    pub fn note_small(&mut self, index: usize) {
        *self = Probes { before: self.last, last: index as u32, backed: 0 };
    }

    /// Whether the next chunk may get a huge page, and counts it if so; `used_pages` are in use.
    /// Makes a system call.
    pub fn count_huge_if_dense(&mut self, used_pages: usize) -> bool {
        let quota = (used_pages / CHUNK_PAGES / QUOTA_SHARE).max(1);
        if self.backed >= quota || self.before == NONE {
            return false;
        }
        let start = arena::address_of_chunk(self.before as usize);
        let resident_bytes = os::memory::resident_bytes::<CHUNK_BYTES>(start);
        let is_dense = resident_bytes >= CHUNK_BYTES - CHUNK_BYTES / ABSENT_SHARE;
        self.backed += usize::from(is_dense);
        is_dense
    }
}

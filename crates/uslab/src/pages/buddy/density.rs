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
//! taken at once are probes without memory at first, so most of a long run keeps small pages. While
//! the run is taken, the kernel is asked at most once about a probe, and about none inside the run.

use super::arena;
use crate::os;
use crate::pages::chunk::NONE;
use crate::pages::{CHUNK_BYTES, CHUNK_PAGES};
use core::ops::Range;

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
    /// The whole chunks of the run in several chunks that is being taken; none at other times.
    run: Range<usize>,
    /// While such a run is taken: whether `before` is dense, if the kernel was asked.
    is_before_dense: Option<bool>,
}

impl Probes {
    pub const fn new() -> Probes {
        Probes { before: NONE, last: NONE, backed: 0, run: 0..0, is_before_dense: None }
    }

    /// A run of which these are the whole chunks is about to be taken, under one hold of the lock.
    pub fn begin_run(&mut self, chunks: Range<usize>) {
        (self.run, self.is_before_dense) = (chunks, None);
    }

    /// The run is taken.
    pub fn end_run(&mut self) {
        self.begin_run(0..0);
    }

    /// Chunk `index` is opened for objects beyond a page, and keeps small pages.
    pub fn note_small(&mut self, index: usize) {
        (self.before, self.last, self.backed) = (self.last, index as u32, 0);
        self.is_before_dense = None;
    }

    /// Whether the next chunk may get a huge page, and counts it if so; `used_pages` are in use.
    /// Makes system calls.
    pub fn count_huge_if_dense(&mut self, used_pages: usize) -> bool {
        let quota = (used_pages / CHUNK_PAGES / QUOTA_SHARE).max(1);
        if self.backed >= quota || self.before == NONE {
            return false;
        }
        let is_dense = self.is_before_dense.unwrap_or_else(|| self.ask());
        if !self.run.is_empty() {
            self.is_before_dense = Some(is_dense);
        }
        self.backed += usize::from(is_dense);
        is_dense
    }

    /// Asks the kernel whether `before` is dense, unless it is a chunk of the run, which the
    /// program has not got yet, or the kernel may not be asked.
    fn ask(&self) -> bool {
        let before = self.before as usize;
        if self.run.contains(&before) || !os::filter::may_ask_residence() {
            return false;
        }
        let resident_bytes = os::memory::resident_bytes::<CHUNK_BYTES>(arena::address_of_chunk(before));
        resident_bytes >= CHUNK_BYTES - CHUNK_BYTES / ABSENT_SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{self, Fill, Temperature};

    #[test]
    fn while_a_run_is_taken_the_kernel_is_asked_once_about_a_probe_and_about_none_inside() {
        set_up!();
        let run = pages::alloc(CHUNK_PAGES, 9, Temperature::Cold, Fill::Unknown).expect("there is room");
        let start = arena::address_of(run.first);
        let index = run.first.0 as usize / CHUNK_PAGES;
        // SAFETY: the run is the test's.
        unsafe { start.write_bytes(1, CHUNK_BYTES) };
        let mut probes = Probes::new();
        let is_dense = |probes: &mut Probes| probes.count_huge_if_dense(usize::MAX);
        [index, index + 1].into_iter().for_each(|index| probes.note_small(index));
        let is_dense_at_first = is_dense(&mut probes);
        assert_eq!(is_dense_at_first, os::filter::may_ask_residence());
        probes.begin_run(index..index + 2);
        assert!(!is_dense(&mut probes), "a probe inside the run");
        probes.begin_run(index + 1..index + 3);
        assert_eq!(is_dense(&mut probes), is_dense_at_first);
        // SAFETY: the run is the test's, which reads none of it.
        assert!(unsafe { os::memory::purge(start, CHUNK_BYTES) });
        assert_eq!(is_dense(&mut probes), is_dense_at_first, "the answer stands while the run is taken");
        probes.end_run();
        assert!(!is_dense(&mut probes), "the kernel is asked anew");
        pages::free(run.first, CHUNK_PAGES, Temperature::Cold);
    }
}

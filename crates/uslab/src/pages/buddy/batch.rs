//! Several runs under one hold of the lock: what a CPU's page lists take and give at a time.
//!
//! A chunk leaves its list and comes back once for all of its runs in a batch. These two steps are
//! most of the cost of a run.

use super::{Buddy, nodes};
use crate::os::invariant::invariant;
use crate::pages::home::Home;
use crate::pages::{CHUNK_PAGES, arena, chunk};

impl Buddy {
    /// Takes runs of `2^order` pages out of one chunk, the fullest with room: as many as fit `out`
    /// and the chunk has. Puts them there from the highest address down. Returns how many, and
    /// which of them are known to be zero, as bits.
    ///
    /// Makes no system call: returns 0 where no chunk with memory has room, or a limit is near.
    pub fn alloc_batch(&mut self, order: u32, out: &mut [u32]) -> (usize, u32) {
        let pages = 1 << order;
        let held = self.used_pages + self.dirty_pages + out.len() * pages;
        let Some(index) = self.fullest_with(order, Home::here()) else { return (0, 0) };
        // A chunk without memory needs a system call, which chooses its backing.
        // SAFETY: a listed chunk is committed; `&mut self` is the lock. The reference ends here.
        let is_untouched = unsafe { nodes::is_untouched(&*arena::chunk(index)) };
        if is_untouched || held > self.soft_pages.min(self.hard_pages) {
            return (0, 0);
        }
        self.unlink(index);
        // SAFETY: as above; until `link`, no other code refers to the chunk.
        let chunk = unsafe { &mut *arena::chunk(index) };
        if chunk.is_all_free() {
            chunk.sparse_pages = Some(0);
        }
        let (mut count, mut zero, mut fresh) = (0, 0, 0);
        while let Some(first) = chunk::find(&chunk.free, order).filter(|_| count < out.len()) {
            let zero_pages = chunk.claim(first, pages);
            fresh += if chunk.is_huge { 0 } else { zero_pages };
            zero = zero << 1 | u32::from(zero_pages == pages);
            out[count] = (index * CHUNK_PAGES + first) as u32;
            count += 1;
        }
        invariant!(count > 0, "a listed chunk has room for its order", index);
        out[..count].reverse();
        self.policy.note_fresh(fresh);
        self.link(index);
        self.used_pages += count * pages;
        self.operations = self.operations.saturating_add(1);
        self.publish();
        (count, zero)
    }

    /// Takes runs of `2^order` pages back; bit `n` of `zero` says that run `n` came from
    /// [`Buddy::alloc_batch`] as zero, and was not touched since. False, with some not taken back,
    /// if part of one is free already.
    pub fn free_batch(&mut self, order: u32, runs: &[u32], zero: u32) -> bool {
        let pages = 1 << order;
        let chunk_of = |first: u32| first as usize / CHUNK_PAGES;
        let mut at = 0;
        for of_chunk in runs.chunk_by(|&a, &b| chunk_of(a) == chunk_of(b)) {
            let ok = self.with_chunk(chunk_of(of_chunk[0]), |chunk| {
                of_chunk.iter().enumerate().all(|(n, &first)| {
                    let first = first as usize % CHUNK_PAGES;
                    let is_untouched = zero >> (at + n) & 1 != 0;
                    if is_untouched {
                        chunk.free_untouched(first, pages)
                    } else {
                        chunk.free(first, pages, false)
                    }
                })
            });
            if !ok {
                return false;
            }
            at += of_chunk.len();
        }
        invariant!(self.used_pages >= at * pages, "no more pages come back than are in use", at);
        self.used_pages -= at * pages;
        self.operations = self.operations.saturating_add(1);
        self.publish();
        true
    }
}

//! Which chunks are wholly free, which of these have memory, and which chunks a purge finds pages
//! in.
//!
//! ```text
//!   whole     …0000 0000 0110 1111…      bit n: chunk n is wholly free, mapped or not
//!   backed    …0000 0000 0010 0011…      bit n: it also has dirty pages
//!   dirty     …0110 1000 0010 0011…      bit n: chunk n, wholly free or not, has dirty pages, and
//!                                        no huge page that a purge of them would split
//!   huge      …0000 0001 0000 0000…      bit n: chunk n has dirty pages, and such a huge page
//!   summary   …0 1…                      bit n: word n has a bit; one for each of the four
//! ```
//!
//! Allocations take the lowest chunk, and purges the highest, so that rows of chunks stay whole and
//! the chunks that serve next keep their memory. A search skips 4096 chunks at a step where no bit
//! is set. Guarded by the buddy's lock; the bits of chunks beyond the arena's bound are 0.

use crate::pages::CHUNK_BYTES;
use crate::pages::layout::MAX_DATA_BYTES;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORDS: usize = (MAX_DATA_BYTES / CHUNK_BYTES).div_ceil(64);
const SUMMARIES: usize = WORDS.div_ceil(64);

/// Static memory of zeroes, of which a page of `groups` is touched for each 10.6 GiB of the arena,
/// and one of `areas` for each 186 GiB. In the section of large tables; see `rseq/layout.rs`.
#[unsafe(link_section = ".bss.uslab_tables")]
pub(super) static TABLES: Tables =
    Tables { groups: [const { Group::new() }; WORDS], areas: [const { Area::new() }; SUMMARIES] };

/// All indices stand side by side, so that a small process touches few pages of them.
pub(super) struct Tables {
    pub groups: [Group; WORDS],
    pub areas: [Area; SUMMARIES],
}

/// What the indices know of 64 chunks.
pub(super) struct Group {
    bits: [AtomicU64; INDICES],
    /// See `lengths`.
    pub bounds: [[AtomicU8; 8]; 2],
}

/// What the indices know of 64 groups.
pub(super) struct Area {
    bits: [AtomicU64; INDICES],
    /// The groups of which all chunks are wholly free.
    whole: AtomicU64,
    /// See `lengths`.
    pub bounds: [[AtomicU8; 64]; 2],
    /// See `lengths`.
    pub most: [AtomicU8; 2],
}

impl Group {
    const fn new() -> Group {
        Group {
            bits: [const { AtomicU64::new(0) }; INDICES],
            bounds: [const { [const { AtomicU8::new(0) }; 8] }; 2],
        }
    }
}

impl Area {
    const fn new() -> Area {
        Area {
            bits: [const { AtomicU64::new(0) }; INDICES],
            whole: AtomicU64::new(0),
            bounds: [const { [const { AtomicU8::new(0) }; 64] }; 2],
            most: [const { AtomicU8::new(0) }; 2],
        }
    }
}

/// An index of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Index {
    /// Wholly free chunks.
    Whole,
    /// Those of them that have dirty pages.
    Backed,
    /// Chunks with dirty pages, without a huge page that a purge of them would split.
    Dirty,
    /// Chunks with dirty pages, and a huge page that a purge of them would split.
    Huge,
}

/// The number of indices.
const INDICES: usize = Index::Huge as usize + 1;

fn change(bits: &AtomicU64, bit: usize, is_set: bool) -> u64 {
    let now = bits.load(Relaxed) & !(1 << (bit % 64)) | u64::from(is_set) << (bit % 64);
    bits.store(now, Relaxed);
    now
}

/// The first bit from `from` on that `word(n)`, bits 64 · n and on, has set, below `end`.
fn next_bit(from: usize, end: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
    let mut at = from;
    while at < end {
        let bits = word(at / 64) >> (at % 64);
        if bits != 0 {
            return Some(at + bits.trailing_zeros() as usize).filter(|&at| at < end);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// The last bit below `end` that `word(n)`, bits 64 · n and on, has set.
fn previous_bit(end: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
    let last = |at: usize, bits: u64| bits.checked_ilog2().map(|bit| at * 64 + bit as usize);
    let part = (1u64 << (end % 64)) - 1;
    let near = if part == 0 { None } else { last(end / 64, word(end / 64) & part) };
    near.or_else(|| (0..end / 64).rev().find_map(|at| last(at, word(at))))
}

impl Index {
    fn word(self, at: usize) -> &'static AtomicU64 {
        &TABLES.groups[at].bits[self as usize]
    }

    fn summary(self, at: usize) -> &'static AtomicU64 {
        &TABLES.areas[at].bits[self as usize]
    }

    /// Records whether chunk `chunk` belongs here. Under the buddy's lock, as all of these.
    pub fn set(self, chunk: usize, is_set: bool) {
        let word = change(self.word(chunk / 64), chunk, is_set);
        change(self.summary(chunk / 64 / 64), chunk / 64, word != 0);
        if self == Index::Whole {
            change(&TABLES.areas[chunk / 64 / 64].whole, chunk / 64, word == u64::MAX);
        }
    }

    /// Whether chunk `chunk` is recorded here.
    pub fn has(self, chunk: usize) -> bool {
        self.word(chunk / 64).load(Relaxed) >> (chunk % 64) & 1 != 0
    }

    /// The first chunk from `from` on, below `end`.
    pub fn next(self, from: usize, end: usize) -> Option<usize> {
        let word = from / 64;
        let bits = |word: usize| self.word(word).load(Relaxed);
        let near = next_bit(from, end.min((word + 1) * 64), bits);
        near.or_else(|| {
            let far = next_bit(word + 1, end.div_ceil(64), |at| self.summary(at).load(Relaxed))?;
            next_bit(far * 64, end, bits)
        })
    }

    /// The chunks from `from` on, below `end`, in order.
    pub fn all(self, from: usize, end: usize) -> impl Iterator<Item = usize> {
        core::iter::successors(self.next(from, end), move |&index| self.next(index + 1, end))
    }

    /// The chunks below `end`, in order from `from` on and around the end.
    pub fn around(self, from: usize, end: usize) -> impl Iterator<Item = usize> {
        let from = from.min(end);
        self.all(from, end).chain(self.all(0, from))
    }

    /// The last chunk below `end`.
    pub fn previous(self, end: usize) -> Option<usize> {
        let word = end / 64;
        let bits = |word: usize| self.word(word).load(Relaxed);
        let near = previous_bit(end % 64, |_| bits(word)).map(|bit| word * 64 + bit);
        near.or_else(|| {
            let far = previous_bit(word, |at| self.summary(at).load(Relaxed))?;
            previous_bit((far + 1) * 64, bits)
        })
    }
}

/// The chunks of a group that are not wholly free, as bits.
fn used(group: usize) -> u64 {
    !Index::Whole.word(group).load(Relaxed)
}

/// The groups of an area with such a chunk, as bits.
fn with_used(area: usize) -> u64 {
    !TABLES.areas[area].whole.load(Relaxed)
}

/// The first chunk from `from` on that is not wholly free, or `end`.
pub(super) fn row_end(from: usize, end: usize) -> usize {
    let next = from / 64 + 1;
    let far = || {
        let group = next_bit(next, end.div_ceil(64), with_used)?;
        next_bit(group * 64, end, used)
    };
    next_bit(from, end.min(next * 64), used).or_else(far).unwrap_or(end)
}

/// The first of the wholly free chunks that end at `end`, or `end` if the chunk before is in use.
pub(super) fn last_row(end: usize) -> usize {
    let group = end / 64;
    let near = previous_bit(end % 64, |_| used(group)).map(|bit| group * 64 + bit);
    let far = || previous_bit((previous_bit(group, with_used)? + 1) * 64, used);
    near.or_else(far).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::vec::Vec;

    /// The index is the process's. The test uses chunks far beyond those that any test commits, and
    /// leaves them as they were.
    #[test]
    fn searches_agree_with_a_walk() {
        const FIRST: usize = WORDS * 64 - 3 * 4096;
        const END: usize = FIRST + 2 * 4096 + 100;
        let mut random = 1u64;
        for round in 0..20 {
            let mut bits: Vec<bool> = (FIRST..END).map(|_| false).collect();
            for _ in 0..round * 7 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (random >> 33) as usize % bits.len();
                let count = 1 + (random >> 20) as usize % 200;
                bits.iter_mut().skip(at).take(count).for_each(|bit| *bit = true);
            }
            bits.iter().enumerate().for_each(|(at, &bit)| Index::Whole.set(FIRST + at, bit));
            let mut at = FIRST;
            while at < END {
                let found = Index::Whole.next(at, END);
                assert_eq!(found, (at..END).find(|&at| bits[at - FIRST]));
                let Some(first) = found else { break };
                let end = row_end(first, END);
                assert_eq!(end, (first..END).find(|&at| !bits[at - FIRST]).unwrap_or(END));
                assert!((first..end).all(|at| Index::Whole.has(at)));
                at = end;
            }
            let last_used = (FIRST..END).rev().find(|&at| !bits[at - FIRST]);
            assert_eq!(last_row(END), last_used.unwrap_or(FIRST - 1) + 1);
            let mut end = END;
            while let Some(last) = Index::Whole.previous(end).filter(|&at| at >= FIRST) {
                assert_eq!(Some(last), (FIRST..end).rev().find(|&at| bits[at - FIRST]));
                end = last;
            }
            assert!((FIRST..end).all(|at| !bits[at - FIRST] && !Index::Backed.has(at)));
            (FIRST..END).for_each(|at| Index::Whole.set(at, false));
        }
        assert_eq!(Index::Whole.next(FIRST, WORDS * 64), None);
    }
}

//! Which chunks are wholly free: a bit for each chunk, and a bit for each word of these.
//!
//! ```text
//!   words     …0000 0000 0110 1111…      bit n: chunk n is wholly free, mapped or not
//!   summary   …0 1…                      bit n: word n has a bit
//! ```
//!
//! A search for chunks in a row skips 4096 chunks at a step where none is free. Guarded by the
//! buddy's lock; the bits of chunks beyond the arena's bound are 0.

use crate::pages::CHUNK_BYTES;
use crate::pages::layout::MAX_DATA_BYTES;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WORDS: usize = (MAX_DATA_BYTES / CHUNK_BYTES).div_ceil(64);
const SUMMARIES: usize = WORDS.div_ceil(64);

/// Static memory of zeroes, of which a page is touched for each 64 GiB of the arena. In the section
/// of large tables; see `rseq/layout.rs`.
#[unsafe(link_section = ".bss.uslab_tables")]
static WHOLE: Whole =
    Whole { words: [const { AtomicU64::new(0) }; WORDS], summary: [const { AtomicU64::new(0) }; SUMMARIES] };

struct Whole {
    words: [AtomicU64; WORDS],
    summary: [AtomicU64; SUMMARIES],
}

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

/// Records whether chunk `index` is wholly free. Under the buddy's lock, as all of these.
pub(super) fn set(index: usize, is_whole: bool) {
    let word = change(&WHOLE.words[index / 64], index, is_whole);
    change(&WHOLE.summary[index / 64 / 64], index / 64, word != 0);
}

/// Whether chunk `index` is recorded as wholly free.
pub(super) fn is_set(index: usize) -> bool {
    WHOLE.words[index / 64].load(Relaxed) >> (index % 64) & 1 != 0
}

/// The first wholly free chunk from `from` on, below `end`.
pub(super) fn next(from: usize, end: usize) -> Option<usize> {
    let word = from / 64;
    let bits = |word: usize| WHOLE.words[word].load(Relaxed);
    let near = next_bit(from, end.min((word + 1) * 64), bits);
    near.or_else(|| {
        let summary = |at: usize| WHOLE.summary[at].load(Relaxed);
        let far = next_bit(word + 1, end.div_ceil(64), summary)?;
        next_bit(far * 64, end, bits)
    })
}

/// The first chunk from `from` on that is not wholly free, or `end`.
pub(super) fn run_end(from: usize, end: usize) -> usize {
    next_bit(from, end, |word| !WHOLE.words[word].load(Relaxed)).unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::vec::Vec;

    /// The index is the process's. The test uses chunks far beyond those that any test commits, and
    /// leaves them as they were.
    #[test]
    fn the_search_agrees_with_a_walk() {
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
            bits.iter().enumerate().for_each(|(at, &bit)| set(FIRST + at, bit));
            let mut at = FIRST;
            while at < END {
                let found = next(at, END);
                assert_eq!(found, (at..END).find(|&at| bits[at - FIRST]));
                let Some(first) = found else { break };
                let end = run_end(first, END);
                assert_eq!(end, (first..END).find(|&at| !bits[at - FIRST]).unwrap_or(END));
                assert!((first..end).all(is_set));
                at = end;
            }
            (FIRST..END).for_each(|at| set(at, false));
        }
        assert_eq!(next(FIRST, WORDS * 64), None);
    }
}

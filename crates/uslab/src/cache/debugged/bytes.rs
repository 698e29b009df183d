//! Patterns in the memory of debugged objects: filling, and finding what changed.
//!
//! Most ranges have 8 to 128 bytes. These take two, four or eight wide accesses at any alignment,
//! which overlap in the middle: no loop, and no call.

use core::ops::Range;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Bytes of a wide access.
const WIDE: usize = 2 * WORD;

/// Bytes that need no loop.
const MAX_SHORT: usize = 128;

/// A word of bytes of this value.
fn splat(value: u8) -> u64 {
    u64::from(value) * 0x0101_0101_0101_0101
}

/// Fills a range of an object's memory.
#[inline]
pub fn fill(range: Range<usize>, value: u8) {
    let (start, len) = (range.start as *mut u8, range.len());
    let word = splat(value);
    // SAFETY: every use has `at + WIDE <= len`. The range lies in an object of a debugged cache,
    // whose pages are mapped, and which the calling thread has taken.
    let write = |at: usize| unsafe { start.add(at).cast::<[u64; 2]>().write_unaligned([word; 2]) };
    match len {
        WORD..WIDE => {
            for at in [0, len - WORD] {
                // SAFETY: as above, with `at + WORD <= len`.
                unsafe { start.add(at).cast::<u64>().write_unaligned(word) };
            }
        }
        WIDE..=32 => [0, len - WIDE].into_iter().for_each(write),
        33..=64 => [0, WIDE, len - 2 * WIDE, len - WIDE].into_iter().for_each(write),
        65..=MAX_SHORT => (0..MAX_SHORT / 2).step_by(WIDE).for_each(|at| {
            write(at);
            write(len - WIDE - at);
        }),
        // SAFETY: as above.
        _ => unsafe { start.write_bytes(value, len) },
    }
}

/// The bytes of `range` that are not `value`: from the first to the last of them.
#[inline]
pub fn differing(range: Range<usize>, value: u8) -> Option<Range<usize>> {
    // SAFETY: as in `fill`. The program may write to it meanwhile, by mistake: any bytes are valid.
    let bytes = unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) };
    if is_all(bytes, value) { None } else { changed(range.start, bytes, value) }
}

/// The bytes of `range` that are not 0, as [`differing`].
#[inline]
pub fn not_zero(range: Range<usize>) -> Option<Range<usize>> {
    differing(range, 0)
}

/// Whether all bytes have this value.
#[inline]
fn is_all(bytes: &[u8], value: u8) -> bool {
    let word = splat(value);
    // The bits of a word at `at` that are not those of `value`.
    let of = |at: usize| match bytes[at..].first_chunk::<WORD>() {
        Some(chunk) => u64::from_ne_bytes(*chunk) ^ word,
        None => u64::MAX,
    };
    let wide = |at: usize| of(at) | of(at + WORD);
    let len = bytes.len();
    match len {
        0..WORD => bytes.iter().all(|&byte| byte == value),
        WORD..WIDE => of(0) | of(len - WORD) == 0,
        WIDE..=32 => wide(0) | wide(len - WIDE) == 0,
        33..=64 => wide(0) | wide(WIDE) | wide(len - 2 * WIDE) | wide(len - WIDE) == 0,
        65..=MAX_SHORT => {
            (0..MAX_SHORT / 2).step_by(WIDE).fold(0, |all, at| all | wide(at) | wide(len - WIDE - at)) == 0
        }
        _ => is_all_of_many(bytes, word),
    }
}

/// As [`is_all`], of more than [`MAX_SHORT`] bytes.
#[inline(never)]
fn is_all_of_many(bytes: &[u8], word: u64) -> bool {
    // Eight words at a time: the compiler uses vectors.
    let is_same = |block: &[u8; 8 * WORD]| {
        let words = block.as_chunks::<WORD>().0;
        words.iter().fold(0, |all, chunk| all | u64::from_ne_bytes(*chunk) ^ word) == 0
    };
    bytes.as_chunks().0.iter().all(is_same) && bytes.last_chunk().is_none_or(is_same)
}

/// From the first to the last byte that is not `value`, of `bytes` at `start`.
#[cold]
fn changed(start: usize, bytes: &[u8], value: u8) -> Option<Range<usize>> {
    let first = bytes.iter().position(|&byte| byte != value)?;
    let last = bytes.iter().rposition(|&byte| byte != value)?;
    Some(start + first..start + last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_filled_to_its_ends_and_a_change_is_found_at_each_place() {
        let mut memory = [0u8; 600];
        let base = memory.as_mut_ptr() as usize;
        for start in 1..18 {
            for len in (0..140).chain([255, 256, 257, 500]) {
                memory.fill(0x11);
                let range = base + start..base + start + len;
                fill(range.clone(), 0x6b);
                let is_filled = |at| (start..start + len).contains(&at);
                for (at, &byte) in memory.iter().enumerate() {
                    assert_eq!(byte, if is_filled(at) { 0x6b } else { 0x11 }, "{at} of {start}+{len}");
                }
                assert_eq!(differing(range.clone(), 0x6b), None);
                for at in 0..len {
                    memory[start + at] ^= 0x80;
                    let changed = range.start + at..range.start + at + 1;
                    assert_eq!(differing(range.clone(), 0x6b), Some(changed));
                    memory[start + at] ^= 0x80;
                }
                if len > 1 {
                    (memory[start], memory[start + len - 1]) = (0, 0);
                    assert_eq!(differing(range.clone(), 0x6b), Some(range));
                }
            }
        }
        assert_eq!(not_zero(base..base), None);
    }
}

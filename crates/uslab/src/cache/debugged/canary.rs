//! Canaries of hardened objects: secret bytes right before and behind the bytes asked for.
//!
//! ```text
//!   record: asked, family, state │ seal ┃ bytes asked for ┃ 8 to 32 bytes │ zero, or never used
//!                                       ▲ the program's pointer
//! ```
//!
//! The bytes follow from the object's address and keys that the process chose at random. So an
//! attacker who forges an overflow must know the bytes of this very object. The first byte behind
//! the object is never 0, so a string that is one byte too long changes it. A free fills the canary
//! behind the object with zeroes, so no later owner can read it.

use super::Debug;
use super::bytes::fill;
use super::object::Object;
use super::record::key;
use core::ops::Range;

/// Bytes before the program's pointer: the seal of the record, where the record stands there.
const BEFORE_BYTES: usize = 4;
/// Least bytes behind the bytes asked for, of an object of a slab.
pub const MIN_BEHIND_BYTES: usize = 8;
/// Bytes behind the bytes asked for. A linear overflow starts with these.
const BEHIND_BYTES: usize = 32;

impl Debug {
    /// The canary behind the `asked` bytes of an object.
    fn behind(&self, pointer: usize, asked: usize) -> Range<usize> {
        let (start, end) = (pointer + asked.min(self.bytes), pointer - self.front + self.stride);
        start..end.min(start + BEHIND_BYTES)
    }
}

/// The byte at `address` of an object whose key is `key`.
fn byte(key: u64, address: usize) -> u8 {
    (key >> (address % 8 * 8)) as u8
}

/// The eight bytes from `address` on, of an object whose key is `key`.
#[inline]
fn word(key: u64, address: usize) -> u64 {
    key.rotate_right((address % 8 * 8) as u32)
}

/// Splits `range`: the range of its whole words, the value that each of these words must have, and
/// the range of the bytes behind them.
#[inline]
fn parts(range: Range<usize>, key: u64) -> (Range<usize>, u64, Range<usize>) {
    let words = range.start..range.start + range.len() / 8 * 8;
    (words.clone(), word(key, range.start), words.end..range.end)
}

impl Object<'_> {
    /// Writes the canary before the object: once, when its slab is made.
    pub fn write_canary_before(&self) {
        let key = key(self.pointer);
        for address in self.pointer - BEFORE_BYTES..self.pointer {
            // SAFETY: bytes of the record or of the gap behind it, which are the library's.
            unsafe { (address as *mut u8).write(byte(key, address)) };
        }
    }

    /// Writes the canary behind `asked` bytes of an object that the thread has taken.
    pub fn write_canary_behind(&self, asked: usize) {
        let (words, word, rest) = parts(self.debug.behind(self.pointer, asked), key(self.pointer));
        for at in words.step_by(8) {
            // SAFETY: the range lies in the object.
            unsafe { (at as *mut u64).write_unaligned(word) };
        }
        for at in rest {
            // SAFETY: as above.
            unsafe { (at as *mut u8).write(byte(key(self.pointer), at)) };
        }
    }

    /// The canary behind `asked` bytes of an object of a slab, as words that overlap, and the value
    /// that each must have. A slab leaves at least [`MIN_BEHIND_BYTES`] for it.
    #[inline]
    fn words_behind(&self, asked: usize, key: u64) -> [(usize, u64); 4] {
        let Range { start, end } = self.debug.behind(self.pointer, asked);
        let (first, last) = (word(key, start), word(key, end));
        // The middle ones are the outer ones where the canary is short.
        let far = if end - start >= 16 { 8 } else { 0 };
        [(start, first), (start + far, first), (end - 8 - far, last), (end - 8, last)]
    }

    /// As [`Object::write_canary_behind`], of an object of a slab.
    #[inline]
    pub fn write_words_behind(&self, asked: usize, key: u64) {
        for (at, word) in self.words_behind(asked, key) {
            // SAFETY: the words lie in the canary.
            unsafe { (at as *mut u64).write_unaligned(word) };
        }
    }

    /// As [`Object::clear_canary`], of an object of a slab.
    #[inline]
    pub fn clear_words_behind(&self, asked: usize) {
        for (at, _) in self.words_behind(asked, 0) {
            // SAFETY: as above.
            unsafe { (at as *mut u64).write_unaligned(0) };
        }
    }

    /// Whether the canary behind an object of a slab, in use, is whole. The one before a plain
    /// object is the seal of its record.
    #[inline]
    pub fn has_whole_canary_behind(&self, asked: usize, key: u64) -> bool {
        // SAFETY: the words lie in the canary, and every value is valid.
        let differs = |(at, word): (usize, u64)| unsafe { (at as *const u64).read_unaligned() } ^ word;
        self.words_behind(asked, key).map(differs).iter().fold(0, |all, word| all | word) == 0
    }

    /// Fills the bytes asked for, and the canary behind them, with zeroes.
    #[inline]
    pub fn clear_with_canary(&self, asked: usize) {
        fill(self.pointer..self.debug.behind(self.pointer, asked).end, 0);
    }

    /// Fills the canary behind the bytes asked for with zeroes.
    pub fn clear_canary(&self, asked: usize) {
        fill(self.debug.behind(self.pointer, asked), 0);
    }

    /// The canary that changed, if one did, and whether it is the one before the object. `asked` is
    /// `None` for a free object, which has none behind it.
    pub fn changed_canary(&self, asked: Option<usize>) -> Option<(Range<usize>, bool)> {
        let key = key(self.pointer);
        let differs = |range: Range<usize>| {
            // SAFETY: bytes of the object, of which every value is valid.
            let is_wrong = |&at: &usize| unsafe { (at as *const u8).read() } != byte(key, at);
            let first = range.clone().find(is_wrong)?;
            Some(first..range.rev().find(is_wrong)? + 1)
        };
        let before = self.pointer - BEFORE_BYTES..self.pointer;
        if let Some(range) = differs(before) {
            return Some((range, true));
        }
        let behind = self.debug.behind(self.pointer, asked?);
        let (mut words, word, rest) = parts(behind.clone(), key);
        // SAFETY: as above.
        let is_right = |at: usize| unsafe { (at as *const u64).read_unaligned() } == word;
        let is_whole = words.is_empty() || words.by_ref().step_by(8).all(is_right);
        if is_whole && differs(rest).is_none() {
            return None;
        }
        differs(behind).map(|range| (range, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::debugging::{CHECKS, RED_ZONE, SECURE};
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

    #[test]
    fn every_changed_byte_is_found_and_no_other() {
        let debug = Debug::new(CHECKS | RED_ZONE | SECURE, 64, 16, None);
        let memory = [const { AtomicU8::new(0) }; 256];
        let start = memory.as_ptr().align_offset(16);
        let object =
            Object { debug: &debug, pointer: debug.pointer(memory[start..].as_ptr() as *mut u8).addr() };
        object.write_canary_before();
        let first = object.pointer - memory.as_ptr().addr();
        for asked in [0, 1, 7, 8, 33, 63, 64] {
            object.write_canary_behind(asked);
            assert!(object.has_whole_canary_behind(asked, key(object.pointer)));
            object.clear_words_behind(asked);
            assert!(!object.has_whole_canary_behind(asked, key(object.pointer)));
            object.write_words_behind(asked, key(object.pointer));
            assert_eq!(object.changed_canary(Some(asked)), None);
            let end = debug.behind(object.pointer, asked).len();
            assert!((MIN_BEHIND_BYTES..=BEHIND_BYTES).contains(&end));
            for at in (first - BEFORE_BYTES..first).chain(first + asked..first + asked + end) {
                let old = memory[at].fetch_xor(1, Relaxed);
                let changed = object.changed_canary(Some(asked));
                let address = object.pointer - first + at;
                assert_eq!(changed, Some((address..address + 1, at < first)));
                assert_eq!(object.has_whole_canary_behind(asked, key(object.pointer)), at < first);
                memory[at].store(old, Relaxed);
            }
            assert_ne!(memory[first + asked].load(Relaxed), 0, "a byte of 0 behind a string is found");
            object.clear_with_canary(asked);
            assert_eq!(object.changed_canary(None), None);
        }
    }
}

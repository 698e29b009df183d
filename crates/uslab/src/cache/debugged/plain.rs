//! The short way of plain debugged caches: those without users, pattern, zones of fixed bytes and
//! trace. Hardened caches are plain, and those with the letter F alone.
//!
//! ```text
//!   allocate   pop ─▶ free? ─▶ zeroes? ─▶ size, busy ─▶ canary ─▶ in use
//!   free       object? ─▶ in use → busy ─▶ canaries? ─▶ zeroes ─▶ free ─▶ push
//! ```
//!
//! A free needs an atomic exchange, since another thread may free the same object by mistake. An
//! allocation needs none: the object came out of a sheaf, so no other thread allocates or frees it.
//! Other threads change its record in one case: a walk looks at a free object (`walk.rs`). It drops
//! its finding if an allocation has replaced the record meanwhile.
//!
//! If a check fails, the call goes to [`super::alloc`] or [`super::free`], which repeat the check
//! and report the fault.

use super::bytes::{fill, not_zero};
use super::object::{BUSY, FREE, LIVE, NEVER, Object, Release, Request, Word};
use super::record::key;
use super::{Debug, tell};
use crate::os::debugging::{CHECKER, POISON, RED_ZONE, SECURE, TRACE, USERS};
use crate::slab::Slabs;
use core::sync::atomic::{Ordering, fence};

/// Whether the short way does all that `letters` ask for.
pub(super) const fn is_enough(letters: u8) -> bool {
    letters & (USERS | POISON | TRACE | CHECKER) == 0 && letters & (RED_ZONE | SECURE) != RED_ZONE
}

impl Debug {
    /// Makes the pointer of the program from an object that came out of a sheaf.
    #[inline]
    pub fn hand_out_plain(&self, name: &str, start: *mut u8, request: Request) -> *mut u8 {
        let pointer = self.pointer(start);
        let object = Object { debug: self, pointer: pointer.addr() };
        let (word, key) = (object.word(), key(object.pointer));
        let is_whole = match word.state() {
            FREE => !self.zeroes() || object.is_cleared(word),
            state => state == NEVER,
        };
        if !is_whole || !word.is_sealed_by(key) {
            return self.hand_out_long(name, start, request);
        }
        let asked = request.bytes.min(self.bytes);
        let word = Word::new(asked, request.family, BUSY, key);
        object.set_word(word);
        // A walk that reads what this thread or the program writes from here on finds the record
        // changed afterwards.
        fence(Ordering::Release);
        if self.has_canaries() {
            object.write_words_behind(asked, key);
        }
        object.set_word(word.with_state(LIVE));
        pointer
    }

    /// As [`Debug::take_back`].
    #[inline]
    pub fn take_back_plain(&self, slabs: &Slabs, pointer: *mut u8, release: Release) -> Option<*mut u8> {
        let start = pointer.wrapping_sub(self.offset);
        let object = Object { debug: self, pointer: pointer.addr() };
        if !slabs.has_object_at(start) {
            return self.take_back(slabs, pointer, release);
        }
        let (word, key) = (object.word(), key(object.pointer));
        if word.state() != LIVE
            || !word.is_sealed_by(key)
            || !object.replace_word(word, word.with_state(BUSY))
        {
            return self.take_back(slabs, pointer, release);
        }
        let asked = word.asked().min(self.bytes);
        if self.has_canaries() && !object.has_whole_canary_behind(asked, key) {
            tell::check_used(&object, slabs.name());
        }
        let is_right_size = release.bytes.is_none_or(|bytes| bytes == asked);
        if !is_right_size || !word.family().takes(release.family) {
            tell::check_release(&object, slabs.name(), release);
        }
        if self.zeroes() {
            object.clear_with_canary(asked);
        } else if self.has_canaries() {
            object.clear_words_behind(asked);
        }
        object.set_word(word.with_state(FREE));
        Some(start)
    }
}

impl Debug {
    /// The bytes that the program asked for, of the object in use at `pointer`; `None` where the
    /// long way must look.
    #[inline]
    pub fn live_bytes_at(&self, slabs: &Slabs, pointer: *const u8) -> Option<usize> {
        let object = Object { debug: self, pointer: pointer.addr() };
        let is_object = slabs.has_object_at(pointer.wrapping_sub(self.offset));
        (is_object && object.state() == LIVE).then(|| object.asked())
    }

    /// Gives the object in use at `pointer` another size in its place, if it is a hardened one of
    /// the family that `request` names, and whole. Otherwise changes nothing and returns false: the
    /// long way, which moves the object, reports what is wrong. Objects that are debugged move each
    /// time, so that uses of the old pointer are found.
    ///
    /// Bytes that the object no longer has become zero, and so does its old canary.
    pub fn resize_plain(&self, slabs: &Slabs, pointer: *mut u8, request: Request) -> bool {
        let object = Object { debug: self, pointer: pointer.addr() };
        let is_possible = self.is_plain() && self.is_secure() && request.bytes <= self.bytes;
        let is_object = || slabs.has_object_at(pointer.wrapping_sub(self.offset));
        if !is_possible || !is_object() || object.take(&[LIVE]).is_err() {
            return false;
        }
        let (word, key) = (object.word(), key(object.pointer));
        let (old, new) = (word.asked().min(self.bytes), request.bytes);
        let is_whole =
            word.is_sealed_by(key) && (!self.has_canaries() || object.has_whole_canary_behind(old, key));
        if !is_whole || word.family() != request.family {
            object.put(LIVE);
            return false;
        }
        if self.has_canaries() {
            object.clear_words_behind(old);
        }
        if new < old && self.zeroes() {
            fill(object.pointer + new..object.pointer + old, 0);
        }
        if self.has_canaries() {
            object.write_words_behind(new, key);
        }
        object.set_word(Word::new(new, request.family, LIVE, key));
        true
    }
}

impl Object<'_> {
    /// Whether the bytes that the last free cleared are zero still, if the record is `word`.
    #[inline]
    pub(super) fn is_cleared(&self, word: Word) -> bool {
        let asked = word.asked().min(self.debug.bytes);
        // A free has cleared the canary, too: 8 bytes or more.
        let words = if self.debug.has_canaries() { asked.div_ceil(8) } else { asked / 8 };
        let read = |start: usize, words: usize| {
            // SAFETY: bytes of the object, aligned to 8, of which every value is valid. The thread
            // has taken it; the program may write to it meanwhile, by mistake.
            unsafe { core::slice::from_raw_parts(start as *const u64, words) }
        };
        let (blocks, rest) = read(self.pointer, words).as_chunks::<8>();
        let none = |words: &[u64]| words.iter().fold(0, |all, &word| all | word) == 0;
        let is_cleared = blocks.iter().all(|block| none(block)) && none(rest);
        let tail = self.pointer + words * 8..self.pointer + asked;
        is_cleared && (tail.is_empty() || not_zero(tail).is_none())
    }
}

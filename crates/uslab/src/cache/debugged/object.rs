//! The bytes of a debugged object: its record, its zones, its pattern.

use super::Debug;
use super::bytes::fill;
pub use super::family::Family;
pub use super::record::{BUSY, FREE, LIVE, LOOKED_AT, NEVER, OVERWRITTEN, Word};
use super::record::{RECORD_BYTES, Record, key};
pub use super::track::{Track, User};
use crate::os;
use crate::os::debugging::{RED_ZONE, USERS};
use crate::os::unwind::MAX_FRAMES;
use crate::report::Event;
use crate::report::depot::StackId;
use core::ops::Range;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release as ReleaseOrder},
};

/// The byte of a zone while its object is free.
pub const ZONE_FREE: u8 = 0xbb;
/// The byte of a zone while its object is in use.
pub const ZONE_USED: u8 = 0xcc;
/// The byte of an object that was never used.
pub const NEVER_USED: u8 = 0x5a;
/// The byte of a free object.
pub const FREED: u8 = 0x6b;
/// The last byte of a free object.
pub const FREED_END: u8 = 0xa5;

/// An allocation as the program asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub bytes: usize,
    pub family: Family,
}

/// A free as the program asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Release {
    /// The size that the program named.
    pub bytes: Option<usize>,
    pub family: Family,
}

impl Release {
    /// A free of which only the pointer is known.
    pub const PLAIN: Release = Release { bytes: None, family: Family::Any };
}

/// An object of a debugged cache.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    pub debug: &'a Debug,
    /// The pointer of the program.
    pub pointer: usize,
}

impl<'a> Object<'a> {
    /// The place of the record's word, which the program may overwrite by mistake. The pointer lies
    /// in a slab of the cache, or is a run; the pages of both stay mapped for ever.
    #[inline]
    fn place(&self) -> &'static AtomicU64 {
        // SAFETY: the object's own bytes begin here, aligned to 8 and mapped. Every value is valid.
        unsafe { &*((self.pointer - self.debug.front) as *const AtomicU64) }
    }

    /// The record with all fields.
    ///
    /// # Safety
    /// The object must be a run, or have letter U.
    unsafe fn long_record(&self) -> &'static Record {
        // SAFETY: as above. The caller promises that these bytes are the object's.
        unsafe { &*((self.pointer - self.debug.front) as *const Record) }
    }

    /// The record as it is now.
    #[inline]
    pub fn word(&self) -> Word {
        Word(self.place().load(Acquire))
    }

    /// Replaces the record of an object that the thread has taken. A thread that reads it finds all
    /// that this one wrote before.
    #[inline]
    pub fn set_word(&self, word: Word) {
        self.place().store(word.0, ReleaseOrder);
    }

    /// Replaces the record if it still is `now`.
    #[inline]
    pub fn replace_word(&self, now: Word, new: Word) -> bool {
        self.place().compare_exchange(now.0, new.0, AcqRel, Relaxed).is_ok()
    }

    /// The state that `word` tells, or [`OVERWRITTEN`]. Where the seal is a canary, a changed seal
    /// leaves the state what it is, and the check of the canaries reports an underflow.
    #[inline]
    pub fn state_of(&self, word: Word, key: u64) -> u32 {
        match word.is_sealed_by(key) {
            true => word.state(),
            false => self.unsealed_state(word),
        }
    }

    #[cold]
    fn unsealed_state(&self, word: Word) -> u32 {
        let is_canary = self.debug.has_canaries() && self.debug.front == RECORD_BYTES;
        let is_underflow = is_canary && word.is_plausible(self.debug.bytes);
        if is_underflow { word.state() } else { OVERWRITTEN }
    }

    /// The state of the object now.
    #[inline]
    pub fn state(&self) -> u32 {
        self.state_of(self.word(), key(self.pointer))
    }

    /// Writes size and family of an object that the thread has taken.
    pub fn set(&self, request: Request) {
        let (asked, key) = (request.bytes.min(self.debug.bytes), key(self.pointer));
        if self.debug.is_run {
            // SAFETY: a run.
            unsafe { self.long_record() }.run_bytes.store(asked, Relaxed);
        }
        self.set_word(Word::new(asked, request.family, BUSY, key));
    }

    /// Writes the record of an object of a fresh slab, or of a fresh run.
    pub fn begin(&self) {
        if self.debug.has(USERS) {
            // SAFETY: the object has letter U.
            unsafe { self.long_record() }.users.iter().for_each(Track::forget);
        }
        self.set_word(Word::new(0, Family::Any, NEVER, key(self.pointer)));
    }

    /// The bytes that the program asked for; never more than the object has.
    #[inline]
    pub fn asked(&self) -> usize {
        let asked = match self.debug.is_run {
            // SAFETY: a run.
            true => unsafe { self.long_record() }.run_bytes.load(Relaxed),
            false => self.word().asked(),
        };
        asked.min(self.debug.bytes)
    }

    pub fn family(&self) -> Family {
        self.word().family()
    }

    /// Takes the object for this thread, if it has one of the states `from`; returns that state.
    /// Otherwise returns the state as the error.
    ///
    /// Waits while another thread works on the object. It waits with growing sleeps: a real-time
    /// thread that spins could keep the other from running. After a second the error is [`BUSY`]:
    /// in a fork child the other thread does not exist.
    #[inline]
    pub fn take(&self, from: &[u32]) -> Result<u32, u32> {
        let word = self.word();
        let state = self.state_of(word, key(self.pointer));
        if from.contains(&state) && self.replace_word(word, word.with_state(BUSY)) {
            return Ok(state);
        }
        self.wait_and_take(from)
    }

    #[cold]
    fn wait_and_take(&self, from: &[u32]) -> Result<u32, u32> {
        let _errno = os::errno::Preserved::new();
        let key = key(self.pointer);
        let (mut turns, mut pause_ms) = (0, 1);
        loop {
            let word = self.word();
            let now = self.state_of(word, key);
            let is_busy = now == BUSY || now == LOOKED_AT;
            if from.contains(&now) {
                if self.replace_word(word, word.with_state(BUSY)) {
                    return Ok(now);
                }
            } else if is_busy && turns < 100 {
                os::thread::give_way();
                turns += 1;
            } else if is_busy && pause_ms < 1024 {
                os::sleep::pause(pause_ms);
                pause_ms *= 2;
            } else {
                return Err(if is_busy { BUSY } else { now });
            }
        }
    }

    /// As [`Object::take`], without waiting.
    pub fn take_at_once(&self, from: &[u32]) -> Result<u32, u32> {
        let word = self.word();
        let now = self.state_of(word, key(self.pointer));
        if from.contains(&now) && self.replace_word(word, word.with_state(BUSY)) { Ok(now) } else { Err(now) }
    }

    /// Ends [`Object::take`].
    pub fn put(&self, state: u32) {
        self.set_word(self.word().with_state(state));
    }

    /// Records this thread as a user of the object, with letter U.
    pub fn note(&self, user: User) {
        if !self.debug.has(USERS) {
            return;
        }
        // SAFETY: the object has letter U.
        unsafe { self.long_record() }.users[user as usize].note();
    }

    /// Forgets a user.
    pub fn forget(&self, user: User) {
        if self.debug.has(USERS) {
            // SAFETY: the object has letter U.
            unsafe { self.long_record() }.users[user as usize].forget();
        }
    }

    /// The last user; its frames are copied to `frames`. `None` without letter U, and where there
    /// was none.
    pub fn user<'b>(&self, user: User, frames: &'b mut [usize; MAX_FRAMES]) -> Option<Event<'b>> {
        if !self.debug.has(USERS) {
            return None;
        }
        // SAFETY: the object has letter U.
        unsafe { self.long_record() }.users[user as usize].event(frames)
    }

    /// The last allocation: stack, thread, CPU and time. Zeroes without letter U.
    pub fn allocated_by(&self) -> (StackId, u32, u32, u64) {
        if !self.debug.has(USERS) {
            return (StackId::NONE, 0, 0, 0);
        }
        // SAFETY: the object has letter U.
        unsafe { self.long_record() }.users[User::Allocated as usize].words()
    }

    /// Fills the zones for an object of which the program uses `used` bytes.
    pub fn fill_zones(&self, used: usize, value: u8) {
        if !self.debug.has(RED_ZONE) || self.debug.is_secure() {
            return;
        }
        fill(self.debug.left_zone(self.pointer), value);
        fill(self.debug.right_zone(self.pointer, used), value);
    }

    /// The pattern's bytes.
    pub fn bytes(&self) -> Range<usize> {
        self.pointer..self.pointer + self.debug.bytes
    }

    /// Fills the object with the pattern of a free one.
    pub fn poison(&self) {
        let bytes = self.bytes();
        fill(bytes.start..bytes.end - 1, FREED);
        fill(bytes.end - 1..bytes.end, FREED_END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use std::time::Duration;

    /// A thread that works on an object may be preempted for long.
    #[test]
    fn take_waits_for_the_thread_that_works_on_the_object() {
        let debug = Debug::new(crate::os::debugging::CHECKS, 64, 8, None);
        let memory = [const { AtomicU64::new(0) }; 16];
        let object = Object { debug: &debug, pointer: debug.pointer(memory.as_ptr() as *mut u8) as usize };
        object.begin();
        object.put(FREE);
        assert_eq!(object.take(&[FREE]), Ok(FREE));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                object.put(LIVE);
            });
            assert_eq!(object.take(&[LIVE]), Ok(LIVE));
        });
        assert_eq!(object.take(&[LIVE]), Err(BUSY), "its thread never comes back");
    }
}

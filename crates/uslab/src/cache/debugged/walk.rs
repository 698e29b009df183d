//! Walks over all objects of a debugged cache: checks on request, and objects left at the end.
//!
//! A walk only reads, and takes an object only if it looks faulty. It never takes a free object of
//! a plain cache, because an allocation there does not check whether the object is taken
//! (`plain.rs`):
//!
//! ```text
//!   walk        free ─▶ looked at ─ read ─ still looked at? ─▶ free: what was read holds
//!   allocation  free?         ─▶ busy ─ canary ─▶ in use              no: it is given up
//! ```
//!
//! An allocation that reads *looked at* waits. One that had read *free* before replaces the record;
//! the walk's exchange back to *free* then fails. One walk looks at a time, so the mark that it
//! finds is its own. Allocation and program write to the object only after the record changes. So
//! if the exchange succeeds, the bytes that the walk read before it are those of a free object.

use super::object::{FREE, LIVE, LOOKED_AT, NEVER, Object, ZONE_FREE, ZONE_USED};
use super::record::key;
use super::tell::Flaw;
use super::{Debug, tell};
use crate::os;
use crate::slab::Slabs;
use crate::sync::prefetch_for_read;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

/// Upper bound on the faulty objects that one walk reports.
const MAX_REPORTS: usize = 64;
/// Distance at which a walk prefetches the objects ahead.
const AHEAD_BYTES: usize = 1024;

static IS_LOOKING: AtomicBool = AtomicBool::new(false);

/// The turn to look at one free object.
struct Turn;

impl Turn {
    /// Waits for the turn, with growing sleeps. After a second takes it: in a child of a raw
    /// `clone` the thread that had it does not exist.
    fn wait() -> Turn {
        let _errno = os::errno::Preserved::new();
        let (mut turns, mut pause_ms) = (0, 1);
        while IS_LOOKING.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            if turns < 100 {
                os::thread::give_way();
                turns += 1;
            } else if pause_ms < 1024 {
                os::sleep::pause(pause_ms);
                pause_ms *= 2;
            } else {
                break;
            }
        }
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IS_LOOKING.store(false, Release);
    }
}

/// Gives the turn back in a fork child, where the thread that had it does not exist.
pub(in crate::cache) fn reset_in_child() {
    IS_LOOKING.store(false, Release);
}

impl Debug {
    /// Checks all objects, and reports those that the program overwrote; returns how many. Objects
    /// that other threads work on are left out.
    ///
    /// A hardened process walks all its objects when it exits. So the walk only reads, slab by
    /// slab, by address, with prefetches. It takes an object only where it looks faulty.
    pub fn check_all(&self, slabs: &Slabs) -> usize {
        // Reports may call back into the program, so none is written under the lists' lock.
        let (mut found, mut count) = ([0; MAX_REPORTS], 0);
        slabs.for_each_object(|start, _| {
            prefetch_for_read(start.wrapping_add(AHEAD_BYTES));
            let object = Object { debug: self, pointer: self.pointer(start).addr() };
            if !self.looks_whole(&object) && self.is_faulty(&object) {
                found[count] = object.pointer;
                count += 1;
            }
            count < MAX_REPORTS
        });
        for &pointer in &found[..count] {
            let object = Object { debug: self, pointer };
            if let Some((state, flaw)) = self.look(&object) {
                tell::flaw_of_free(&object, slabs.name(), state, &flaw);
                continue;
            }
            // Another thread may have found it meanwhile.
            if let Ok(state) = object.take(self.takeable()) {
                match state {
                    LIVE => tell::check_used(&object, slabs.name()),
                    _ => tell::check_free(&object, slabs.name(), state),
                }
                object.put(state);
            }
        }
        count
    }

    /// Whether an object has neither a changed zone nor a changed pattern. The thread has not taken
    /// it: another one may change it meanwhile, so that a whole object may look faulty.
    #[inline]
    fn looks_whole(&self, object: &Object<'_>) -> bool {
        let (word, key) = (object.word(), key(object.pointer));
        match object.state_of(word, key) {
            LIVE if self.is_plain() => {
                let asked = word.asked().min(self.bytes);
                word.is_sealed_by(key) && (!self.has_canaries() || object.has_whole_canary_behind(asked, key))
            }
            LIVE => tell::wrong_zone(object, object.asked(), ZONE_USED).is_none(),
            state @ (FREE | NEVER) if self.is_plain() => {
                let is_right = state == NEVER || !self.zeroes() || object.is_cleared(word);
                is_right && word.is_sealed_by(key)
            }
            state @ (FREE | NEVER) => !tell::is_faulty_free(object, state),
            // A thread works on it. A record that the program overwrote is reported by the free.
            _ => true,
        }
    }

    /// As the opposite of [`Debug::looks_whole`], of an object that the thread takes for that time.
    #[cold]
    fn is_faulty(&self, object: &Object<'_>) -> bool {
        if self.look(object).is_some() {
            return true;
        }
        let Ok(state) = object.take_at_once(self.takeable()) else { return false };
        let is_faulty = match state {
            LIVE => tell::wrong_zone(object, object.asked(), ZONE_USED).is_some(),
            _ => tell::is_faulty_free(object, state),
        };
        object.put(state);
        is_faulty
    }

    /// The states in which a walk may take an object. In plain caches the thread that allocates a
    /// free object does not ask.
    fn takeable(&self) -> &'static [u32] {
        if self.is_plain() { &[LIVE] } else { &[FREE, NEVER, LIVE] }
    }

    /// Returns the state and the flaw of a free object of a plain cache. `None` if it has no flaw,
    /// is not free, or was allocated by another thread meanwhile.
    #[cold]
    fn look(&self, object: &Object<'_>) -> Option<(u32, Flaw)> {
        if !self.is_plain() || !matches!(object.state(), FREE | NEVER) {
            return None;
        }
        let turn = Turn::wait();
        let word = object.word();
        let state = object.state_of(word, key(object.pointer));
        let mark = word.with_state(LOOKED_AT);
        if !matches!(state, FREE | NEVER) || !object.replace_word(word, mark) {
            return None;
        }
        let flaw = tell::wrong_zone(object, self.bytes, ZONE_FREE)
            .map(|(range, is_left)| Flaw::Zone(range, is_left))
            .or_else(|| tell::wrong_pattern(object, state).map(|(range, _)| Flaw::Pattern(range)));
        // The exchange must come after all reads of the object.
        fence(Acquire);
        let is_free_still = object.replace_word(mark, word);
        drop(turn);
        flaw.filter(|_| is_free_still).map(|flaw| (state, flaw))
    }

    /// Whether the program has the object of the slab that starts at `start`. The caller keeps the
    /// slab from being released.
    pub fn is_live(&self, start: *mut u8) -> bool {
        let object = Object { debug: self, pointer: self.pointer(start) as usize };
        object.state() == LIVE
    }

    /// Reports the objects of a cache that the program destroys while they are in use: the first
    /// eight.
    pub fn report_live(&self, slabs: &Slabs, live: &[*mut u8]) {
        for &pointer in live.iter().take_while(|pointer| !pointer.is_null()) {
            tell::live(&Object { debug: self, pointer: pointer as usize }, slabs.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::debugging::{CHECKS, RED_ZONE, SECURE, ZERO};
    use core::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    /// A walk waits under the lock of its cache's lists.
    #[test]
    fn a_fork_child_does_not_wait_for_the_parents_look() {
        // It would wait for a second. Of five attempts a busy machine does not delay all.
        let waits = || {
            let lost = Turn::wait();
            reset_in_child();
            let start = Instant::now();
            drop(Turn::wait());
            drop(lost);
            start.elapsed()
        };
        assert!((0..5).any(|_| waits() < Duration::from_millis(500)));
    }

    #[test]
    fn a_look_finds_what_is_wrong_and_gives_it_up_where_the_object_is_allocated() {
        let debug = Debug::new(CHECKS | RED_ZONE | SECURE | ZERO, 64, 16, None);
        let memory = [const { AtomicU64::new(0) }; 16];
        let start = memory[memory.as_ptr().align_offset(16)..].as_ptr() as *mut u8;
        let object = Object { debug: &debug, pointer: debug.pointer(start).addr() };
        object.begin();
        object.put(FREE);
        assert!(debug.looks_whole(&object) && debug.look(&object).is_none());
        let asked = object.word();
        // SAFETY: bytes of the object.
        unsafe { ((object.pointer - 1) as *mut u8).write(!((key(object.pointer) >> 56) as u8)) };
        assert!(!debug.looks_whole(&object));
        assert!(matches!(debug.look(&object), Some((FREE, Flaw::Zone(_, true)))));
        assert_eq!((object.state(), debug.is_faulty(&object)), (FREE, true), "it stays as it is");
        object.write_canary_before();
        assert_eq!(object.word(), asked);
        object.set_word(asked.with_state(LIVE));
        assert!(debug.look(&object).is_none(), "an object in use is another walk's matter");
        // An allocation that had read `FREE` replaces the record during a look.
        object.set_word(asked.with_state(LOOKED_AT));
        object.set_word(asked.with_state(LIVE));
        assert!(!object.replace_word(asked.with_state(LOOKED_AT), asked));
    }
}

//! Debugged runs of pages: objects like those of a cache, with a layout of their own.

use super::bytes::fill;
use super::object::{BUSY, FREE, LIVE, Object, Release, Request, User, ZONE_FREE, ZONE_USED};
use super::{Debug, tell};
use crate::os;
use crate::os::checkers;

/// Longest run of which a free writes zeroes. The 64 runs in the quarantine hold 16 MiB at most by
/// that.
const MAX_FILLED_BYTES: usize = 256 << 10;

/// A debugged run.
pub(crate) struct Large<'a> {
    pub(super) object: Object<'a>,
}

impl Debug {
    /// The debugging of a run of `bytes`, whose record lies `offset` bytes before it.
    pub(crate) fn of_run(letters: u8, offset: usize, bytes: usize) -> Debug {
        let (front, stride) = (offset, offset + bytes);
        Debug { letters, offset, front, stride, bytes, constructor: None, is_plain: false, is_run: true }
    }
}

impl<'a> Large<'a> {
    /// The run at `pointer`, whose pages, and those of the record, the library owns.
    pub fn new(debug: &'a Debug, pointer: usize) -> Large<'a> {
        Large { object: Object { debug, pointer } }
    }

    /// The bytes that the program asked for.
    pub fn asked(&self) -> usize {
        self.object.asked()
    }

    /// Whether the object is in use.
    pub fn is_live(&self) -> bool {
        self.object.state() == LIVE
    }

    /// Makes fresh pages an object in use. `is_zeroed` is true if its bytes are known to be zero.
    pub fn begin(&self, name: &str, request: Request, is_zeroed: bool) {
        self.object.begin();
        self.object.set(request);
        self.object.fill_zones(request.bytes, ZONE_USED);
        if self.object.debug.has_canaries() {
            self.object.write_canary_before();
            self.object.write_canary_behind(request.bytes);
        }
        self.object.note(User::Allocated);
        self.object.forget(User::Freed);
        if self.object.debug.traces() {
            tell::trace(&self.object, name, "allocated");
        }
        if self.object.debug.is_guarded_by_checker() {
            self.object.debug.hide(self.object.pointer);
            checkers::allocated(self.object.pointer, request.bytes, is_zeroed);
        }
        self.object.put(LIVE);
    }

    /// Checks a free, and makes the object a free one. False where the free was reported and must
    /// do nothing.
    pub fn end(&self, name: &str, release: Release) -> bool {
        let object = &self.object;
        match object.take(&[LIVE]) {
            Ok(_) => {}
            Err(FREE) => {
                tell::double_free(object, name);
                return false;
            }
            // The thread that works on it is lost, in a fork child, and the object with it.
            Err(BUSY) => return false,
            Err(_) => {
                tell::record_overwritten(object, name);
                return false;
            }
        }
        tell::check_used(object, name);
        tell::check_release(object, name, release);
        object.fill_zones(object.debug.bytes, ZONE_FREE);
        if object.debug.has_canaries() {
            object.clear_canary(object.asked());
        }
        if object.debug.poisons() {
            object.poison();
        } else if object.debug.zeroes() {
            clear(object);
        }
        object.note(User::Freed);
        if object.debug.traces() {
            tell::trace(object, name, "freed");
        }
        if object.debug.is_guarded_by_checker() {
            checkers::freed(object.pointer, object.asked());
        }
        object.put(FREE);
        true
    }

    /// Ends the life of a free object, whose pages go back.
    pub fn leave(&self) {
        self.object.debug.show(self.object.pointer);
    }

    /// Checks a free object; returns whether the program overwrote it.
    pub fn check_free(&self, name: &str) -> bool {
        let object = &self.object;
        let Ok(state) = object.take(&[FREE]) else { return false };
        let is_faulty = tell::is_faulty_free(object, state);
        tell::check_free(object, name, state);
        object.put(state);
        is_faulty
    }

    /// Checks the zones of an object in use; returns whether the program overwrote them. It takes
    /// the object only where they look wrong.
    pub fn check_live(&self, name: &str) -> bool {
        let object = &self.object;
        let is_wrong = || tell::wrong_zone(object, object.asked(), ZONE_USED).is_some();
        if !self.is_live() || !is_wrong() || object.take(&[LIVE]).is_err() {
            return false;
        }
        let is_faulty = is_wrong();
        tell::check_used(object, name);
        object.put(LIVE);
        is_faulty
    }

    /// Reports a free of the pointer `at`: inside the object, or at its start if it is free.
    pub fn report_misuse(&self, name: &str, at: usize) {
        if at == self.object.pointer {
            tell::double_free(&self.object, name);
        } else {
            tell::inside(&self.object, name, at);
        }
    }
}

/// Zeroes the bytes of a run that the program had. The system takes the memory of a long one, if it
/// is whole pages of its own. Each of these pages then costs two faults: when it leaves the
/// quarantine, and when the program has it again. So shorter runs keep their memory.
fn clear(object: &Object<'_>) {
    let (range, page) = (object.bytes(), os::memory::page_bytes());
    let is_whole = range.start.is_multiple_of(page) && range.len().is_multiple_of(page);
    let is_long = range.len() > MAX_FILLED_BYTES;
    // SAFETY: whole pages of a free object, which the calling thread has taken.
    let purge = || unsafe { os::memory::purge(range.start as *mut u8, range.len()) };
    if !(is_long && is_whole && purge()) {
        fill(range.start..range.start + object.asked(), 0);
    }
}

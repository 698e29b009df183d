//! Walks over all objects of a debugged cache: checks on request, and objects left at the end.

use super::object::{FREE, LIVE, NEVER, Object, ZONE_USED};
use super::{Debug, tell};
use crate::slab::Slabs;
use crate::sync::prefetch_for_read;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// Upper bound on the faulty objects that one walk reports.
const MAX_REPORTS: usize = 64;
/// Distance at which a walk prefetches the objects ahead.
const AHEAD_BYTES: usize = 1024;

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
            // Another thread may have found it meanwhile.
            if let Ok(state) = object.take(&[FREE, NEVER, LIVE]) {
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
        let has_canaries = self.has_canaries();
        match object.record().state.load(Acquire) {
            LIVE if self.is_plain() => !has_canaries || object.has_whole_canaries(object.asked()),
            LIVE => tell::wrong_zone(object, object.asked(), ZONE_USED).is_none(),
            state @ (FREE | NEVER) if self.is_plain() => {
                let is_right = state == NEVER || !self.zeroes() || object.is_cleared();
                is_right && (!has_canaries || object.has_whole_canary_before())
            }
            state @ (FREE | NEVER) => !tell::is_faulty_free(object, state),
            // A thread works on it. A record that the program overwrote is reported by the free.
            _ => true,
        }
    }

    /// As the opposite of [`Debug::looks_whole`], of an object that the thread takes for that time.
    #[cold]
    fn is_faulty(&self, object: &Object<'_>) -> bool {
        let Ok(state) = object.take_at_once() else { return false };
        let is_faulty = match state {
            LIVE => tell::wrong_zone(object, object.asked(), ZONE_USED).is_some(),
            _ => tell::is_faulty_free(object, state),
        };
        object.put(state);
        is_faulty
    }

    /// Whether the program has the object of the slab that starts at `start`. The caller keeps the
    /// slab from being released.
    pub fn is_live(&self, start: *mut u8) -> bool {
        let object = Object { debug: self, pointer: self.pointer(start) as usize };
        object.record().state.load(Relaxed) == LIVE
    }

    /// Reports the objects of a cache that the program destroys while they are in use: the first
    /// eight.
    pub fn report_live(&self, slabs: &Slabs, live: &[*mut u8]) {
        for &pointer in live.iter().take_while(|pointer| !pointer.is_null()) {
            tell::live(&Object { debug: self, pointer: pointer as usize }, slabs.name());
        }
    }
}

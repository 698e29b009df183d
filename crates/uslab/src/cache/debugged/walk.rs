//! Walks over all objects of a debugged cache: checks on request, and objects left at the end.

use super::object::{FREE, LIVE, NEVER, Object, ZONE_USED};
use super::{Debug, tell};
use crate::slab::Slabs;
use core::sync::atomic::Ordering::Relaxed;

/// Upper bound on the faulty objects that one walk reports.
const MAX_REPORTS: usize = 64;

impl Debug {
    /// Checks all objects, and reports those that the program overwrote; returns how many. Objects
    /// that other threads work on are left out.
    pub fn check_all(&self, slabs: &Slabs) -> usize {
        // Reports may call back into the program, so none is written under the lists' lock.
        (0..MAX_REPORTS).take_while(|_| self.check_next(slabs)).count()
    }

    /// Finds a faulty object and reports it; false if there is none.
    fn check_next(&self, slabs: &Slabs) -> bool {
        let mut found = None;
        slabs.for_each_object(|start, _| {
            let object = Object { debug: self, pointer: self.pointer(start) as usize };
            if let Ok(state) = object.take_at_once() {
                if self.is_faulty(&object, state) {
                    found = Some(object.pointer);
                }
                object.put(state);
            }
            found.is_none()
        });
        let Some(pointer) = found else { return false };
        let object = Object { debug: self, pointer };
        // Another thread may have found it meanwhile.
        if let Ok(state) = object.take(&[FREE, NEVER, LIVE]) {
            if state == LIVE {
                tell::check_used(&object, slabs.name())
            } else {
                tell::check_free(&object, slabs.name(), state)
            }
            object.put(state);
        }
        true
    }

    /// Checks the object of the slab at `start`, if it is free and no thread works on it.
    pub fn check_resting(&self, slabs: &Slabs, start: *mut u8) {
        let object = Object { debug: self, pointer: self.pointer(start).addr() };
        if let Ok(state) = object.take_at_once() {
            if state == FREE {
                tell::check_free(&object, slabs.name(), state);
            }
            object.put(state);
        }
    }

    fn is_faulty(&self, object: &Object<'_>, state: u32) -> bool {
        if state == LIVE {
            return tell::wrong_zone(object, object.asked(), ZONE_USED).is_some();
        }
        tell::is_faulty_free(object, state)
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

//! Frees of debugged objects.

use super::object::{BUSY, FREE, LIVE, NEVER, Object, Release, User, ZONE_FREE};
use super::{Debug, tell};
use crate::os::checkers;
use crate::slab::{Misuse, Slabs};

impl Debug {
    /// Checks a free of `pointer`, and makes the object a free one. Returns the object of the slab,
    /// or `None` where the free was reported and must do nothing.
    pub fn take_back(&self, slabs: &Slabs, pointer: *mut u8, release: Release) -> Option<*mut u8> {
        let name = slabs.name();
        let Some((start, is_free)) = self.object_around(slabs, pointer) else {
            let misuse = slabs.misuse_of(pointer).unwrap_or(Misuse::NotAnObject);
            tell::stray(name, pointer, misuse);
            return None;
        };
        let object = Object { debug: self, pointer: self.pointer(start) as usize };
        if object.pointer != pointer as usize {
            tell::inside(&object, name, pointer as usize);
            return None;
        }
        match object.take(&[LIVE]) {
            Ok(_) => {}
            Err(FREE | NEVER) => {
                tell::double_free(&object, name);
                return None;
            }
            Err(BUSY) if is_free => {
                tell::double_free(&object, name);
                return None;
            }
            // The thread that works on it is lost, in a fork child, and the object with it.
            Err(BUSY) => return None,
            Err(_) => {
                tell::record_overwritten(&object, name);
                return None;
            }
        }
        tell::check_used(&object, name);
        tell::check_release(&object, name, release);
        let asked = object.asked();
        object.fill_zones(self.bytes, ZONE_FREE);
        if self.poisons() {
            object.poison();
        } else if self.zeroes() {
            object.clear_with_canary(asked);
        } else if self.has_canaries() {
            object.clear_canary(asked);
        }
        object.note(User::Freed);
        if self.traces() {
            tell::trace(&object, name, "freed");
        }
        if self.is_guarded_by_checker() {
            checkers::freed(object.pointer, object.asked());
        }
        object.put(FREE);
        Some(start)
    }

    /// Reports a misuse of `pointer`, in a slab of the cache.
    pub fn report_misuse(&self, slabs: &Slabs, pointer: *const u8, misuse: Misuse) {
        let name = slabs.name();
        let Some((start, _)) = self.object_around(slabs, pointer) else {
            return tell::stray(name, pointer, misuse);
        };
        let object = Object { debug: self, pointer: self.pointer(start) as usize };
        if object.pointer == pointer as usize {
            tell::double_free(&object, name);
        } else {
            tell::inside(&object, name, pointer as usize);
        }
    }

    /// The misuse that a free of `pointer` would be; `None` for an object in use.
    pub fn misuse_of(&self, slabs: &Slabs, pointer: *const u8) -> Option<Misuse> {
        if slabs.has_object_at(pointer.wrapping_sub(self.offset)) {
            let object = Object { debug: self, pointer: pointer.addr() };
            if object.state() == LIVE {
                return None;
            }
        }
        let Some((start, is_free)) = self.object_around(slabs, pointer) else {
            return slabs.misuse_of(pointer).or(Some(Misuse::NotAnObject));
        };
        let object = Object { debug: self, pointer: self.pointer(start) as usize };
        if object.pointer != pointer as usize {
            return Some(Misuse::Inside(object.pointer));
        }
        let state = object.state();
        (is_free || state == FREE || state == NEVER).then_some(Misuse::DoubleFree)
    }

    /// The object whose own bytes contain the one at `pointer`, and whether it is free in its slab.
    pub(super) fn object_around(&self, slabs: &Slabs, pointer: *const u8) -> Option<(*mut u8, bool)> {
        // No object has the first bytes of a slab, which count as the first object's.
        let around = slabs.object_around(pointer.wrapping_sub(self.spill_bytes()));
        around.or_else(|| slabs.object_around(pointer))
    }

    /// The bytes that the program asked for at `pointer`, an object in use.
    pub fn asked_at(&self, pointer: *const u8) -> usize {
        Object { debug: self, pointer: pointer as usize }.asked()
    }
}

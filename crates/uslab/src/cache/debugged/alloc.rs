//! Allocations of debugged objects, and the making of their slabs.

use super::bytes::fill;
use super::object::{BUSY, FREE, LIVE, NEVER, NEVER_USED, Object, Request, User, ZONE_FREE, ZONE_USED};
use super::{Debug, tell};
use crate::os::checkers;

impl Debug {
    /// Makes the pointers of the program from objects that came out of slabs.
    pub fn hand_out(&self, name: &str, objects: &mut [*mut u8], request: Request) {
        for place in objects {
            *place = self.hand_out_each(name, *place, request);
        }
    }

    /// [`Debug::hand_out`] of one object.
    #[inline(always)]
    pub fn hand_out_each(&self, name: &str, start: *mut u8, request: Request) -> *mut u8 {
        match self.is_plain() {
            true => self.hand_out_plain(name, start, request),
            false => self.hand_out_one(name, start, request),
        }
    }

    /// The long way of [`Debug::hand_out_plain`], for an object that it could not take.
    #[cold]
    pub(super) fn hand_out_long(&self, name: &str, start: *mut u8, request: Request) -> *mut u8 {
        self.hand_out_one(name, start, request)
    }

    /// Inlined: each frame more is one more that the stack of a user costs.
    #[inline(always)]
    fn hand_out_one(&self, name: &str, start: *mut u8, request: Request) -> *mut u8 {
        let object = Object { debug: self, pointer: self.pointer(start) as usize };
        match object.take(&[FREE, NEVER]) {
            Ok(state) => tell::check_free(&object, name, state),
            // The object is the caller's: only a thread of the parent process is still at work.
            Err(BUSY) => {}
            Err(_) => tell::record_overwritten(&object, name),
        }
        object.set(request);
        let asked = object.asked();
        if self.has_canaries() {
            object.write_canary_behind(asked);
        } else {
            object.fill_zones(asked, ZONE_USED);
        }
        object.note(User::Allocated);
        object.forget(User::Freed);
        if self.traces() {
            tell::trace(&object, name, "allocated");
        }
        if self.is_guarded_by_checker() {
            checkers::allocated(object.pointer, asked, self.constructor.is_some());
        }
        object.put(LIVE);
        object.pointer as *mut u8
    }

    /// Makes the objects of a fresh slab: the slab's constructor calls it for each.
    ///
    /// # Safety
    /// `start` must be fresh memory of an object, and `data` the address of the cache's `Debug`.
    pub unsafe fn construct(start: *mut u8, data: usize) {
        // SAFETY: the caller's promise; the structure lives as long as the cache.
        let debug = unsafe { &*(data as *const Debug) };
        let pointer = debug.pointer(start);
        let object = Object { debug, pointer: pointer as usize };
        object.begin();
        object.fill_zones(debug.bytes, ZONE_FREE);
        if debug.has_canaries() {
            object.write_canary_before();
        }
        if let Some(constructor) = debug.constructor {
            // SAFETY: the user promised that the constructor accepts fresh memory.
            unsafe { (constructor.call)(pointer, constructor.data) };
        } else if debug.poisons() {
            fill(object.bytes(), NEVER_USED);
        }
        debug.hide(object.pointer);
    }

    /// Checks an object of a slab that goes back to the page layer.
    ///
    /// # Safety
    /// `start` must be a free object of the slab, and `data` as in [`Debug::construct`].
    pub unsafe fn release(start: *mut u8, data: usize, name: &str) {
        // SAFETY: the caller's promise.
        let debug = unsafe { &*(data as *const Debug) };
        let object = Object { debug, pointer: debug.pointer(start) as usize };
        match object.take(&[FREE, NEVER]) {
            Ok(state) => tell::check_free(&object, name, state),
            // The object is the caller's: only a thread of the parent process is still at work.
            Err(BUSY) => {}
            Err(_) => tell::record_overwritten(&object, name),
        }
        debug.show(object.pointer);
    }
}

//! Frees of debugged and hardened objects.

use super::body::Core;
use super::debugged::{Debug, Release, quarantine};
use super::registry;
use crate::pages;
use crate::rseq::Pushed;

impl Core {
    /// # Safety
    /// As [`Core::free_slow`].
    #[cold]
    pub(super) unsafe fn free_debugged(&self, debug: &Debug, pointer: *mut u8, release: Release) {
        let slabs = self.cpu.slabs();
        let place = self.quarantine.and_then(quarantine::choose);
        let taken = match debug.is_plain() {
            true => debug.take_back_plain(slabs, pointer, release),
            false => debug.take_back(slabs, pointer, release),
        };
        let Some(object) = taken else { return };
        let Some(place) = place else {
            // SAFETY: an object of this cache that was in use.
            return unsafe { self.put_back(object) };
        };
        let Some(left) = quarantine::exchange(place, object) else { return };
        // The page map names the cache, where a wild write may have changed this one.
        let core = pages::owner_of(left).and_then(|owner| registry::cache(owner.id()));
        if let Some(core) = core {
            // SAFETY: a free object of that cache, which only the quarantine had.
            unsafe { core.put_back(left) };
        }
    }

    /// # Safety
    /// `object` must be a free object of this cache that the caller owns.
    #[inline]
    unsafe fn put_back(&self, object: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.cpu.push_hidden(object) == Pushed::Slow {
                self.cpu.free_slow(&[object]);
            }
        }
    }

    /// # Safety
    /// As [`Core::free_slow`].
    #[cold]
    pub(super) unsafe fn free_late(&self, object: *mut u8, release: Release) {
        if self.late.may_free(self.cpu.slabs(), object, release) {
            // SAFETY: an object of this cache that was in use.
            unsafe { self.cpu.free_slow(&[object]) };
        }
    }

    /// Takes the objects of a cache that the program created out of its quarantine.
    pub(super) fn leave_quarantine(&self) {
        if let Some(places) = self.quarantine {
            // SAFETY: free objects of this cache, which only its quarantine had.
            quarantine::leave(places, |object| unsafe { self.cpu.free_slow(&[object]) });
        }
    }
}

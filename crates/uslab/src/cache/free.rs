//! Frees of debugged and hardened objects.

use super::body::Core;
use super::debugged::{Debug, Release, has_quarantine, quarantine};
use super::registry;
use crate::pages;

impl Core {
    /// # Safety
    /// As [`Core::free_slow`].
    #[cold]
    pub(super) unsafe fn free_debugged(&self, debug: &Debug, pointer: *mut u8, release: Release) {
        let Some(object) = debug.take_back(self.cpu.slabs(), pointer, release) else { return };
        if !debug.is_secure() || !has_quarantine() {
            // SAFETY: an object of this cache that was in use.
            return unsafe { self.cpu.free_slow(&[object]) };
        }
        let bytes = self.cpu.slabs().geometry().object_bytes;
        if let Some(places) = self.quarantine {
            let Some(left) = quarantine::exchange(places, object, bytes) else { return };
            // SAFETY: a free object of this cache, which only its quarantine had.
            return unsafe { self.cpu.free_slow(&[left]) };
        }
        let Some(left) = quarantine::exchange(quarantine::shared(bytes), object, bytes) else { return };
        let core = pages::owner_of(left).and_then(|owner| registry::cache(owner.id()));
        if let Some(core) = core {
            // SAFETY: a free object of that cache, which only the quarantine had.
            unsafe { core.cpu.free_slow(&[left]) };
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

//! The slow path of allocation: starts the background thread for caches of the program, and
//! reclaims if memory is used up.

use super::body::Core;
use super::debugged::{Family, Request};
use super::{background, hooks};
use crate::os;
use crate::pages::{self, PAGE_BYTES};

impl Core {
    /// The slow path of allocation, for one object.
    #[cold]
    #[inline(never)]
    pub extern "C" fn alloc_slow(&self) -> *mut u8 {
        self.alloc_slow_for(self.request())
    }

    /// [`Core::alloc_slow`], with the request; only debugged caches heed it.
    pub(crate) fn alloc_slow_for(&self, request: Request) -> *mut u8 {
        match self.is_followed() {
            true => self.alloc_followed(request),
            false => self.alloc_one(request, Self::fill_slowly),
        }
    }

    /// [`Core::alloc_slow_for`] in a followed cache. Only this function counts an allocation: in a
    /// static program a sample's stack has the library's frames, too, and calls from two functions
    /// would give one line of the program two stacks.
    #[inline(never)]
    fn alloc_followed(&self, request: Request) -> *mut u8 {
        let mut object = self.pop_followed();
        if object.is_null() {
            object = self.alloc_one(request, Self::fill_slowly);
        }
        if !object.is_null() {
            self.count_allocated(&[object]);
        }
        object
    }

    /// Fills all of `out`, and reclaims if it must. The objects are not handed out yet.
    fn fill_slowly(&self, out: &mut [*mut u8]) -> bool {
        self.fill_by(out, |out| self.cpu.alloc_slow(out))
    }

    /// Serves one object, by `fill` if hidden sheaves do not. It is not counted.
    #[inline]
    fn alloc_one(&self, request: Request, fill: impl Fn(&Self, &mut [*mut u8]) -> bool) -> *mut u8 {
        let mut out = [self.cpu.pop_hidden()];
        if out[0].is_null() && !fill(self, &mut out) {
            return core::ptr::null_mut();
        }
        // Objects of both sources come here: in a static program a recorded stack has the library's
        // frames, too, and each allocation of one line of the program is to have the same stack.
        if let Some(debug) = &self.debug {
            return debug.hand_out_each(self.cpu.slabs().name(), out[0], request);
        }
        if self.late.is_on() {
            self.late.note_allocated(self.cpu.slabs().name(), &out, request.bytes);
        }
        out[0]
    }

    /// The request of a caller that uses the cache itself.
    fn request(&self) -> Request {
        Request { bytes: self.user_bytes, family: Family::Cache }
    }

    /// Fills all of `out` from the sheaves and slabs, and counts nothing. On false, `out` holds no
    /// object.
    fn take(&self, out: &mut [*mut u8], request: Request) -> bool {
        let is_filled = self.cpu.alloc_slow(out);
        if is_filled && let Some(debug) = &self.debug {
            debug.hand_out(self.cpu.slabs().name(), out, request);
        } else if is_filled && self.late.is_on() {
            self.late.note_allocated(self.cpu.slabs().name(), out, request.bytes);
        }
        is_filled
    }

    /// [`Core::take`], which counts in a followed cache.
    fn take_counted_each(&self, out: &mut [*mut u8], request: Request) -> bool {
        let is_filled = self.take(out, request);
        if is_filled && self.is_followed() {
            self.count_allocated(out);
        }
        is_filled
    }

    /// As [`Core::alloc_slow`], but fails instead of reclaiming if memory is used up.
    #[cold]
    #[inline(never)]
    pub extern "C" fn alloc_slow_noreclaim(&self) -> *mut u8 {
        self.alloc_noreclaim_for(self.request())
    }

    /// [`Core::alloc_slow_noreclaim`], with the request.
    pub(crate) fn alloc_noreclaim_for(&self, request: Request) -> *mut u8 {
        let object = self.alloc_one(request, |core, out| core.cpu.alloc_slow(out));
        if !object.is_null() && self.is_followed() {
            self.count_allocated(&[object]);
        }
        object
    }

    /// Fills all of `out`, and reclaims if it must. On false, `out` holds no object.
    pub(super) fn fill(&self, out: &mut [*mut u8]) -> bool {
        self.fill_for(out, self.request())
    }

    fn fill_for(&self, out: &mut [*mut u8], request: Request) -> bool {
        let is_filled = self.fill_by(out, |out| self.take(out, request));
        if is_filled && self.is_followed() {
            self.count_allocated(out);
        }
        is_filled
    }

    /// Fills all of `out` by `take`, and reclaims if it must. On false, `out` holds no object.
    pub(super) fn fill_by(&self, out: &mut [*mut u8], take: impl Fn(&mut [*mut u8]) -> bool) -> bool {
        if self.programs_own {
            background::begin_if_large();
        }
        if take(out) {
            return true;
        }
        let _errno = os::errno::Preserved::new();
        let bytes = out.len().saturating_mul(self.cpu.slabs().geometry().object_bytes);
        // Evict no entries for a request that can never succeed.
        if !pages::is_possible(bytes.div_ceil(PAGE_BYTES), 0) {
            return false;
        }
        // The sheaf that comes with the object may take a page, too.
        let bytes = bytes.max(self.slab_bytes()).saturating_add(PAGE_BYTES);
        (hooks::get().short)(bytes, &mut || take(out))
    }

    fn slab_bytes(&self) -> usize {
        self.cpu.slabs().geometry().pages() * PAGE_BYTES
    }

    /// Fills all of `out`. On false, it holds no object.
    pub fn alloc_bulk(&self, out: &mut [*mut u8]) -> bool {
        self.bulk(out, Self::fill)
    }

    /// As [`Core::alloc_bulk`], with the request for each object.
    pub(crate) fn alloc_bulk_for(&self, out: &mut [*mut u8], request: Request) -> bool {
        self.bulk(out, |core, out| core.fill_for(out, request))
    }

    /// As [`Core::alloc_bulk`], without reclaim.
    pub fn alloc_bulk_noreclaim(&self, out: &mut [*mut u8]) -> bool {
        self.bulk(out, |core, out| core.take_counted_each(out, core.request()))
    }

    #[inline]
    fn bulk(&self, out: &mut [*mut u8], fill: impl Fn(&Self, &mut [*mut u8]) -> bool) -> bool {
        // SAFETY: the slots are the cache's.
        let got = unsafe { crate::rseq::pop_bulk(self.slots(), out.len(), out.as_mut_ptr()) };
        if got == out.len() || fill(self, &mut out[got..]) {
            return true;
        }
        // SAFETY: just popped, and unused.
        unsafe { self.free_bulk(&out[..got]) };
        false
    }
}

//! The core of a cache, to which both kinds of handle point; its address never changes.

use super::debugged::quarantine::Place;
use super::debugged::{Debug, Release, Request};
use super::followed::Followed;
use super::late::Late;
use crate::counters::layout;
use crate::os::facts::{Fact, facts};
use crate::os::invariant::Checked;
use crate::pages::{PageIndex, Run};
use crate::percpu::{self, CpuCache};
use crate::rseq::{Owner, Pushed, Slot};
use crate::slab::{Misuse, report_misuse};
use core::cell::UnsafeCell;

/// A live cache.
pub struct Core {
    pub(super) cpu: CpuCache,
    pub(super) name: [u8; layout::NAME_BYTES],
    pub(super) name_len: usize,
    pub(super) user_bytes: usize,
    pub(super) constructed: bool,
    /// Whether the program created the cache, rather than `malloc`: then every caller that
    /// allocates from it is the program.
    pub(super) programs_own: bool,
    /// Whether the heap profile follows the cache: one of the program, or of a private heap.
    pub(super) is_followable: bool,
    /// The debugging of the cache's objects. Its address stays, for the objects' constructor.
    pub(super) debug: Option<Debug>,
    /// The debugging that was switched on later, in a cache without any of its own.
    pub(super) late: Late,
    pub(super) followed: Followed,
    /// For a debugger: bytes from an object of the slab to the pointer of the program, or 0 where
    /// objects have no record; bytes to the record; and whether the record has users.
    pub(super) pointer_offset: usize,
    pub(super) record_offset: usize,
    pub(super) has_users: bool,
    /// The quarantine's places, in hardened caches. Those of `malloc` share theirs.
    pub(super) quarantine: Option<&'static [Place]>,
    /// The memory of this cache, for reuse by a later cache, and then a link of the registry's
    /// list. Guarded by the registry's lock, unlike the other fields, which threads that walk the
    /// caches may read without it.
    pub(super) spare: UnsafeCell<Spare>,
}

/// A cache, for a debugger.
pub(super) const FACTS: &[Fact] =
    facts!(Core { cpu, name, name_len, user_bytes, pointer_offset, record_offset, has_users });

/// The memory of one cache. All caches need the same sizes, so any cache can reuse it.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub core: *mut Core,
    pub slots: *mut u8,
    /// See [`CpuCache::owner`].
    pub locked_owner: *mut Slot,
    pub lists: *mut u8,
    pub barns: *mut u8,
    /// For [`crate::counters::Tally::lines`].
    pub tallies: *mut u8,
    /// Null until the heap profile needs it; see [`CpuCache::make_hidden_row`].
    pub hidden_row: *mut Slot,
    /// Empty until a hardened cache of the program needs it.
    pub quarantine: &'static [Place],
}

/// Memory that no cache uses, in the registry's list.
pub(super) struct Spare {
    pub memory: Memory,
    pub next: *mut Spare,
}

impl Memory {
    /// Pushes memory that no cache uses onto the list `head`, whose links lie in the memory itself.
    pub fn push(self, head: &mut *mut Spare) {
        // SAFETY: memory for a core, perhaps never initialised. The registry's lock protects the
        // field, and the caller, which has the list, holds it.
        let place = unsafe { UnsafeCell::raw_get(&raw const (*self.core).spare) };
        // SAFETY: as above.
        unsafe { place.write(Spare { memory: self, next: *head }) };
        *head = place;
    }

    /// Takes memory off the list.
    pub fn pop(head: &mut *mut Spare) -> Option<Memory> {
        // SAFETY: the list holds what `push` wrote.
        let spare = unsafe { head.as_ref()? };
        *head = spare.next;
        Some(spare.memory)
    }
}

impl Core {
    /// Checks the cache's structures; see [`CpuCache::check`].
    pub fn check(&self) -> Checked<percpu::Walked> {
        self.cpu.check()
    }

    /// The id in the page map and in statistics.
    pub fn id(&self) -> u16 {
        self.cpu.slabs().id()
    }

    /// The name, cut to its first 47 bytes at a character boundary.
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..self.name_len]).unwrap_or("?")
    }

    /// The requested object size, in bytes.
    pub fn user_bytes(&self) -> usize {
        self.user_bytes
    }

    /// Usable bytes of an object: the distance to the next one, or, of debugged objects, those
    /// asked for.
    pub fn usable_bytes(&self) -> usize {
        if self.debug.is_some() { self.user_bytes } else { self.cpu.slabs().geometry().object_bytes }
    }

    /// Whether every object is aligned to `align`, a power of two up to a page.
    #[allow(dead_code, reason = "asked by an optional interface")]
    pub(crate) fn is_aligned_to(&self, align: usize) -> bool {
        let offset = self.debug.as_ref().map_or(0, |debug| debug.pointer(core::ptr::null_mut()) as usize);
        (self.cpu.slabs().geometry().object_bytes | offset).is_multiple_of(align)
    }

    /// Usable bytes of the object at `pointer`, on `page`, which belongs to the cache; `None` if no
    /// object in use starts there.
    #[inline]
    pub(crate) fn usable_bytes_at(&self, page: PageIndex, pointer: *const u8) -> Option<usize> {
        let slabs = self.cpu.slabs();
        match &self.debug {
            None => slabs.is_taken_at(page, pointer).then_some(slabs.geometry().object_bytes),
            Some(debug) => debug.misuse_of(slabs, pointer).is_none().then(|| debug.asked_at(pointer)),
        }
    }

    /// As [`Core::usable_bytes_at`], but the object may be free unless the cache is debugged. So it
    /// does not read the slab's bitmap, which saves a cache miss.
    #[inline]
    pub(crate) fn bytes_at(&self, page: PageIndex, pointer: *const u8) -> Option<usize> {
        let slabs = self.cpu.slabs();
        match &self.debug {
            None => slabs.is_start_at(page, pointer).then_some(slabs.geometry().object_bytes),
            Some(debug) => debug.live_bytes_at(slabs, pointer),
        }
    }

    /// Gives the object in use at `pointer` the size that `request` names, in its place. False
    /// where the program must get another object, or a report.
    pub(crate) fn resize_in_place(&self, pointer: *mut u8, request: Request) -> bool {
        self.debug.as_ref().is_some_and(|debug| debug.resize_plain(self.cpu.slabs(), pointer, request))
    }

    /// Whether the cache is debugged, and was from the start.
    pub(crate) fn is_debugged(&self) -> bool {
        self.debug.is_some()
    }

    /// Whether frees must pass the checks of debugging.
    pub(super) fn checks_frees(&self) -> bool {
        self.is_debugged() || self.late.is_on()
    }

    /// Whether debugging, or the heap profile, is to see each free.
    pub(super) fn sees_frees(&self) -> bool {
        self.checks_frees() || self.is_followed()
    }

    /// Whether each object is a run of pages by itself.
    pub(crate) fn is_run(&self) -> bool {
        self.cpu.slabs().geometry().is_run()
    }

    /// Takes an object that is a run out of the cache; see [`crate::slab::Slabs::disown_run`].
    pub(crate) fn disown_run(&self, object: *mut u8) -> Option<Run> {
        self.cpu.slabs().disown_run(object)
    }

    /// Whether the cache has a constructor.
    pub fn is_constructed(&self) -> bool {
        self.constructed
    }

    /// The slots for the fast path.
    pub fn slots(&self) -> *mut Slot {
        self.cpu.fast_slots()
    }

    /// The slots for bulk frees on the fast path.
    pub fn bulk_slots(&self) -> *mut Slot {
        self.cpu.fast_bulk_slots()
    }

    /// Whether the page map names this cache by `owner`.
    pub(crate) fn is_named_by(&self, owner: Owner) -> bool {
        self.cpu.slabs().is_owned_by(owner)
    }

    /// The slow path of free for one object. Reports a pointer that is not an object of the cache.
    ///
    /// # Safety
    /// `object` must be an object of this cache that no thread uses.
    #[cold]
    #[inline(never)]
    pub unsafe extern "C" fn free_slow(&self, object: *mut u8) {
        // Where allocations pop from a lending row, each free that names its cache comes here. If
        // calls are to be seen, the row has dummies.
        // SAFETY: the caller's promise.
        match unsafe { self.cpu.push_by_page_map(object) } {
            Pushed::Done => {}
            Pushed::Twice => self.report_double_free(object),
            // SAFETY: as above.
            Pushed::Slow => unsafe { self.free_slow_plain(object) },
        }
    }

    /// [`Core::free_slow`], where the page map names no row with room.
    ///
    /// # Safety
    /// As [`Core::free_slow`].
    #[inline(never)]
    unsafe extern "C" fn free_slow_plain(&self, object: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.free_slow_for(object, Release::PLAIN) };
    }

    /// [`Core::free_slow`], with what else the call names; only debugged caches heed it.
    ///
    /// # Safety
    /// As [`Core::free_slow`].
    pub(crate) unsafe fn free_slow_for(&self, object: *mut u8, release: Release) {
        if self.is_followed() {
            self.count_freed(object);
        }
        if let Some(debug) = &self.debug {
            // SAFETY: the caller's promise.
            return unsafe { self.free_debugged(debug, object, release) };
        }
        if self.late.is_on() {
            // SAFETY: the caller's promise.
            return unsafe { self.free_late(object, release) };
        }
        // SAFETY: the caller's promise.
        match unsafe { self.cpu.push_home(object) } {
            Some(Pushed::Twice) => return self.report_double_free(object),
            Some(_) => return,
            None => {}
        }
        if let Some(misuse) = self.misuse_of(object) {
            return report_misuse(misuse, object, self.name());
        }
        // SAFETY: the caller's promise.
        unsafe {
            match self.cpu.push_hidden(object) {
                Pushed::Done => {}
                Pushed::Twice => self.report_double_free(object),
                Pushed::Slow => self.cpu.free_slow(&[object]),
            }
        }
    }

    /// The misuse that freeing `object` into this cache would be; `None` if its address and its
    /// slab's bitmap allow the free.
    pub fn misuse_of(&self, object: *const u8) -> Option<Misuse> {
        let slabs = self.cpu.slabs();
        self.debug.as_ref().map_or_else(|| slabs.misuse_of(object), |debug| debug.misuse_of(slabs, object))
    }

    /// Whether [`Core::misuse_of`] finds nothing in a free of `object`, on a page of this cache.
    /// False in a debugged cache.
    #[inline]
    pub fn is_taken_at(&self, page: PageIndex, object: *const u8) -> bool {
        self.debug.is_none() && self.cpu.slabs().is_taken_at(page, object)
    }

    /// Reports a misuse of `pointer`, in a slab of the cache, that [`Core::misuse_of`] found.
    pub(crate) fn report_misuse(&self, misuse: Misuse, pointer: *const u8) {
        match &self.debug {
            Some(debug) => debug.report_misuse(self.cpu.slabs(), pointer, misuse),
            None if self.late.is_on() => self.late.report(self.cpu.slabs(), misuse, pointer),
            None => report_misuse(misuse, pointer, self.name()),
        }
    }

    /// Checks the objects of a debugged cache; reports and counts those that the program overwrote.
    pub(crate) fn check_objects(&self) -> usize {
        self.debug.as_ref().map_or(0, |debug| debug.check_all(self.cpu.slabs()))
    }

    /// Reports an object freed twice in a row, which [`crate::rseq::push_tested`] found.
    #[cold]
    #[inline(never)]
    pub extern "C" fn report_double_free(&self, object: *mut u8) {
        report_misuse(Misuse::DoubleFree, object, self.name());
    }

    /// Frees all of `objects`.
    ///
    /// # Safety
    /// They must be objects of this cache that no thread uses.
    pub unsafe fn free_bulk(&self, objects: &[*mut u8]) {
        // SAFETY: the slots are the cache's; the caller's promise.
        unsafe {
            let put = crate::rseq::push_bulk(self.bulk_slots(), objects.len(), objects.as_ptr());
            if put < objects.len() {
                self.free_rest(&objects[put..]);
            }
        }
    }

    /// Frees objects for which the sheaf has no room.
    ///
    /// # Safety
    /// As [`Core::free_bulk`].
    pub(super) unsafe fn free_rest(&self, objects: &[*mut u8]) {
        if self.sees_frees() {
            // SAFETY: the caller's promise.
            objects.iter().for_each(|&object| unsafe { self.free_slow_for(object, Release::PLAIN) });
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.cpu.free_slow(objects) };
        }
    }

    /// Flushes all sheaves of CPUs and barns, asks threads for theirs, and shrinks the cache;
    /// returns the bytes of memory that went to the page layer.
    pub(super) fn shrink(&self) -> usize {
        percpu::local::ask(Some(&self.cpu));
        self.cpu.drain_all();
        self.cpu.slabs().shrink()
    }

    /// Objects in use. Exact only after a drain, and while no other thread uses the cache.
    pub(super) fn live_objects(&self) -> usize {
        self.cpu.slabs().taken()
    }
}

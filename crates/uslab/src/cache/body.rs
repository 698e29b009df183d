//! The core of a cache: what both kinds of handle point to, at an address that never changes.

use crate::percpu::CpuCache;
use crate::rseq::Slot;
use crate::slab::{Misuse, report_misuse};
use crate::stats::layout;
use core::cell::UnsafeCell;

/// A live cache.
pub struct Core {
    pub(super) cpu: CpuCache,
    pub(super) name: [u8; layout::NAME_BYTES],
    pub(super) name_len: usize,
    pub(super) user_bytes: usize,
    pub(super) constructed: bool,
    /// Made by the program and not for `malloc`: so the program allocates from it, and not the C
    /// library.
    pub(super) programs_own: bool,
    /// The memory of all this, for the next cache when this one goes; and then a link. Under the
    /// registry's lock: a walk without it may still look at the rest.
    pub(super) spare: UnsafeCell<Spare>,
}

/// The memory of one cache, whichever: all need the same.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub core: *mut Core,
    pub slots: *mut u8,
    pub lists: *mut u8,
    pub barns: *mut u8,
}

/// Memory that no cache uses, in a list.
pub(super) struct Spare {
    pub memory: Memory,
    pub next: *mut Spare,
}

impl Memory {
    /// Pushes memory that no cache uses onto the list `head`, whose links lie in the memory itself.
    pub fn push(self, head: &mut *mut Spare) {
        // SAFETY: memory of a core, which may never have been one. The field is the registry's,
        // whose lock the caller holds with the list.
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
    /// The id in the page map and in statistics.
    pub fn id(&self) -> u16 {
        self.cpu.slabs().id()
    }

    /// The name, cut to what fits.
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..self.name_len]).unwrap_or("?")
    }

    /// The size that was asked for, in bytes.
    pub fn user_bytes(&self) -> usize {
        self.user_bytes
    }

    /// Bytes that an object may use: up to the next one.
    pub fn usable_bytes(&self) -> usize {
        self.cpu.slabs().geometry().object_bytes
    }

    /// Whether a constructor makes the objects.
    pub fn is_constructed(&self) -> bool {
        self.constructed
    }

    /// The slots for the fast path.
    pub fn slots(&self) -> *mut Slot {
        self.cpu.fast_slots()
    }

    /// The slow path of free, for one object. A pointer that is none of the cache's is reported
    /// here.
    ///
    /// # Safety
    /// The object must be one of this cache that nobody uses.
    #[cold]
    #[inline(never)]
    pub unsafe extern "C" fn free_slow(&self, object: *mut u8) {
        match self.misuse_of(object) {
            // SAFETY: the caller's promise.
            None => unsafe { self.cpu.free_slow(&[object]) },
            Some(misuse) => report_misuse(misuse, object, self.name()),
        }
    }

    /// What is wrong with freeing `object` into this cache, as far as its address tells.
    pub fn misuse_of(&self, object: *const u8) -> Option<Misuse> {
        self.cpu.slabs().misuse_of(object)
    }

    /// Reports an object that was freed twice in a row, on behalf of [`crate::rseq::push_tested`].
    #[cold]
    #[inline(never)]
    pub extern "C" fn report_double_free(&self, object: *mut u8) {
        report_misuse(Misuse::DoubleFree, object, self.name());
    }

    /// Takes all of `objects` back.
    ///
    /// # Safety
    /// They must be objects of this cache that nobody uses.
    pub unsafe fn free_bulk(&self, objects: &[*mut u8]) {
        // SAFETY: the slots are the cache's; the caller's promise.
        unsafe {
            let put = crate::rseq::push_bulk(self.slots(), objects.len(), objects.as_ptr());
            if put < objects.len() {
                self.cpu.free_slow(&objects[put..]);
            }
        }
    }

    /// Objects in use; exact only while nobody else uses the cache, after a drain.
    pub(super) fn live_objects(&self) -> usize {
        self.cpu.slabs().taken()
    }
}

//! Debugged caches: each object carries zones, a pattern and a record, and each call checks them.
//!
//! The slots of a debugged cache keep the dummy, so that every call takes the slow path, and the
//! fast path spends nothing on debugging. The slow path uses sheaves of its own, which are hidden
//! (`percpu::hidden`). A cache that only its own flags select has none, unless the process starts
//! with debugged or hardened caches of `malloc`. An object of the slab is larger than that of the
//! program, which gets a pointer to the middle:
//!
//! ```text
//!  object of the slab                     pointer of the program
//!  │                                      ▼
//!  ├ record ┬ (who allocated, who freed) ─┼ left zone ┬ bytes asked for ┬ right zone ──────────┤
//!  │ state  │ thread, CPU, time, stack    │ 16 or more│ poison when free│ to the next object   │
//! ```
//!
//! The distance from the object's start to the program's pointer is a multiple of the alignment. So
//! debugged objects are aligned as they are without debugging. The page map leads `free` to the
//! cache, and the cache's layout to the object around a pointer.
//!
//! Plain objects ([`plain`]), and so all hardened ones, are packed. The record of 8 bytes lies
//! right before the program's pointer, in the last bytes of the alignment. The bytes of the
//! alignment before the record are the end of the object before:
//!
//! ```text
//!  object of the slab    pointer of the program          next object of the slab
//!  │                     ▼                               │
//!  │ of the one before │ record │ bytes asked for │ canary, 8 or more │ record │ …
//!  0                  align - 8                          stride         stride + align - 8
//! ```
//!
//! So a hardened object takes 16 bytes more. Classes of `malloc` then promise at most 16 bytes of
//! alignment, and have other caches for more. A slab leaves bytes at its end for its last object.
//! No page goes back while an object of the page before extends into it: slabs with a constructor,
//! which debugged objects have, are resident as a whole.
//!
//! | byte | place | |
//! |---|---|---|
//! | 0xbb, 0xcc | zone | of a free object, of one in use |
//! | 0x5a | bytes | never used |
//! | 0x6b, at the end 0xa5 | bytes | free |
//!
//! Bytes and letters are the kernel's (`mm/slub.c`). Nothing here holds a lock. Two threads that
//! work on one object are kept apart by the record's state.

mod alloc;
mod bytes;
mod canary;
mod family;
mod free;
mod object;
mod plain;
pub(super) mod quarantine;
mod record;
mod run;
mod seen;
mod select;
mod tell;
mod track;
mod walk;

use crate::os::checkers;
use crate::os::debugging::{CHECKER, POISON, RED_ZONE, SECURE, TRACE, USERS, ZERO};
use crate::slab::Constructor;
use core::ops::Range;
use record::{RECORD_BYTES, RECORD_WITH_USERS_BYTES, Record};

pub use family::Family;
pub(crate) use object::{Release, Request};
pub(super) use record::FACTS;
pub(crate) use run::Large;
pub(crate) use seen::Seen;
#[cfg(test)]
pub(crate) use select::ALIGNED;
pub(crate) use select::letters_for;
pub(super) use select::letters_of;
pub(crate) use select::{compatible, packs, selects_malloc};
pub(super) use select::{for_checker, has_quarantine, record_users, secure, set as set_selection};
pub(super) use track::{Track, User};
pub(super) use walk::reset_in_child;

/// Bytes between two objects without zones of which a search for leaks reads the records.
const GAP_BYTES: usize = 8;
/// Bytes of the smallest zone.
pub(crate) const ZONE_BYTES: usize = 16;

/// What the debugging of one cache needs.
#[derive(Clone, Copy)]
pub struct Debug {
    letters: u8,
    /// Bytes from an object's start to the pointer of the program.
    offset: usize,
    /// Bytes from the record to the pointer of the program. The object's own bytes start there.
    front: usize,
    /// Bytes of an object of the slab.
    stride: usize,
    /// Bytes of an object of the program.
    bytes: usize,
    /// The program's constructor.
    constructor: Option<Constructor>,
    /// Whether calls take the short way of [`plain`].
    is_plain: bool,
    /// Whether the object is a run of pages.
    is_run: bool,
}

impl Debug {
    /// The debugging of a cache of objects of `bytes`, aligned to `align`. The stride is that of
    /// [`Debug::slab_bytes`], until [`Debug::set_stride`].
    pub fn new(letters: u8, bytes: usize, align: usize, constructor: Option<Constructor>) -> Debug {
        // Poison would undo what the constructor did.
        let letters = if constructor.is_some() { letters & !POISON } else { letters };
        let align = align.max(RECORD_BYTES);
        if plain::is_enough(letters) {
            let behind = if letters & RED_ZONE != 0 { canary::MIN_BEHIND_BYTES } else { 0 };
            let stride = (RECORD_BYTES + bytes + behind).next_multiple_of(align);
            let (offset, front) = (align, RECORD_BYTES);
            return Debug {
                letters,
                offset,
                front,
                stride,
                bytes,
                constructor,
                is_plain: true,
                is_run: false,
            };
        }
        let zone = if letters & (RED_ZONE | CHECKER) != 0 { ZONE_BYTES } else { 0 };
        // A search for leaks takes a pointer to an object's end for one to the object. Sheaves have
        // pointers to the start of the next one.
        let behind = if letters & USERS != 0 { zone.max(GAP_BYTES) } else { zone };
        let record = if letters & USERS != 0 { RECORD_WITH_USERS_BYTES } else { RECORD_BYTES };
        let offset = (record + zone).next_multiple_of(align);
        let stride = (offset + bytes + behind).next_multiple_of(align);
        let front = offset;
        Debug { letters, offset, front, stride, bytes, constructor, is_plain: false, is_run: false }
    }

    /// The bytes that an object of the slab must have.
    pub fn slab_bytes(&self) -> usize {
        self.stride
    }

    /// The bytes by which an object of the slab extends beyond its stride, into the start of the
    /// next object, which does not use them.
    pub fn spill_bytes(&self) -> usize {
        self.offset - self.front
    }

    /// Sets the distance between two objects of the slab.
    pub fn set_stride(&mut self, stride: usize) {
        self.stride = stride;
    }

    /// Whether [`Debug::hand_out_plain`] and [`Debug::take_back_plain`] do all that calls must do.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain
    }

    fn has(&self, letter: u8) -> bool {
        self.letters & letter != 0
    }

    /// The program's pointer to an object of the slab.
    pub(super) fn pointer(&self, object: *mut u8) -> *mut u8 {
        object.wrapping_add(self.offset)
    }

    /// The bytes of a record.
    fn record_bytes(&self) -> usize {
        match (self.is_run, self.has(USERS)) {
            (true, _) => size_of::<Record>(),
            (false, true) => RECORD_WITH_USERS_BYTES,
            (false, false) => RECORD_BYTES,
        }
    }

    /// The left zone of an object whose program's pointer is `pointer`.
    fn left_zone(&self, pointer: usize) -> Range<usize> {
        if self.has(RED_ZONE) {
            pointer - self.front + self.record_bytes()..pointer
        } else {
            pointer..pointer
        }
    }

    /// The right zone of an object in which the program uses `used` bytes.
    fn right_zone(&self, pointer: usize, used: usize) -> Range<usize> {
        let end = pointer - self.front + self.stride;
        if self.has(RED_ZONE) { pointer + used.min(self.bytes)..end } else { end..end }
    }

    /// Whether a memory checker guards the objects.
    fn is_guarded_by_checker(&self) -> bool {
        checkers::IS_ON && self.has(CHECKER)
    }

    /// Tells the memory checker, if the library was built for one, that no code may use an object
    /// whose program's pointer is `pointer`, nor its zones. The record stays the library's.
    fn hide(&self, pointer: usize) {
        if self.is_guarded_by_checker() {
            let (start, record) = (pointer - self.front, self.record_bytes());
            checkers::hide(start + record, self.stride - record);
        }
    }

    /// Tells the memory checker that the memory of an object is no longer one.
    fn show(&self, pointer: usize) {
        if self.is_guarded_by_checker() {
            checkers::show(pointer - self.front, self.stride);
        }
    }

    /// Bytes from an object's start to the program's pointer.
    pub(super) fn pointer_offset(&self) -> usize {
        self.offset
    }

    /// Whether records name the last users.
    pub(super) fn has_users(&self) -> bool {
        self.has(USERS)
    }

    fn poisons(&self) -> bool {
        self.has(POISON)
    }

    /// Whether the cache is hardened: `USLAB_SECURE`.
    pub(super) fn is_secure(&self) -> bool {
        self.has(SECURE)
    }

    /// Whether free objects are zeroed. Zeroes would undo what a constructor did.
    fn zeroes(&self) -> bool {
        self.has(ZERO) && self.constructor.is_none() && !self.poisons()
    }

    /// Whether objects have secret canaries in place of zones.
    fn has_canaries(&self) -> bool {
        self.letters & (SECURE | RED_ZONE) == SECURE | RED_ZONE
    }

    fn traces(&self) -> bool {
        self.has(TRACE)
    }
}

//! Misuse of `free` that the slab layer recognises, and its reports, which name the pointer and the
//! fault.

use crate::os;
use crate::pages;
use crate::rseq::Owner;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The fault of a pointer that the program freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// The object is free already.
    DoubleFree,
    /// The pointer lies inside the object that starts at this address.
    Inside(usize),
    /// The pointer lies in the unused tail of a slab, behind the last object.
    NotAnObject,
    /// The object belongs to another cache, by id.
    WrongCache(u16),
    /// The pointer lies outside the allocator's memory.
    Foreign,
    /// The pointer lies in the allocator's memory, in a page without an owner.
    NotAllocated,
}

static ABORT: AtomicBool = AtomicBool::new(true);

/// Sets whether misuse ends the process (the default). Otherwise the allocator never uses the
/// object again.
pub fn set_abort_on_misuse(abort: bool) {
    ABORT.store(abort, Relaxed);
}

/// Reports `misuse` of `pointer`, then ends the process unless [`set_abort_on_misuse`] disabled
/// that. `cache` is the name of the cache, or of the function that the program called. The caller
/// may hold locks: this formats on the stack and writes once.
#[cold]
pub fn report_misuse(misuse: Misuse, pointer: *const u8, cache: &str) {
    match misuse {
        Misuse::DoubleFree => {
            os::report::print(format_args!(
                "double free of {pointer:p}: an object of {cache} that is free already"
            ));
        }
        Misuse::Inside(start) => {
            let offset = (pointer as usize).wrapping_sub(start);
            os::report::print(format_args!(
                "invalid free of {pointer:p}: it lies {offset} bytes inside object {start:#x} of {cache}"
            ));
        }
        Misuse::NotAnObject => {
            os::report::print(format_args!("invalid free of {pointer:p}: no object of {cache} starts there"));
        }
        Misuse::WrongCache(id) => {
            os::report::print(format_args!(
                "invalid free of {pointer:p}: given to {cache}, but it belongs to cache number {id}"
            ));
        }
        Misuse::Foreign => {
            os::report::print(format_args!(
                "foreign free of {pointer:p}: not memory of this allocator (given to {cache})"
            ));
        }
        Misuse::NotAllocated => {
            os::report::print(format_args!(
                "invalid free of {pointer:p}: nothing is allocated there (given to {cache}); freed before?"
            ));
        }
    }
    if ABORT.load(Relaxed) {
        os::report::abort();
    }
}

/// Classifies a pointer that lies in no slab of `owner`.
pub(super) fn classify(pointer: *const u8, owner: Owner) -> Misuse {
    match pages::page_of(pointer).map(pages::owner) {
        None => Misuse::Foreign,
        Some(found) if found == Owner::NONE => Misuse::NotAllocated,
        Some(found) if found == owner => Misuse::NotAnObject,
        Some(found) => Misuse::WrongCache(found.id()),
    }
}

//! What the slab layer recognises when an object comes back that cannot: reported with the pointer
//! and what it is.

use crate::os;
use crate::pages;
use crate::rseq::Owner;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What is wrong with a pointer that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// The object is free already.
    DoubleFree,
    /// The pointer lies inside the object that starts at this address.
    Inside(usize),
    /// The pointer lies in what a slab leaves over behind its last object.
    NotAnObject,
    /// The object belongs to another cache, by id.
    WrongCache(u16),
    /// The memory is not the allocator's.
    Foreign,
    /// The memory is the allocator's, but nothing lives there.
    NotAllocated,
}

static ABORT: AtomicBool = AtomicBool::new(true);

/// Whether misuse ends the process (the default). Otherwise the object is left alone, for ever.
pub fn set_abort_on_misuse(abort: bool) {
    ABORT.store(abort, Relaxed);
}

/// Reports `misuse` of `pointer`, given back to the cache `cache` (by name, or what was called),
/// and ends the process unless told otherwise. May be called under locks: it formats into the stack
/// and writes once.
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

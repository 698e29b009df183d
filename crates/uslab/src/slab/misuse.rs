//! Misuse of `free` that the slab layer recognises, and its reports, which name the pointer and the
//! fault.

use crate::pages;
use crate::report::{self, Bytes, Fault, Report};
use crate::rseq::Owner;
use core::fmt;

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

/// [`super::report_misuse`], whatever locks the thread holds.
pub(super) fn report_now(misuse: Misuse, pointer: *const u8, cache: &str) {
    let headline = Headline { misuse, pointer, cache };
    let report = Report::new(misuse.fault(), pointer as usize, cache, &headline);
    report::publish(&Report { is_brief: !report::is_detailed(), ..report });
}

/// The sentence that describes a misuse.
pub struct Headline<'a> {
    /// The misuse.
    pub misuse: Misuse,
    /// The pointer that was freed.
    pub pointer: *const u8,
    /// The cache, or the function that the program called.
    pub cache: &'a str,
}

impl fmt::Display for Headline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Headline { misuse, pointer, cache } = *self;
        match misuse {
            Misuse::DoubleFree => {
                write!(f, "double free of {pointer:p}: an object of {cache} that is free already")
            }
            Misuse::Inside(start) => {
                let offset = Bytes((pointer as usize).wrapping_sub(start));
                write!(f, "invalid free of {pointer:p}: ")?;
                write!(f, "it lies {offset} inside object {start:#x} of {cache}")
            }
            Misuse::NotAnObject => {
                write!(f, "invalid free of {pointer:p}: no object of {cache} starts there")
            }
            Misuse::WrongCache(id) => {
                write!(f, "invalid free of {pointer:p}: given to {cache}, ")?;
                write!(f, "but it belongs to cache number {id}")
            }
            Misuse::Foreign => {
                write!(f, "foreign free of {pointer:p}: ")?;
                write!(f, "not memory of this allocator (given to {cache})")
            }
            Misuse::NotAllocated => {
                write!(f, "invalid free of {pointer:p}: ")?;
                write!(f, "nothing is allocated there (given to {cache}); freed before?")
            }
        }
    }
}

impl Misuse {
    /// The kind of fault, in reports.
    pub fn fault(self) -> Fault {
        match self {
            Misuse::DoubleFree => Fault::DoubleFree,
            Misuse::Inside(_) | Misuse::NotAnObject | Misuse::NotAllocated => Fault::InvalidFree,
            Misuse::WrongCache(_) => Fault::WrongCache,
            Misuse::Foreign => Fault::ForeignFree,
        }
    }
}

/// Classifies a pointer that lies in no slab of the cache whose owners `is_own` tells.
pub(super) fn classify(pointer: *const u8, is_own: impl Fn(Owner) -> bool) -> Misuse {
    match pages::page_of(pointer).map(pages::owner) {
        None => Misuse::Foreign,
        Some(found) if found == Owner::NONE => Misuse::NotAllocated,
        Some(found) if is_own(found) => Misuse::NotAnObject,
        Some(found) => Misuse::WrongCache(found.id()),
    }
}

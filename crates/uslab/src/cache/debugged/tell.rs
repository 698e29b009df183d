//! The reports of debugged objects, and the checks that they come from.
//!
//! A check reports, gives overwritten bytes their value back, and returns. The caller has taken the
//! object, and holds no lock.

use super::bytes::{differing, fill, not_zero};
use super::object::{
    FREED, FREED_END, Family, NEVER, NEVER_USED, Object, Release, User, ZONE_FREE, ZONE_USED,
};
use crate::cache::registry;
use crate::os::debugging::RED_ZONE;
use crate::os::unwind::{MAX_FRAMES, defines_elsewhere, generation as loader_generation};
use crate::pages;
use crate::report::{self, Bytes, Dump, Fault, Report};
use crate::slab::{Headline, Misuse};
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A sentence, as the function that writes it.
struct Said<F>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Said<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

/// A fault of an object.
struct Told<'a> {
    fault: Fault,
    /// The address that the fault is about.
    at: usize,
    state: &'static str,
    wrong: Option<Range<usize>>,
    /// The value that wrong bytes get back.
    value: Option<u8>,
    headline: &'a dyn fmt::Display,
}

fn tell(object: &Object<'_>, name: &str, told: &Told<'_>) {
    let (mut allocated, mut freed) = ([0; MAX_FRAMES], [0; MAX_FRAMES]);
    let debug = object.debug;
    let start = object.pointer - debug.front;
    let wrong = told.wrong.clone().unwrap_or(object.pointer..object.pointer);
    let whole = Report {
        object: Some(report::Object {
            start: object.pointer,
            bytes: object.asked(),
            state: told.state,
            family: object.family().name(),
        }),
        allocated: object.user(User::Allocated, &mut allocated),
        freed: object.user(User::Freed, &mut freed),
        // A memory checker would report the reads.
        dump: (!debug.is_guarded_by_checker()).then(|| Dump::around(wrong, start..start + debug.stride)),
        repaired: told.wrong.clone().zip(told.value),
        ..Report::new(told.fault, told.at, name, told.headline)
    };
    if told.fault == Fault::LiveAtDestroy {
        report::publish_and_continue(&whole);
    } else {
        report::publish(&whole);
    }
    if let Some((range, value)) = told.wrong.clone().zip(told.value) {
        fill(range, value);
    }
}

const ALLOCATED: &str = "allocated";
const FREE: &str = "free";
const NEVER_USED_STATE: &str = "never used";

/// Checks the zones of an object in use.
pub fn check_used(object: &Object<'_>, name: &str) {
    check_zones(object, name, object.asked(), ZONE_USED, ALLOCATED);
}

/// Checks the zones and the pattern of a free object, whose state was `state`.
pub fn check_free(object: &Object<'_>, name: &str, state: u32) {
    let text = if state == NEVER { NEVER_USED_STATE } else { FREE };
    check_zones(object, name, object.debug.bytes, ZONE_FREE, text);
    let Some((range, value)) = wrong_pattern(object, state) else { return };
    tell_pattern(object, name, state, range, value);
    match (state, object.debug.poisons()) {
        (_, false) => object.clear_with_canary(object.asked()),
        (NEVER, true) => fill(object.bytes(), NEVER_USED),
        _ => object.poison(),
    }
}

/// A flaw of a free object.
pub enum Flaw {
    /// The bytes of a zone, and whether it is the left one.
    Zone(Range<usize>, bool),
    /// The bytes of the object.
    Pattern(Range<usize>),
}

/// Reports what a walk found wrong with a free object of a plain cache, which the thread has not
/// taken: the bytes stay as they are, and the next allocation of the object reports them, too.
pub fn flaw_of_free(object: &Object<'_>, name: &str, state: u32, flaw: &Flaw) {
    match flaw {
        Flaw::Zone(range, is_left) => {
            let text = if state == NEVER { NEVER_USED_STATE } else { FREE };
            tell_zone(object, name, object.debug.bytes, (range.clone(), *is_left), None, text);
        }
        Flaw::Pattern(range) => tell_pattern(object, name, state, range.clone(), None),
    }
}

fn tell_pattern(object: &Object<'_>, name: &str, state: u32, range: Range<usize>, value: Option<u8>) {
    let text = if state == NEVER { NEVER_USED_STATE } else { FREE };
    let fault = if state == NEVER { Fault::WriteBeforeAlloc } else { Fault::WriteAfterFree };
    let offset = range.start - object.pointer;
    let headline = Said(|f: &mut fmt::Formatter<'_>| {
        let what = if state == NEVER { "write to unallocated memory" } else { "write after free" };
        write!(f, "{what} at {:#x}: {} at offset {offset} of ", range.start, Bytes(range.len()))?;
        write!(f, "object {:#x} of {name} changed", object.pointer)
    });
    let wrong = Some(range.clone());
    tell(object, name, &Told { fault, at: range.start, state: text, wrong, value, headline: &headline });
}

/// The bytes of a free object's pattern that changed, and their value before, if that is one.
pub fn wrong_pattern(object: &Object<'_>, state: u32) -> Option<(Range<usize>, Option<u8>)> {
    let bytes = object.bytes();
    if !object.debug.poisons() {
        // An object that was never used has any contents.
        if !object.debug.zeroes() || state == NEVER {
            return None;
        }
        // A free cleared the bytes that the program had.
        return not_zero(bytes.start..bytes.start + object.asked()).map(|range| (range, Some(0)));
    }
    if state == NEVER {
        return differing(bytes, NEVER_USED).map(|range| (range, Some(NEVER_USED)));
    }
    let end = differing(bytes.end - 1..bytes.end, FREED_END);
    match (differing(bytes.start..bytes.end - 1, FREED), end) {
        (Some(range), None) => Some((range, Some(FREED))),
        (Some(range), Some(end)) => Some((range.start..end.end, None)),
        (None, end) => end.map(|range| (range, Some(FREED_END))),
    }
}

/// The zone that changed, if one did, and whether it is the left one.
pub fn wrong_zone(object: &Object<'_>, used: usize, value: u8) -> Option<(Range<usize>, bool)> {
    if !object.debug.has(RED_ZONE) {
        return None;
    }
    if object.debug.has_canaries() {
        return object.changed_canary((value == ZONE_USED).then_some(used));
    }
    let left = differing(object.debug.left_zone(object.pointer), value);
    let right = || differing(object.debug.right_zone(object.pointer, used), value);
    left.map(|range| (range, true)).or_else(|| right().map(|range| (range, false)))
}

/// Whether the program overwrote a free object.
pub fn is_faulty_free(object: &Object<'_>, state: u32) -> bool {
    wrong_zone(object, object.debug.bytes, ZONE_FREE).is_some() || wrong_pattern(object, state).is_some()
}

fn check_zones(object: &Object<'_>, name: &str, used: usize, value: u8, state: &'static str) {
    while let Some(wrong) = wrong_zone(object, used, value) {
        // A canary's value stays secret.
        let value = (!object.debug.has_canaries()).then_some(value);
        tell_zone(object, name, used, wrong, value, state);
        if value.is_none() {
            object.write_canary_before();
        }
        // A free object has zeroes there.
        if value.is_none() && state == ALLOCATED {
            object.write_canary_behind(used);
        }
    }
}

/// Reports a zone that changed, the left one or the other.
fn tell_zone(
    object: &Object<'_>,
    name: &str,
    used: usize,
    (range, is_left): (Range<usize>, bool),
    value: Option<u8>,
    state: &'static str,
) {
    let (asked, pointer, bytes) = (Bytes(object.asked()), object.pointer, Bytes(range.len()));
    let headline = Said(|f: &mut fmt::Formatter<'_>| {
        if is_left {
            let before = Bytes(pointer - range.start);
            write!(f, "underflow of {pointer:#x}: {bytes} changed, the first {before} before ")?;
        } else {
            write!(f, "overflow of {pointer:#x}: {bytes} changed, the first ")?;
            match range.start - pointer - used {
                0 => f.write_str("right behind ")?,
                behind => write!(f, "{} behind ", Bytes(behind))?,
            }
        }
        match state {
            ALLOCATED => write!(f, "the {asked} of an object of {name}"),
            _ => write!(f, "a free object of {name}"),
        }
    });
    let fault = if is_left { Fault::Underflow } else { Fault::Overflow };
    let wrong = Some(range.clone());
    tell(object, name, &Told { fault, at: range.start, state, wrong, value, headline: &headline });
}

/// Checks the size and the family that a free names.
pub fn check_release(object: &Object<'_>, name: &str, release: Release) {
    let (asked, pointer, family) = (object.asked(), object.pointer, object.family());
    if let Some(bytes) = release.bytes.filter(|&bytes| bytes != asked) {
        let headline = Said(|f: &mut fmt::Formatter<'_>| {
            write!(
                f,
                "wrong size in free of {pointer:#x}: {bytes} instead of {}, an object of {name}",
                Bytes(asked)
            )
        });
        let told = Told {
            fault: Fault::WrongSize,
            at: pointer,
            state: ALLOCATED,
            wrong: None,
            value: None,
            headline: &headline,
        };
        tell(object, name, &told);
    }
    if !family.takes(release.family) && are_families_known(object) {
        let headline = Said(|f: &mut fmt::Formatter<'_>| {
            let (of, by) = (family.name(), release.family.release_name());
            write!(f, "mismatch in free of {pointer:#x}: memory of {of} freed by {by}, an object of {name}")
        });
        let told = Told {
            fault: Fault::Mismatch,
            at: pointer,
            state: ALLOCATED,
            wrong: None,
            value: None,
            headline: &headline,
        };
        tell(object, name, &told);
    }
}

/// Whether the families tell which functions the program called.
///
/// A shared object that defines `operator new` may use its own definition, which calls `malloc`,
/// while another shared object deletes that memory by the library's `operator delete`. A hardened
/// process does not seek the answer, since a mismatch does no harm there. Nor does a process whose
/// list of the loader cannot be read: in a child of a threaded fork the parent's last answer holds.
fn are_families_known(object: &Object<'_>) -> bool {
    static ARE_UNKNOWN: AtomicBool = AtomicBool::new(false);
    /// The loader's generation in which they were known.
    static KNOWN_IN: AtomicU64 = AtomicU64::new(NEVER_KNOWN);
    const NEVER_KNOWN: u64 = u64::MAX;
    const OPERATORS: [&[u8]; 6] = [b"_Znwm", b"_Znam", b"_ZdlPv", b"_ZdaPv", b"_ZdlPvm", b"_ZdaPvm"];
    if object.debug.is_secure() || ARE_UNKNOWN.load(Relaxed) {
        return false;
    }
    let (known_in, generation) = (KNOWN_IN.load(Relaxed), loader_generation());
    if known_in != NEVER_KNOWN && generation.is_none_or(|now| now == known_in) {
        return true;
    }
    let Some(are_unknown) = defines_elsewhere(&OPERATORS) else { return false };
    ARE_UNKNOWN.store(are_unknown, Relaxed);
    if let Some(generation) = generation.filter(|_| !are_unknown) {
        KNOWN_IN.store(generation, Relaxed);
    }
    !are_unknown
}

/// Reports a second free.
pub fn double_free(object: &Object<'_>, name: &str) {
    let pointer = object.pointer as *const u8;
    let headline = Headline { misuse: Misuse::DoubleFree, pointer, cache: name };
    simple(object, name, Fault::DoubleFree, object.pointer, FREE, &headline);
}

/// Reports a free of a pointer that is not the start of `object`.
pub fn inside(object: &Object<'_>, name: &str, at: usize) {
    let start = object.pointer;
    let headline = Said(|f: &mut fmt::Formatter<'_>| {
        write!(f, "invalid free of {at:#x}: it lies ")?;
        match at.checked_sub(start) {
            Some(offset) => write!(f, "{} inside object {start:#x} of {name}", Bytes(offset)),
            None => write!(f, "{} before object {start:#x} of {name}", Bytes(start - at)),
        }
    });
    let state = if object.state() == super::object::LIVE { ALLOCATED } else { FREE };
    simple(object, name, Fault::InvalidFree, at, state, &headline);
}

/// Reports a record that the program overwrote.
pub fn record_overwritten(object: &Object<'_>, name: &str) {
    // The other half is the seal, which stays secret.
    let fields = object.word().0 as u32;
    let start = object.pointer - object.debug.front;
    let headline = Said(|f: &mut fmt::Formatter<'_>| {
        write!(f, "record of object {:#x} of {name} overwritten at {start:#x}: ", object.pointer)?;
        write!(f, "its fields are {fields:#x}; the object before it may have overflowed")
    });
    let wrong = Some(start..start + super::RECORD_BYTES);
    let told = Told {
        fault: Fault::RecordOverwritten,
        at: start,
        state: "unknown",
        wrong,
        value: None,
        headline: &headline,
    };
    tell(object, name, &told);
}

/// Reports an object that is in use when its cache is destroyed. The program continues.
pub fn live(object: &Object<'_>, name: &str) {
    let headline = Said(|f: &mut fmt::Formatter<'_>| {
        write!(f, "object {:#x} of {name} is in use at the end of its cache", object.pointer)
    });
    simple(object, name, Fault::LiveAtDestroy, object.pointer, ALLOCATED, &headline);
}

fn simple(
    object: &Object<'_>,
    name: &str,
    fault: Fault,
    at: usize,
    state: &'static str,
    headline: &dyn fmt::Display,
) {
    tell(object, name, &Told { fault, at, state, wrong: None, value: None, headline });
}

/// Reports a free into `name` of a pointer that lies in no slab of that cache.
pub fn stray(name: &str, pointer: *const u8, misuse: Misuse) {
    let headline = Headline { misuse, pointer, cache: name };
    let owner = pages::page_of(pointer).and_then(|page| registry::cache(pages::owner(page).id()));
    if let Some(core) = owner
        && let Some(debug) = &core.debug
        && let Some((start, _)) = debug.object_around(core.cpu.slabs(), pointer)
    {
        let object = Object { debug, pointer: debug.pointer(start) as usize };
        return simple(&object, name, misuse.fault(), pointer as usize, ALLOCATED, &headline);
    }
    report::publish(&Report::new(misuse.fault(), pointer as usize, name, &headline));
}

/// Writes a line about an allocation or a free.
pub fn trace(object: &Object<'_>, name: &str, what: &'static str) {
    let family: Family = object.family();
    report::trace(what, name, object.pointer, object.asked(), family.name());
}

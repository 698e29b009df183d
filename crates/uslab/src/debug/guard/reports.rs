//! What is wrong with an access to the pool, or with a free: the object, and the report.

use super::pool::{self, Place, Slot, State};
use crate::os;
use crate::os::fault::{Access, Fault};
use crate::os::unwind::{self, MAX_FRAMES};
use crate::report::{self, Bytes, Dump, Object, Report};
use core::fmt::{self, Display};
use core::ops::Range;

/// The name of guarded objects in reports.
pub const NAME: &str = "guarded objects";

/// The distance of an address from an object; 0 inside of it.
fn distance(address: usize, object: &Range<usize>) -> usize {
    if address < object.start { object.start - address } else { (address + 1).saturating_sub(object.end) }
}

/// The object that an access at `address`, in the pool, probably meant: that of its slot, or the
/// nearer one beside a guard page. `None` if no object was ever there.
fn object_meant(address: usize) -> Option<Place> {
    let was_used = |place: &Place| place.slot().state() != State::New;
    if let Some(place) = Place::around(address) {
        return Some(place).filter(was_used);
    }
    let beside = Place::beside(address).into_iter().flatten().filter(was_used);
    beside.min_by_key(|place| distance(address, &place.slot().object()))
}

/// Where an address lies, as seen from an object.
struct Position<'a> {
    address: usize,
    object: &'a Range<usize>,
}

impl Display for Position<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = *self.object;
        let bytes = Bytes(end - start);
        match self.address {
            at if at < start => write!(f, "{} before an object of {bytes}", Bytes(start - at)),
            at if at >= end => write!(f, "{} behind an object of {bytes}", Bytes(at - end)),
            at => write!(f, "{} into an object of {bytes}", Bytes(at - start)),
        }
    }
}

/// The meaning of an access that faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// None of an object that the pool knows.
    Foreign,
    /// The slot was taken again meanwhile, and the access is to its new object: it can be repeated.
    Repeatable,
    /// A misuse that has been reported.
    Misuse,
}

/// Upper bounds on the stack that a report takes, and one of a single line. The text stands in
/// static memory.
const REPORT_STACK_BYTES: usize = 4 << 10;
const LINE_STACK_BYTES: usize = 3 << 10;

/// Judges the fault of an access, and reports misuse, once for each life of a slot.
pub fn judge_access(fault: &Fault) -> Verdict {
    let Some(place) = object_meant(fault.address) else { return Verdict::Foreign };
    let slot = place.slot();
    let is_freed = matches!(slot.state(), State::Freed | State::Changing);
    if !is_freed && slot.object().contains(&fault.address) {
        return if slot.may_repeat() { Verdict::Repeatable } else { Verdict::Foreign };
    }
    if fault.stack_left_bytes < LINE_STACK_BYTES {
        os::report::write(
            b"uslab: a guarded object was misused: the signal stack is too small for a report\n",
        );
    } else {
        slot.report_once(|| report_access(fault, slot, is_freed));
    }
    Verdict::Misuse
}

/// A function of its own, so that its caller takes little stack.
#[inline(never)]
fn report_access(fault: &Fault, slot: &Slot, is_freed: bool) {
    let (pointer, object) = (fault.address, slot.object());
    let access = match fault.access {
        Access::Read => "read",
        Access::Write => "write",
        Access::Unknown => "access",
    };
    let position = Position { address: fault.address, object: &object };
    let publish = |kind, headline: &dyn Display| {
        let report = Report::new(kind, pointer, NAME, headline);
        if fault.stack_left_bytes < REPORT_STACK_BYTES {
            let stack = &[fault.registers.pc];
            report::publish_and_continue(&Report { stack, is_brief: true, ..report });
        } else {
            publish_whole(fault, slot, report);
        }
    };
    if is_freed {
        let headline = format_args!("use after free: {access} of {pointer:#x}, {position} that was freed");
        publish(report::Fault::UseAfterFree, &headline);
    } else {
        let headline = format_args!("out of bounds: {access} of {pointer:#x}, {position}");
        publish(report::Fault::OutOfBounds, &headline);
    }
}

/// Publishes the report of an access with the stacks. A function of its own, whose stack a brief
/// report does not take.
#[inline(never)]
fn publish_whole(fault: &Fault, slot: &Slot, report: Report<'_>) {
    let mut stack = [0; MAX_FRAMES];
    let frames = unwind::capture_from(fault.registers, &mut stack);
    let report = Report { stack: &stack[..frames], ..report };
    with_object(&report, slot, report::publish_and_continue);
}

/// Reports a free that [`pool::begin_free`] refused. By default the process ends.
pub fn report_free(pointer: usize, place: Option<Place>, fault: pool::Fault) {
    let object = place.map(|place| place.slot().object()).unwrap_or_default();
    let (start, offset) = (object.start, pointer.wrapping_sub(object.start) as isize);
    let publish = |kind, headline: &dyn Display| {
        let report = Report::new(kind, pointer, NAME, headline);
        match place.filter(|_| fault != pool::Fault::Unused) {
            Some(place) => with_object(&report, place.slot(), report::publish),
            None => report::publish(&report),
        }
    };
    match fault {
        pool::Fault::Twice => publish(
            report::Fault::DoubleFree,
            &format_args!("double free of {pointer:#x}: a guarded object that is free already"),
        ),
        pool::Fault::Inside => publish(
            report::Fault::InvalidFree,
            &format_args!(
                "invalid free of {pointer:#x}: it lies {offset} bytes from the start of object {start:#x} \
                 of {NAME}"
            ),
        ),
        pool::Fault::Unused => publish(
            report::Fault::InvalidFree,
            &format_args!("invalid free of {pointer:#x}: nothing is allocated there"),
        ),
    }
}

/// Reports that the byte at `address` beside a slot's object, in open pages, was overwritten. By
/// default the process ends.
pub fn report_overwritten(place: Place, address: usize, readable: Range<usize>) {
    let slot = place.slot();
    let object = slot.object();
    let position = Position { address, object: &object };
    let (kind, what) = if address < object.start {
        (report::Fault::Underflow, "underflow")
    } else {
        (report::Fault::Overflow, "overflow")
    };
    let headline = format_args!("{what}: the byte at {address:#x} was overwritten, {position}");
    let dump = Some(Dump::around(address..address + 1, readable));
    let report = Report { dump, ..Report::new(kind, object.start, NAME, &headline) };
    with_object(&report, slot, report::publish);
}

/// Adds a slot's object and its history to a report.
fn with_object(report: &Report<'_>, slot: &Slot, publish: impl FnOnce(&Report<'_>)) {
    let (mut allocated, mut freed) = ([0; MAX_FRAMES], [0; MAX_FRAMES]);
    let object = slot.object();
    // While a free checks the canaries, it has not been noted yet.
    let freed = slot.freed.event(&mut freed);
    let state = if freed.is_none() { "allocated" } else { "free" };
    publish(&Report {
        fault: report.fault,
        headline: report.headline,
        cache: report.cache,
        pointer: report.pointer,
        object: Some(Object {
            start: object.start,
            bytes: object.len(),
            state,
            family: slot.family().name(),
        }),
        allocated: slot.allocated.event(&mut allocated),
        freed,
        stack: report.stack,
        dump: report.dump.clone(),
        repaired: None,
        is_brief: false,
    });
}

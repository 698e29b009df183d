//! Reports: one form for everything that the library finds wrong with the program's use of memory.
//!
//! ```text
//!   slab, cache ── faults of frees, zones, poison ──┐
//!   debug::guard ── faults of accesses ─────────────┼─▶ Report ──▶ text or JSON ──▶ standard error,
//!   debug ── leaks ─────────────────────────────────┘                              file, callback
//!                                                                        └─▶ abort, or continue
//! ```
//!
//! The faulty thread writes the report, with the program's locks in any state. So a report
//! allocates nothing, waits for no other thread of the process without a bound, and preserves
//! `errno`. It is formatted in a static buffer, and written at once. A write to a full pipe waits
//! for its reader.

mod cut;
pub mod depot;
mod json;
pub mod leak;
mod sink;
pub mod suppress;
mod symbol;
mod text;

use crate::os;
use crate::os::unwind::MAX_FRAMES;
use core::fmt::{self, Write};
use core::ops::Range;

pub use sink::{
    Format, Sink, aborts, is_detailed, set_abort, set_detailed, set_format, set_sink, set_sink_from,
};

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// An object was freed that is free already.
    DoubleFree,
    /// A pointer was freed at which no object starts.
    InvalidFree,
    /// A pointer was freed that is not memory of this allocator.
    ForeignFree,
    /// An object was freed into another cache.
    WrongCache,
    /// An object was freed with a size that is not its own.
    WrongSize,
    /// Memory of one family (`malloc`, `new`, `new[]`) was freed by another.
    Mismatch,
    /// Bytes behind an object were overwritten.
    Overflow,
    /// Bytes before an object were overwritten.
    Underflow,
    /// An object was written to after it had been freed.
    WriteAfterFree,
    /// An object was written to that was never allocated.
    WriteBeforeAlloc,
    /// The library's record of an object was overwritten.
    RecordOverwritten,
    /// A structure of the library was overwritten.
    Corrupted,
    /// Objects were in use when their cache was destroyed.
    LiveAtDestroy,
    /// An object that no pointer leads to.
    Leak,
    /// An access behind or before a guarded object.
    OutOfBounds,
    /// An access to a guarded object after its free.
    UseAfterFree,
}

impl Fault {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Fault::DoubleFree => "double-free",
            Fault::InvalidFree => "invalid-free",
            Fault::ForeignFree => "foreign-free",
            Fault::WrongCache => "wrong-cache",
            Fault::WrongSize => "wrong-size",
            Fault::Mismatch => "mismatch",
            Fault::Overflow => "overflow",
            Fault::Underflow => "underflow",
            Fault::WriteAfterFree => "write-after-free",
            Fault::WriteBeforeAlloc => "write-before-alloc",
            Fault::RecordOverwritten => "record-overwritten",
            Fault::Corrupted => "corrupted",
            Fault::LiveAtDestroy => "live-at-destroy",
            Fault::Leak => "leak",
            Fault::OutOfBounds => "out-of-bounds",
            Fault::UseAfterFree => "use-after-free",
        }
    }
}

/// A report. Parts that are not known are `None` or empty.
pub struct Report<'a> {
    /// The kind of the fault.
    pub fault: Fault,
    /// The first line, without the library's name.
    pub headline: &'a dyn fmt::Display,
    /// The name of the cache, or of the function that the program called.
    pub cache: &'a str,
    /// The address that the fault is about.
    pub pointer: usize,
    /// The object that the address belongs to.
    pub object: Option<Object>,
    /// Its allocation.
    pub allocated: Option<Event<'a>>,
    /// Its last free.
    pub freed: Option<Event<'a>>,
    /// The stack of the fault, the innermost frame first; empty to capture that of the caller.
    pub stack: &'a [usize],
    /// Memory to show.
    pub dump: Option<Dump>,
    /// The bytes that were overwritten and now have this value again.
    pub repaired: Option<(Range<usize>, u8)>,
    /// Whether text shows the first line alone.
    pub is_brief: bool,
}

impl<'a> Report<'a> {
    /// A report of `fault` at `pointer` with these parts alone.
    pub fn new(fault: Fault, pointer: usize, cache: &'a str, headline: &'a dyn fmt::Display) -> Report<'a> {
        Report {
            fault,
            headline,
            cache,
            pointer,
            object: None,
            allocated: None,
            freed: None,
            stack: &[],
            dump: None,
            repaired: None,
            is_brief: false,
        }
    }
}

/// An object.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// The address that the program has.
    pub start: usize,
    /// The bytes that it asked for.
    pub bytes: usize,
    /// `"allocated"`, `"free"` or `"never used"`.
    pub state: &'static str,
    /// The function family that allocated it: `"malloc"`, `"new"`, `"cache"`; empty if unknown.
    pub family: &'static str,
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The thread, by the kernel's number.
    pub thread: u32,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// When, on [`os::clock::coarse_ms`].
    pub time_ms: u64,
    /// The stack, the innermost frame first.
    pub stack: &'a [usize],
    /// Why the stack is empty, if there is a reason.
    pub lost: &'static str,
}

/// Memory to show in hexadecimal. All of it must be readable.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The addresses that are shown, rounded to lines of 16 bytes.
    pub shown: Range<usize>,
    /// The bytes that are wrong.
    pub wrong: Range<usize>,
}

impl Dump {
    /// The bytes `wrong`, with up to 32 bytes before and behind them that lie in `readable`; at
    /// most 256 in all.
    pub fn around(wrong: Range<usize>, readable: Range<usize>) -> Dump {
        let start = (wrong.start.saturating_sub(32) & !15).max(readable.start);
        let end = ((wrong.end + 32 + 15) & !15).min(readable.end).min(start + 256);
        Dump { shown: start..end, wrong }
    }
}

/// A number of bytes in words: `1 byte`, `2 bytes`.
#[derive(Clone, Copy)]
pub struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Writes a line about an allocation or a free, with letter T of `USLAB_DEBUG`.
#[cold]
pub fn trace(what: &str, cache: &str, pointer: usize, bytes: usize, family: &str) {
    let _errno = os::errno::Preserved::new();
    let (thread, cpu) = (os::thread::id(), os::cpu::current());
    sink::write(|out, format| match format {
        Format::Text => {
            writeln!(
                out,
                "uslab: {what} {pointer:#x} of {cache}, {}, thread {thread}, CPU {cpu}",
                Bytes(bytes)
            )
        }
        Format::Json => json::trace(out, (what, family), cache, (pointer, bytes), (thread, cpu as u32)),
    });
}

/// Writes the report, and ends the process if that is the policy ([`set_abort`]).
#[cold]
#[inline(never)]
pub fn publish(report: &Report<'_>) {
    publish_and_continue(report);
    if aborts() {
        os::report::abort();
    }
}

/// Reports a structure of the library that is not as the library left it, and ends the process
/// unless [`set_abort`] disabled that. The caller may hold locks.
#[cold]
pub fn corrupted(invalid: &os::invariant::Invalid) {
    let os::invariant::Invalid { structure, address, invariant, .. } = *invalid;
    let headline = Headline(structure, address, invariant);
    let report = Report::new(Fault::Corrupted, address, structure, &headline);
    publish(&Report { is_brief: !is_detailed(), ..report });
}

/// The first line about a corrupted structure.
struct Headline(&'static str, usize, &'static str);

impl fmt::Display for Headline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Headline(structure, address, invariant) = *self;
        write!(f, "corrupted {structure} at {address:#x}: it does not hold that {invariant}")
    }
}

/// Writes the report. For faults after which the process continues or ends by other means.
#[cold]
#[inline(never)]
pub fn publish_and_continue(report: &Report<'_>) {
    let _errno = os::errno::Preserved::new();
    let mut frames = [0; MAX_FRAMES];
    // No capture for a line without a stack: it may wait for the loader's lock.
    let is_shown = !report.is_brief || sink::form() == Format::Json;
    let stack = if report.stack.is_empty() && is_shown {
        let n = match report.fault {
            // Found under a lock.
            Fault::Corrupted => os::unwind::capture_under_locks(&mut frames),
            _ => os::unwind::capture(&mut frames),
        };
        &frames[..n]
    } else {
        report.stack
    };
    sink::write(|out, format| match format {
        Format::Text => text::write(out, report, stack),
        Format::Json => json::write(out, report, stack),
    });
}

//! Reports of leaks: one for each stack that leaked objects come from, and a line of totals.

use super::depot::{self, StackId};
use super::{Bytes, Event, Fault, Format, json, sink, text};
use crate::os;
use crate::os::unwind::MAX_FRAMES;
use core::fmt::{self, Write};

/// An object in use, and its allocation.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// The address that the program has.
    pub pointer: usize,
    /// The bytes that it asked for.
    pub bytes: usize,
    /// The cache.
    pub cache: &'static str,
    /// The function family.
    pub family: &'static str,
    /// The stack; [`StackId::NONE`] if it is not known.
    pub stack: StackId,
    /// The thread, by the kernel's number; 0 if the allocation was not recorded.
    pub thread: u32,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// When, on [`os::clock::coarse_ms`].
    pub time_ms: u64,
}

/// A number of objects.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Amount {
    /// How many.
    pub objects: usize,
    /// The bytes that the program asked for.
    pub bytes: usize,
}

impl Amount {
    /// Adds an object of `bytes`.
    pub fn add_object(&mut self, bytes: usize) {
        self.add(Amount { objects: 1, bytes });
    }

    /// Adds objects.
    pub fn add(&mut self, more: Amount) {
        self.objects += more.objects;
        self.bytes += more.bytes;
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.objects == 1 { "" } else { "s" };
        write!(f, "{} in {} object{plural}", Bytes(self.bytes), self.objects)
    }
}

/// The leaked objects that one stack allocated.
#[derive(Clone, Copy, Debug)]
pub struct Leak {
    /// One of them.
    pub first: Allocation,
    /// All of them.
    pub direct: Amount,
    /// Those that only they lead to.
    pub indirect: Amount,
}

/// Writes a report.
pub fn publish(leak: &Leak) {
    let _errno = os::errno::Preserved::new();
    let mut frames = [0; MAX_FRAMES];
    let first = &leak.first;
    let n = depot::frames(first.stack, &mut frames);
    let allocated = (first.thread != 0).then(|| Event {
        thread: first.thread,
        cpu: first.cpu,
        time_ms: first.time_ms,
        stack: &frames[..n],
        lost: depot::why_empty(first.stack, n),
    });
    sink::write(|out, format| match format {
        Format::Text => as_text(out, leak, allocated.as_ref()),
        Format::Json => as_json(out, leak, allocated.as_ref()),
    });
}

struct Headline<'a>(&'a Leak);

impl fmt::Display for Headline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leak = self.0;
        write!(f, "leak of {}", leak.direct)?;
        match leak.indirect.objects {
            0 => Ok(()),
            _ => write!(f, ", and of {} that only they lead to", leak.indirect),
        }
    }
}

fn as_text(out: &mut impl Write, leak: &Leak, allocated: Option<&Event<'_>>) -> fmt::Result {
    let first = &leak.first;
    writeln!(out, "uslab: {}", Headline(leak))?;
    let which = if leak.direct.objects == 1 { "object" } else { "one of them is object" };
    write!(out, "  {which} {:#x} of {}, of {}", first.pointer, Bytes(first.bytes), first.cache)?;
    if first.family.is_empty() { writeln!(out) } else { writeln!(out, ", by {}", first.family) }?;
    match allocated {
        Some(event) => text::happened(out, "allocated", event),
        None => writeln!(out, "  its allocation was not recorded: letter U of USLAB_DEBUG does that"),
    }
}

fn as_json(out: &mut impl Write, leak: &Leak, allocated: Option<&Event<'_>>) -> fmt::Result {
    let Leak { first, direct, indirect } = leak;
    write!(out, "{{\"fault\":\"{}\",\"message\":\"{}\"", Fault::Leak.name(), Headline(leak))?;
    json::text(out, ",\"cache\":", &first.cache)?;
    write!(out, ",\"pointer\":\"{:#x}\",\"process\":{}", first.pointer, os::file::process_id())?;
    write!(out, ",\"objects\":{},\"bytes\":{}", direct.objects, direct.bytes)?;
    write!(out, ",\"indirect_objects\":{},\"indirect_bytes\":{}", indirect.objects, indirect.bytes)?;
    write!(out, ",\"object\":{{\"start\":\"{:#x}\",\"bytes\":{}", first.pointer, first.bytes)?;
    write!(out, ",\"state\":\"allocated\",\"family\":\"{}\"}}", first.family)?;
    if let Some(event) = allocated {
        write!(out, ",\"allocated\":")?;
        json::happened(out, event)?;
    }
    writeln!(out, "}}")
}

/// The totals of a search.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Objects that nothing leads to, but other leaked objects in a cycle.
    pub direct: Amount,
    /// Objects that only leaked objects lead to.
    pub indirect: Amount,
    /// Objects of either kind that are not reported.
    pub suppressed: Amount,
    /// Stacks that objects leaked from.
    pub places: usize,
}

/// Writes the line of totals.
pub fn publish_totals(totals: &Totals) {
    let _errno = os::errno::Preserved::new();
    let Totals { direct, indirect, suppressed, places } = totals;
    sink::write(|out, format| match format {
        Format::Text => {
            let plural = if *places == 1 { "" } else { "s" };
            write!(out, "uslab: leaks from {places} place{plural}: {direct}, indirectly {indirect}")?;
            if suppressed.objects > 0 {
                write!(out, "; {suppressed} suppressed")?;
            }
            writeln!(out)
        }
        Format::Json => {
            write!(out, "{{\"summary\":\"leaks\",\"process\":{}", os::file::process_id())?;
            write!(out, ",\"places\":{places}")?;
            let amounts = [("", direct), ("indirect_", indirect), ("suppressed_", suppressed)];
            for (kind, amount) in amounts {
                write!(out, ",\"{kind}objects\":{},\"{kind}bytes\":{}", amount.objects, amount.bytes)?;
            }
            writeln!(out, "}}")
        }
    });
}

//! Reports as lines for people. The first line is the one that the library writes without
//! debugging; the rest is indented.

use super::symbol::Place;
use super::{Bytes, Dump, Event, Report};
use crate::os;
use core::fmt::{self, Write};

/// Writes `report`, with the stack of the fault.
pub fn write(out: &mut impl Write, report: &Report<'_>, stack: &[usize]) -> fmt::Result {
    writeln!(out, "uslab: {}", report.headline)?;
    if report.is_brief {
        return Ok(());
    }
    let (thread, cpu) = (os::thread::id(), os::cpu::current());
    writeln!(out, "  found by thread {thread} on CPU {cpu}")?;
    frames(out, stack)?;
    if let Some(object) = report.object {
        write!(out, "  object {:#x} of {}, {}", object.start, Bytes(object.bytes), object.state)?;
        if object.family.is_empty() { writeln!(out) } else { writeln!(out, ", of {}", object.family) }?;
    }
    for (what, event) in [("allocated", &report.allocated), ("freed", &report.freed)] {
        if let Some(event) = event {
            happened(out, what, event)?;
        }
    }
    if let Some(dump) = &report.dump {
        bytes(out, dump)?;
    }
    if let Some((range, value)) = &report.repaired {
        writeln!(out, "  repaired: {:#x} to {:#x} filled with {value:#04x}", range.start, range.end)?;
    }
    Ok(())
}

/// Writes an allocation or a free, `what`, with its stack.
pub fn happened(out: &mut impl Write, what: &str, event: &Event<'_>) -> fmt::Result {
    let ago_ms = os::clock::coarse_ms().saturating_sub(event.time_ms);
    writeln!(out, "  {what} {ago_ms} ms ago by thread {} on CPU {}", event.thread, event.cpu)?;
    if event.stack.is_empty() && !event.lost.is_empty() {
        writeln!(out, "    {}", event.lost)?;
    }
    frames(out, event.stack)
}

fn frames(out: &mut impl Write, stack: &[usize]) -> fmt::Result {
    for (number, &pc) in stack.iter().enumerate() {
        writeln!(out, "    #{number} {}", Place::of(pc))?;
    }
    Ok(())
}

/// Lines of 16 bytes, with the address before and the characters behind them. Wrong bytes stand
/// between brackets.
fn bytes(out: &mut impl Write, dump: &Dump) -> fmt::Result {
    writeln!(out, "  bytes around, the wrong ones in brackets")?;
    let mut line = dump.shown.start & !15;
    while line < dump.shown.end {
        write!(out, "    {line:#x}:")?;
        let byte = |at: usize| {
            // SAFETY: the maker of the report states that the bytes are readable.
            dump.shown.contains(&at).then(|| unsafe { (at as *const u8).read_volatile() })
        };
        for at in line..line + 16 {
            let is_wrong = dump.wrong.contains(&at);
            let open = if is_wrong && (at == line || at == dump.wrong.start) { '[' } else { ' ' };
            let close = if is_wrong && (at == line + 15 || at + 1 == dump.wrong.end) { "]" } else { "" };
            match byte(at) {
                Some(byte) => write!(out, "{open}{byte:02x}{close}")?,
                None => write!(out, "   ")?,
            }
        }
        write!(out, "  |")?;
        for byte in (line..line + 16).filter_map(byte) {
            out.write_char(if (0x20..0x7f).contains(&byte) { char::from(byte) } else { '.' })?;
        }
        writeln!(out, "|")?;
        line += 16;
    }
    Ok(())
}

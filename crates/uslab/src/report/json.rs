//! Reports as JSON: one object a line.

use super::symbol::Place;
use super::{Event, Report};
use crate::os;
use core::fmt::{self, Write};

/// Writes `report`, with the stack of the fault.
pub fn write(out: &mut impl Write, report: &Report<'_>, stack: &[usize]) -> fmt::Result {
    write!(out, "{{\"fault\":\"{}\",\"message\":\"", report.fault.name())?;
    write!(Quoted(out), "{}", report.headline)?;
    write!(out, "\",\"cache\":\"")?;
    write!(Quoted(out), "{}", report.cache)?;
    write!(out, "\",\"pointer\":\"{:#x}\"", report.pointer)?;
    write!(out, ",\"process\":{},\"thread\":{}", os::file::process_id(), os::thread::id())?;
    write!(out, ",\"cpu\":{},\"stack\":", os::cpu::current())?;
    frames(out, stack)?;
    if let Some(object) = report.object {
        write!(out, ",\"object\":{{\"start\":\"{:#x}\",\"bytes\":{}", object.start, object.bytes)?;
        write!(out, ",\"state\":\"{}\",\"family\":\"{}\"}}", object.state, object.family)?;
    }
    for (name, event) in [("allocated", &report.allocated), ("freed", &report.freed)] {
        if let Some(event) = event {
            write!(out, ",\"{name}\":")?;
            happened(out, event)?;
        }
    }
    if let Some(dump) = &report.dump {
        let (shown, wrong) = (&dump.shown, &dump.wrong);
        write!(out, ",\"bytes\":{{\"start\":\"{:#x}\",\"wrong_start\":\"{:#x}\"", shown.start, wrong.start)?;
        write!(out, ",\"wrong_end\":\"{:#x}\",\"hex\":\"", wrong.end)?;
        for at in shown.clone() {
            // SAFETY: the maker of the report states that the bytes are readable.
            write!(out, "{:02x}", unsafe { (at as *const u8).read_volatile() })?;
        }
        write!(out, "\"}}")?;
    }
    if let Some((range, value)) = &report.repaired {
        write!(out, ",\"repaired\":{{\"start\":\"{:#x}\",\"end\":\"{:#x}\"", range.start, range.end)?;
        write!(out, ",\"value\":{value}}}")?;
    }
    writeln!(out, "}}")
}

/// Writes a line about an allocation or a free.
pub fn trace(
    out: &mut impl Write,
    (what, family): (&str, &str),
    cache: &str,
    (pointer, bytes): (usize, usize),
    (thread, cpu): (u32, u32),
) -> fmt::Result {
    write!(out, "{{\"trace\":\"{what}\",\"cache\":\"")?;
    write!(Quoted(out), "{cache}")?;
    write!(out, "\",\"pointer\":\"{pointer:#x}\",\"bytes\":{bytes},\"family\":\"{family}\"")?;
    writeln!(out, ",\"thread\":{thread},\"cpu\":{cpu}}}")
}

/// Writes an allocation or a free.
pub fn happened(out: &mut impl Write, event: &Event<'_>) -> fmt::Result {
    let ago_ms = os::clock::coarse_ms().saturating_sub(event.time_ms);
    write!(out, "{{\"thread\":{},\"cpu\":{},\"ago_ms\":{ago_ms}", event.thread, event.cpu)?;
    write!(out, ",\"lost\":\"{}\",\"stack\":", event.lost)?;
    frames(out, event.stack)?;
    write!(out, "}}")
}

/// Writes `before`, then `value` as a string.
pub fn text(out: &mut impl Write, before: &str, value: &dyn fmt::Display) -> fmt::Result {
    write!(out, "{before}\"")?;
    write!(Quoted(out), "{value}")?;
    write!(out, "\"")
}

fn frames(out: &mut impl Write, stack: &[usize]) -> fmt::Result {
    write!(out, "[")?;
    for (number, &pc) in stack.iter().enumerate() {
        write!(out, "{}\"", if number > 0 { "," } else { "" })?;
        write!(Quoted(out), "{}", Place::of(pc))?;
        write!(out, "\"")?;
    }
    write!(out, "]")
}

/// Text inside a JSON string.
struct Quoted<'a, W>(&'a mut W);

impl<W: Write> Write for Quoted<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '"' | '\\' => write!(self.0, "\\{character}")?,
                '\0'..='\x1f' => write!(self.0, "\\u{:04x}", character as u32)?,
                _ => self.0.write_char(character)?,
            }
        }
        Ok(())
    }
}

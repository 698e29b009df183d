//! Headroom: the bytes left below the limits of the process's control group and of those above it.
//!
//! Limits stand at any level and change at any time, without notice; so every poll reads all
//! levels. It opens the files and closes them again, but one: the events of the level with the
//! lowest limit, which the kernel signals when the limit is hit.
//!
//! Pages of files that were read once, and that the kernel can drop (`inactive_file`), do not count
//! as used. The kernel counts a hit before it drops such pages, so a hit beside two margins of them
//! does not count either. Otherwise a program that reads large files in a container would be told
//! to empty its caches for ever and for nothing.
//!
//! A file that cannot be read, or that makes no sense, never counts as a limit.

use super::context::Context;
use super::files::{NONE, bytes_in, lines, number, open, value_in};
use super::place::{LEVELS, Place};
use super::pressure::{Demand, Kind, Pressure};
use crate::os::path::Path;
use crate::os::pressure::Descriptor;
use core::fmt;

/// Upper bound on what is kept free below a limit.
const MAX_MARGIN_BYTES: u64 = 64 << 20;

/// A level's events: those of its own limits, or before Linux 5.2 also those of limits below it.
const EVENTS: [&[u8]; 2] = [b"/memory.events.local", b"/memory.events"];

/// How often a level's limits were hit, in total.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Hits {
    high: u64,
    max: u64,
}

/// The limits, as the last poll found them.
pub struct Headroom {
    hits: [Option<Hits>; LEVELS],
    /// The level with the lowest limit, and its events.
    events: Option<(usize, Descriptor)>,
    /// The lowest limit.
    limit_bytes: Option<u64>,
    /// The bytes used below it.
    used_bytes: u64,
    /// More than half of some limit was used.
    is_near: bool,
}

impl Headroom {
    pub const fn new() -> Headroom {
        Headroom { hits: [None; LEVELS], events: None, limit_bytes: None, used_bytes: 0, is_near: false }
    }

    /// Whether more than half of a limit was used at the last poll: it may be hit soon.
    pub fn is_near(&self) -> bool {
        self.is_near
    }

    /// The lowest limit, 0 for none, and the bytes used below it at the last poll.
    pub fn figures(&self) -> (u64, u64) {
        (self.limit_bytes.unwrap_or(0), self.used_bytes)
    }

    /// The descriptor that becomes ready when the lowest limit is hit.
    pub fn descriptor(&self) -> Option<&Descriptor> {
        self.events.as_ref().map(|(_, descriptor)| descriptor)
    }

    /// Reads the limits, and reports one that is near or was hit since the last poll.
    pub fn pressure(&mut self, context: &Context, demand: &mut Demand, now_ms: u64) -> Option<Pressure> {
        let (excess_bytes, is_hit) = self.read(context.limits().ok()?);
        match excess_bytes {
            0 if is_hit => Some(demand.of_stall(Kind::Cgroup, now_ms)),
            0 => None,
            bytes => Some(demand.of_bytes(Kind::Cgroup, bytes)),
        }
    }

    /// Prints the source's line.
    pub fn describe(&self, context: &Context, print: &mut dyn FnMut(fmt::Arguments)) {
        match (context.limits(), self.limit_bytes) {
            (Err(reason), _) => print(format_args!("pressure: cgroup: not watched: {reason}")),
            (Ok(place), Some(bytes)) => {
                print(format_args!("pressure: cgroup: watching {place}, lowest limit {bytes} bytes"));
            }
            (Ok(place), None) => print(format_args!("pressure: cgroup: watching {place}, no limit so far")),
        }
    }

    /// Reads all levels. Returns the most bytes that one of them has in excess, and whether any
    /// limit was hit since the last poll.
    fn read(&mut self, place: &Place) -> (u64, bool) {
        let (mut excess_bytes, mut is_hit) = (0, false);
        let mut lowest: Option<(u64, usize)> = None;
        self.is_near = false;
        for level in 0..place.levels() {
            let Some(directory) = place.level(level) else { break };
            let limit = limit(&directory);
            if limit == NONE {
                self.hits[level] = None;
                continue;
            }
            let current = bytes_in(&directory, b"/memory.current").unwrap_or(0);
            if lowest.is_none_or(|(bytes, _)| limit < bytes) {
                lowest = Some((limit, level));
                self.used_bytes = current;
            }
            self.is_near |= current > limit / 2;
            let hits = hits(&directory);
            let is_hit_here = self.hits[level]
                .zip(hits)
                .is_some_and(|(before, now)| now.high > before.high || now.max > before.max);
            self.hits[level] = hits.or(self.hits[level]);
            let margin = margin(limit);
            if is_hit_here || current > limit - margin {
                let droppable = value_in(&directory, b"/memory.stat", b"inactive_file").unwrap_or(0);
                excess_bytes = excess(limit, current.saturating_sub(droppable)).max(excess_bytes);
                is_hit |= is_hit_here && droppable <= 2 * margin;
            }
        }
        self.limit_bytes = lowest.map(|(bytes, _)| bytes);
        self.watch(place, lowest.map(|(_, level)| level));
        (excess_bytes, is_hit)
    }

    /// Opens the events of `level`, unless they are open.
    fn watch(&mut self, place: &Place, level: Option<usize>) {
        // The kernel signals events until they are read.
        let mut scrap = [0u8; 1];
        if let Some((watched, descriptor)) = &self.events
            && Some(*watched) == level
            && descriptor.read_at_start(&mut scrap).is_some()
        {
            return;
        }
        self.events = None;
        let Some(level) = level else { return };
        let Some(directory) = place.level(level) else { return };
        let open = |name| Descriptor::open_to_read(directory.with(name)?.as_c()).ok();
        if let Some(descriptor) = EVENTS.into_iter().find_map(open)
            && descriptor.read_at_start(&mut scrap).is_some()
        {
            self.events = Some((level, descriptor));
        }
    }
}

/// The lower of a level's limits.
fn limit(directory: &Path) -> u64 {
    bytes_in(directory, b"/memory.high")
        .unwrap_or(NONE)
        .min(bytes_in(directory, b"/memory.max").unwrap_or(NONE))
}

/// The bytes kept free below `limit`.
fn margin(limit: u64) -> u64 {
    (limit / 16).min(MAX_MARGIN_BYTES)
}

/// The bytes to give back: once less than one margin is left below `limit`, down to two margins
/// below it.
fn excess(limit: u64, used: u64) -> u64 {
    let margin = margin(limit);
    if used > limit - margin { used - (limit - 2 * margin) } else { 0 }
}

fn hits(directory: &Path) -> Option<Hits> {
    let mut reader = EVENTS.into_iter().find_map(|name| open(directory, name))?;
    hits_of(&mut |buffer| reader.read(buffer))
}

fn hits_of(read: &mut dyn FnMut(&mut [u8]) -> usize) -> Option<Hits> {
    let (mut high, mut max) = (None, None);
    lines(read, &mut |line| {
        if let Some(count) = line.strip_prefix(b"high ") {
            high = number(count);
        } else if let Some(count) = line.strip_prefix(b"max ") {
            max = number(count);
        }
        high.is_none() || max.is_none()
    });
    Some(Hits { high: high?, max: max? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn from(mut text: &[u8]) -> impl FnMut(&mut [u8]) -> usize {
        move |buffer| {
            let n = text.len().min(buffer.len());
            buffer[..n].copy_from_slice(&text[..n]);
            text = &text[n..];
            n
        }
    }

    #[test]
    fn events_are_counted() {
        let text = b"low 1\nhigh 22\nmax 333\noom 4\noom_kill 5\noom_group_kill 6\n";
        assert_eq!(hits_of(&mut from(text)), Some(Hits { high: 22, max: 333 }));
        for text in
            [&b""[..], b"low 1\nhigh 22\n", b"high x\nmax 1\n", b"high 1\nmax 2", b"highest 1\nmax 2\n"]
        {
            assert_eq!(hits_of(&mut from(text)), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(text: Vec<u8>) {
            let _ = hits_of(&mut from(&text));
        }

        #[test]
        fn nor_do_lines_that_are_nearly_right(
            events in r"((low|high|max) ?[0-9x]{0,25}\n?){0,9}",
        ) {
            let _ = hits_of(&mut from(events.as_bytes()));
        }
    }
}

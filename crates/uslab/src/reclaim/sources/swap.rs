//! Detects that the kernel swaps out memory of the process or of its control group: then pressure
//! counts twice.
//!
//! A page that is swapped out has cost a write and will cost a read; an entry of a cache costs
//! less. So swapping doubles the bytes that pressure asks for. Linux of 2002 did the same:
//! `shrink_list` counted a swap-backed page twice.
//!
//! ```text
//!   VmSwap of /proc/self/status                  memory of the process in swap
//!   pswpout, zswpout of the group's memory.stat  pages swapped out, in total, if the kernel counts them
//!   memory.swap.current of the group             if there is no pswpout: memory of the group in swap
//! ```
//!
//! Each poll compares the figures with those of the poll before, at least half a second ago. A
//! figure that cannot be read never counts as swapping.

use super::files::{bytes_in, lines, number, open, value_in};
use super::place::Place;
use crate::os::path::Path;

/// Least time between two polls.
const APART_MS: u64 = 500;

/// The figures of the last poll.
pub struct Swap {
    process_kib: Option<u64>,
    group: Option<u64>,
    looked_ms: u64,
    has_grown: bool,
}

impl Swap {
    pub const fn new() -> Swap {
        Swap { process_kib: None, group: None, looked_ms: 0, has_grown: false }
    }

    /// Reads again, if the last poll was half a second ago or more.
    pub fn read(&mut self, proc: &Path, place: Option<&Place>, now_ms: u64) {
        if self.looked_ms != 0 && now_ms < self.looked_ms.saturating_add(APART_MS) {
            return;
        }
        let process_kib = process_kib(proc);
        let group = place.and_then(|place| place.level(0)).and_then(|own| swapped_out(&own));
        self.has_grown = has_grown(self.process_kib, process_kib) || has_grown(self.group, group);
        (self.process_kib, self.group, self.looked_ms) = (process_kib, group, now_ms);
    }

    /// Memory was swapped out.
    #[cfg(test)]
    pub fn grown() -> Swap {
        Swap { has_grown: true, ..Swap::new() }
    }

    /// Whether memory was swapped out between the last two polls.
    pub fn has_grown(&self) -> bool {
        self.has_grown
    }
}

fn has_grown(before: Option<u64>, now: Option<u64>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if now > before)
}

fn process_kib(proc: &Path) -> Option<u64> {
    let mut status = open(proc, b"/self/status")?;
    let mut kib = None;
    lines(&mut |buffer| status.read(buffer), &mut |line| {
        kib = vm_swap(line);
        kib.is_none()
    });
    kib
}

/// The number of a line `VmSwap:      12 kB`.
fn vm_swap(line: &[u8]) -> Option<u64> {
    number(line.strip_prefix(b"VmSwap:")?.trim_ascii().strip_suffix(b" kB")?)
}

/// The swapping of a group: the count of pages swapped out or, if the kernel has none, the bytes in
/// swap.
fn swapped_out(directory: &Path) -> Option<u64> {
    match value_in(directory, b"/memory.stat", b"pswpout") {
        Some(pages) => {
            let compressed = value_in(directory, b"/memory.stat", b"zswpout");
            Some(pages.saturating_add(compressed.unwrap_or(0)))
        }
        None => bytes_in(directory, b"/memory.swap.current"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn the_line_of_the_process_is_found() {
        assert_eq!(vm_swap(b"VmSwap:\t     812 kB"), Some(812));
        for line in [&b"VmSwap:"[..], b"VmSwap:\t12", b"VmSize:\t 1 kB", b"VmSwap:\t-1 kB", b""] {
            assert_eq!(vm_swap(line), None);
        }
    }

    #[test]
    fn only_more_than_before_is_a_sign() {
        assert!(has_grown(Some(1), Some(2)));
        for (before, now) in [(None, Some(2)), (Some(2), None), (Some(2), Some(2)), (Some(2), Some(1))] {
            assert!(!has_grown(before, now));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(line: Vec<u8>) {
            let _ = vm_swap(&line);
        }
    }
}

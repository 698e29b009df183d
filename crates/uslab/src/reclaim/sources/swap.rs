//! Whether the kernel swaps out memory of the process or of its control group, for pressure counts
//! twice then.
//!
//! A page that is swapped out has cost a write and will cost a read; memory that a cache could give
//! up costs less. So, as Linux did in 2002 (`shrink_list` counted a swap-backed page twice), what
//! pressure asks for is doubled.
//!
//! ```text
//!   VmSwap of /proc/self/status                  what of the process lies in swap
//!   pswpout, zswpout of the group's memory.stat  pages swapped out, in total, where the kernel counts them
//!   memory.swap.current of the group             where there is no pswpout: what of the group lies in swap
//! ```
//!
//! A look compares with the look before. Must never: look more often than each half second; take
//! what cannot be read for a sign.

use super::files::{bytes_in, lines, number, open, value_in};
use super::path::Path;
use super::place::Place;

/// Between two looks, at least.
const APART_MS: u64 = 500;

/// What was swapped out, as last seen.
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

    /// Looks, if the last time is half a second ago.
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

    /// Whether something was swapped out between the last two looks.
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

/// What was swapped out of a group: a count of pages, or where the kernel has none, bytes that are
/// out.
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

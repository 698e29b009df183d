//! A report of pressure and the bytes that it asks for.
//!
//! A source knows the bytes, or only that memory is short. [`Demand`] turns either into a
//! [`Pressure`], the one type that leaves this folder.
//!
//! ```text
//!   bytes beyond a limit ──────────────────────────────────┐
//!   a stall, a limit that was hit ─▶ part of the memory ───┴─▶ twice, if memory was swapped out
//! ```

use super::context::Context;
use super::swap::Swap;
use crate::pages;

/// The source of a report, by the word that chooses it in `USLAB_PRESSURE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file, pipe or socket that the service manager named.
    Systemd,
    /// The kernel's stall accounting, of a cgroup or of the system.
    Psi,
    /// A limit of the process's cgroup or of one above it.
    Cgroup,
}

/// A source reports that memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// The source.
    pub kind: Kind,
    /// Memory to be given back.
    pub bytes: usize,
}

/// Computes the bytes that a report asks for.
///
/// A stall names none: it asks for a 32nd of the memory, and for twice as much each time that
/// another one follows within four seconds, which is two of the kernel's windows. Every report
/// counts twice while memory is swapped out.
pub struct Demand {
    swap: Swap,
    shift: u32,
    last_stall_ms: u64,
}

impl Demand {
    const MIN_SHIFT: u32 = 5;
    const FOLLOWS_MS: u64 = 4000;

    pub const fn new() -> Demand {
        Demand { swap: Swap::new(), shift: Demand::MIN_SHIFT, last_stall_ms: 0 }
    }

    /// Looks for swapping, unless no source is chosen.
    pub fn look_at_swap(&mut self, context: &Context, now_ms: u64) {
        if context.has_sources() {
            self.swap.read(&context.proc, context.place.as_ref().ok(), now_ms);
        }
    }

    /// Notes that the process is in another cgroup: the figures of the old one no longer apply.
    pub fn forget_swap(&mut self) {
        self.swap = Swap::new();
    }

    /// The next stall follows none.
    pub fn forget_stall(&mut self) {
        self.last_stall_ms = 0;
    }

    /// The report of a source that knows the bytes.
    pub fn of_bytes(&self, kind: Kind, bytes: u64) -> Pressure {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let times = if self.swap.has_grown() { 2 } else { 1 };
        Pressure { kind, bytes: bytes.saturating_mul(times) }
    }

    /// The report of a source that knows only that memory is short.
    pub fn of_stall(&mut self, kind: Kind, now_ms: u64) -> Pressure {
        let part = self.part(now_ms, pages::held_bytes());
        self.of_bytes(kind, part as u64)
    }

    /// The bytes that a stall at `now_ms` asks for while `held_bytes` are held.
    pub fn part(&mut self, now_ms: u64, held_bytes: usize) -> usize {
        let follows = now_ms.saturating_sub(self.last_stall_ms) < Demand::FOLLOWS_MS;
        self.shift = if follows { self.shift.saturating_sub(1).max(1) } else { Demand::MIN_SHIFT };
        self.last_stall_ms = now_ms;
        (held_bytes >> self.shift).max(pages::CHUNK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_counts_twice_where_memory_was_swapped_out() {
        let mut demand = Demand::new();
        assert_eq!(demand.of_bytes(Kind::Cgroup, 1000).bytes, 1000);
        demand.swap = Swap::grown();
        assert_eq!(demand.of_bytes(Kind::Cgroup, 1000).bytes, 2000);
        assert_eq!(demand.of_bytes(Kind::Cgroup, u64::MAX).bytes, usize::MAX);
        assert!(demand.of_stall(Kind::Psi, 10_000).bytes >= 2 * pages::CHUNK_BYTES);
    }

    #[test]
    fn a_stall_that_follows_asks_for_twice_as_much() {
        let mut demand = Demand::new();
        let held = 1 << 30;
        let asked = [10_000, 12_000, 14_000, 18_001].map(|now_ms| demand.part(now_ms, held));
        assert_eq!(asked, [held >> 5, held >> 4, held >> 3, held >> 5]);
        demand.forget_stall();
        assert_eq!(demand.part(18_002, held), held >> 5);
    }
}

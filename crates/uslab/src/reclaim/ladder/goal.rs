//! The goals of passes: when a pass has done enough, and the terms on which it works.
//!
//! ```text
//!   Given      bytes that went to the system          reclaim(bytes)
//!   Until      an allocation that succeeds            hard limit, ENOMEM
//!   Estimate   entries that should hold the bytes     soft limit, pressure
//! ```

use super::Progress;
use super::world::Basis;
use crate::pages::Scattered;

/// The goal of a pass.
pub trait Goal {
    /// The terms on which the pass works.
    fn terms(&self) -> Terms;

    /// Whether the pass has done enough. The ladder asks this after each sweep of free memory.
    fn is_met(&mut self, so_far: &Progress) -> bool;

    /// Bytes that the next round asks for.
    fn missing_bytes(&self, so_far: &Progress) -> usize;
}

/// The terms on which a pass works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Whether the pass waits for other threads: those inside shrinkers, and those with memory in
    /// flight.
    pub waits: bool,
    /// Treatment of scattered pages while shrinkers have entries.
    pub scattered: Scattered,
    /// Each round asks for this many times the entries that should hold the missing bytes: some
    /// entries leave holes in pages, and free no page.
    pub margin: usize,
    /// Whether the pass corrects the size of an entry by the bytes that freed entries brought.
    pub learns: bool,
    /// The figure from which the pass estimates the size of an entry.
    pub basis: Basis,
}

/// Goal: this many bytes went to the system.
pub struct Given {
    /// The bytes.
    pub bytes: usize,
}

impl Goal for Given {
    fn terms(&self) -> Terms {
        Terms { waits: false, scattered: Scattered::Stay, margin: 2, learns: true, basis: Basis::Pages }
    }

    fn is_met(&mut self, so_far: &Progress) -> bool {
        self.missing_bytes(so_far) == 0
    }

    fn missing_bytes(&self, so_far: &Progress) -> usize {
        self.bytes.saturating_sub(so_far.given_bytes)
    }
}

/// Goal: an allocation that found no memory succeeds.
///
/// The bytes released do not tell whether it will: a hole in a slab has room for one size only, and
/// other threads take memory that comes free. So the pass tries the allocation between the steps,
/// and each round asks for twice as much as the one before.
pub struct Until<'a> {
    /// Lower bound on the bytes that are missing.
    pub bytes: usize,
    /// Tries the allocation; returns whether it succeeded.
    pub attempt: &'a mut dyn FnMut() -> bool,
}

impl Goal for Until<'_> {
    fn terms(&self) -> Terms {
        Terms { waits: true, scattered: Scattered::Go, margin: 2, learns: false, basis: Basis::Pages }
    }

    fn is_met(&mut self, _: &Progress) -> bool {
        (self.attempt)()
    }

    fn missing_bytes(&self, so_far: &Progress) -> usize {
        self.bytes.saturating_mul(1 << so_far.rounds)
    }
}

/// Goal: the freed entries should hold `bytes` on average.
///
/// For passes in the background. The program takes freed memory as it comes free. If that memory
/// counted as missing, a pass would empty the caches. Another pass will follow anyway.
pub struct Estimate<'a> {
    /// The bytes.
    pub bytes: usize,
    /// Returns the bytes now held above those that may stay. It bounds the pass: several passes for
    /// one limit may run at once, and each would free the bytes that all of them miss.
    pub above_bytes: &'a dyn Fn() -> usize,
}

impl Goal for Estimate<'_> {
    fn terms(&self) -> Terms {
        Terms { waits: false, scattered: Scattered::Stay, margin: 1, learns: false, basis: Basis::Objects }
    }

    fn is_met(&mut self, so_far: &Progress) -> bool {
        self.missing_bytes(so_far) == 0
    }

    fn missing_bytes(&self, so_far: &Progress) -> usize {
        let missing_bytes = self.bytes.saturating_sub(so_far.given_bytes.max(so_far.estimated_bytes));
        missing_bytes.min((self.above_bytes)())
    }
}

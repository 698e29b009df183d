//! The goals of passes, and what each permits.
//!
//! ```text
//!   Given      bytes that went to the system          reclaim(bytes)
//!   Until      an allocation that succeeds            hard limit, ENOMEM
//!   Estimate   entries that should hold the bytes     soft limit, pressure
//! ```

use super::Progress;
use super::world::Basis;
use crate::pages::Scattered;

/// When a pass has done enough.
pub trait Goal {
    /// What the pass may do.
    fn terms(&self) -> Terms;

    /// Whether it has done enough. Asked whenever all that came free has been given back.
    fn is_met(&mut self, so_far: &Progress) -> bool;

    /// Bytes that the next round asks for.
    fn missing_bytes(&self, so_far: &Progress) -> usize;
}

/// What a goal permits a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// To wait for other threads: those inside shrinkers, and those with memory in flight.
    pub waits: bool,
    /// What becomes of pages that stand alone while shrinkers have entries.
    pub scattered: Scattered,
    /// Each round asks for so many times the entries that should hold what is missing: some leave
    /// holes that no page comes of.
    pub margin: usize,
    /// To correct the size of an entry by what the entries that went brought.
    pub learns: bool,
    /// What the size of an entry is estimated from.
    pub basis: Basis,
}

/// So many bytes are with the system.
pub struct Given {
    /// How many.
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

/// An allocation of `bytes` that found no memory succeeds.
///
/// Bytes do not tell: holes in slabs are room for one size and not for another, and other threads
/// take what comes free. So the allocation is tried between the steps, and each round asks for
/// twice as much as the one before.
pub struct Until<'a> {
    /// What is missing, at least.
    pub bytes: usize,
    /// Tries the allocation.
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

/// As many entries went as should hold `bytes` on average.
///
/// In the background, where programs take what comes free as it comes. What they take must not
/// count as too little, or a pass would empty the caches; another pass will follow.
pub struct Estimate<'a> {
    /// How many.
    pub bytes: usize,
    /// Bytes that are held above what may stay, now. Several passes for one limit may run at once,
    /// and each would bring what all of them miss.
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

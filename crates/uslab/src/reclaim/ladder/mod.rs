//! The ladder: the steps of a pass as a table, the gentlest first.
//!
//! A pass is one loop: *take the gentlest step that is allowed, until the goal is met or no step is
//! allowed.* [`LADDER`] lists the steps. The state of the pass, its [`Standing`], decides whether a
//! step is allowed.
//!
//! ```text
//!   free pages      ─┐ memory that came free since the last sweep, up to the missing bytes
//!   empty slabs     ─┘ (and sheaves that no thread needs soon)
//!   entries            one round: asks every shrinker for its share, at the next priority
//!   scattered pages ─┐ once shrinkers have nothing, or rounds are at priority 0:
//!   busy sheaves    ─┘ the memory of running threads; again after each round that freed entries
//!   time               waits a millisecond for a shrinker that another thread is inside
//!   retry              priority 0 again, for shrinkers that were in use or slow
//! ```
//!
//! The ladder decides and [`World`] acts. So tests run every transition without a thread or a
//! clock, and `simulation` runs passes, limits and sources in 100 000 schedules.
//!
//! A pass never holds a lock in a callback. A pass for an allocation leaves entries that could go
//! only after 250 waits or 250 repeated rounds.

mod goal;
mod round;
#[cfg(test)]
mod simulation;
mod standing;
#[cfg(test)]
mod tests;
mod world;

pub use goal::{Estimate, Given, Goal, Terms, Until};
pub use world::{Basis, End, Visit, World};

use super::balance::WHOLE;
use crate::pages::Scattered;
use round::{LeftOut, MAX_ROUNDS, Pressure, Prospect};
use standing::{Round, Standing};

/// A step: what a pass takes, and when.
#[derive(Clone, Copy)]
pub struct Step {
    /// The memory that the step takes, which also names the step.
    pub takes: Takes,
    /// Whether the step is allowed.
    pub when: fn(&Standing) -> bool,
}

/// The action of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Purges free pages: blocks of 64 KiB, and single pages beyond 512 KiB of dirty ones.
    Pages,
    /// Takes sheaves of this CPU and of barns that hold much, empty slabs but the last of each
    /// group, and then free pages inside slabs in use.
    Slabs,
    /// Takes entries of shrinkers, at the next priority.
    Entries,
    /// Purges single free pages too, from now on. Before that they stay, because most of them lie
    /// in groups a little later.
    ScatteredPages,
    /// Takes all free memory: every sheaf of every CPU, every empty slab, every page.
    BusySheaves,
    /// Waits a millisecond.
    Time,
    /// Asks shrinkers again that were in use, or too slow.
    Retry,
}

/// The steps, gentlest first.
pub const LADDER: [Step; 7] = [
    Step { takes: Takes::Pages, when: |now| !now.is_purged },
    Step { takes: Takes::Slabs, when: |now| !now.is_swept },
    Step {
        takes: Takes::Entries,
        when: |now| {
            now.round < MAX_ROUNDS
                && !now.is_barren
                && !now.awaits_other
                && (now.is_trimmed || !now.is_at_last_priority())
        },
    },
    Step {
        takes: Takes::ScatteredPages,
        when: |now| now.scattered == Scattered::Stay && now.has_done_gently(),
    },
    Step { takes: Takes::BusySheaves, when: |now| !now.is_trimmed && now.has_done_gently() },
    Step { takes: Takes::Time, when: |now| now.awaits_other },
    Step { takes: Takes::Retry, when: |now| now.has_waited || (now.has_left_out && !now.has_forgiven) },
];

/// Bytes of freed entries that may stay in this CPU's sheaves, page lists and scattered pages. Only
/// if entries brought more than this do the released bytes tell their size.
const TELLING_BYTES: usize = 512 << 10;

/// Lower bound on the bytes of an entry: the smallest object of `malloc`.
const MIN_ENTRY_BYTES: usize = 16;

/// Lower bound on the entries that a round asks for: the batch of most shrinkers.
const MIN_LOT: usize = 128;

/// The results of a pass so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Bytes that went to the system. This includes purges by frees in callbacks and by other
    /// threads meanwhile, which serve the goal just as well.
    pub given_bytes: usize,
    /// Entries that shrinkers freed.
    pub entries: usize,
    /// Bytes of these entries, by the estimated size of an entry.
    pub estimated_bytes: usize,
    /// Rounds over the shrinkers.
    pub rounds: u32,
}

/// Runs one pass over `ladder`, whose first sweep is for `bytes`.
pub fn climb<W: World>(ladder: &[Step], world: &W, bytes: usize, goal: &mut dyn Goal) -> Progress {
    let mut pass = Pass::new(world, bytes, goal.terms());
    loop {
        let progress = pass.progress();
        if pass.standing.is_settled() && goal.is_met(&progress) {
            return progress;
        }
        let Some(step) = ladder.iter().find(|step| (step.when)(&pass.standing)) else {
            return progress;
        };
        pass.take(step.takes, goal.missing_bytes(&progress));
    }
}

/// A pass in progress.
struct Pass<'w, W: World> {
    world: &'w W,
    terms: Terms,
    /// Bytes that were missing at the start.
    bytes: usize,
    standing: Standing,
    left_out: LeftOut<W::Shrinker>,
    purged_before: u64,
    used_before: usize,
    /// Bytes that went to the system before the first entry was freed.
    free_bytes: usize,
    entries: usize,
    estimated_bytes: usize,
}

impl<'w, W: World> Pass<'w, W> {
    fn new(world: &'w W, bytes: usize, terms: Terms) -> Self {
        Pass {
            world,
            terms,
            bytes,
            standing: Standing::new(bytes, terms),
            left_out: LeftOut::default(),
            purged_before: world.purged_bytes(),
            used_before: world.used_bytes(terms.basis),
            free_bytes: 0,
            entries: 0,
            estimated_bytes: 0,
        }
    }

    fn given_bytes(&self) -> usize {
        // The count moves, and is short for a moment, where a running process begins to publish.
        self.world.purged_bytes().saturating_sub(self.purged_before) as usize
    }

    fn progress(&self) -> Progress {
        Progress {
            given_bytes: self.given_bytes(),
            entries: self.entries,
            estimated_bytes: self.estimated_bytes,
            rounds: self.standing.round,
        }
    }

    /// Takes one step.
    fn take(&mut self, what: Takes, missing_bytes: usize) {
        let (world, now) = (self.world, &mut self.standing);
        match what {
            Takes::Pages => now.note_purged(world.purge(now.sweep_bytes, now.scattered)),
            Takes::Slabs => {
                world.trim_some(now.sweep_bytes, now.scattered);
                now.is_swept = true;
            }
            Takes::Entries => {
                let round = self.round(missing_bytes);
                let sweep_bytes = self.sweep_bytes(missing_bytes);
                self.standing.note_round(&round, self.terms, sweep_bytes);
            }
            Takes::ScatteredPages => {
                let sweep_bytes = self.sweep_bytes(missing_bytes);
                self.standing.note_scattered(sweep_bytes);
            }
            Takes::BusySheaves => {
                world.trim_all(self.terms.waits);
                now.note_trimmed();
            }
            Takes::Time => {
                world.pause_ms(1);
                now.note_wait();
            }
            Takes::Retry => {
                self.left_out = LeftOut::default();
                now.note_retry();
            }
        }
    }

    /// Bytes of free memory for the next sweep. Estimates may have been too high. So as long as the
    /// system has not got the bytes, free memory goes before the memory of running threads.
    fn sweep_bytes(&self, missing_bytes: usize) -> usize {
        missing_bytes.max(self.bytes.saturating_sub(self.given_bytes()))
    }

    /// Runs one round of entries.
    fn round(&mut self, missing_bytes: usize) -> Round {
        if self.entries == 0 {
            self.free_bytes = self.given_bytes();
        }
        let pressure = Pressure::of(self.standing.round);
        let prospect = round::prospect(self.world, pressure, &self.left_out);
        let mut round = Round {
            freeable: prospect.freeable,
            has_passed_over: prospect.has_passed_over,
            ..Round::default()
        };
        if let Some(mean_bytes) = self.used_before.checked_div(prospect.freeable) {
            let entry_bytes = mean_bytes.max(1);
            let part = self.part(&prospect, missing_bytes, entry_bytes);
            let pressure = Pressure { part, ..pressure };
            let outcome = round::shrink(self.world, pressure, &mut self.left_out);
            round.entries = outcome.entries;
            round.has_passed_over = outcome.has_passed_over;
            let estimated_bytes = outcome.entries.saturating_mul(entry_bytes);
            self.entries = self.entries.saturating_add(outcome.entries);
            self.estimated_bytes = self.estimated_bytes.saturating_add(estimated_bytes);
        }
        round.has_left_out = !self.left_out.is_empty();
        round
    }

    /// The part of the round that is enough, in 4096ths. A priority is too coarse: the next one is
    /// twice as much.
    fn part(&self, prospect: &Prospect, missing_bytes: usize, entry_bytes: usize) -> u64 {
        let by_size = (missing_bytes / entry_bytes).saturating_mul(self.terms.margin);
        let enough = by_size.max(MIN_LOT).max(self.learnt(missing_bytes)) as u64;
        match prospect.expected {
            expected if expected > enough => enough.saturating_mul(WHOLE).div_ceil(expected),
            _ => WHOLE,
        }
    }

    /// Entries for `missing_bytes`, by the bytes that freed entries brought; 0 as long as these do
    /// not tell the size of an entry.
    ///
    /// The estimated size is too large if most memory in use is not in entries. The bytes that
    /// entries brought tell more, once they exceed what may stay in sheaves and lists, or once
    /// these have been emptied. They count for at most as many entries again, and not at all if
    /// entries seem smaller than any object.
    fn learnt(&self, missing_bytes: usize) -> usize {
        let each_bytes = self.given_bytes().saturating_sub(self.free_bytes) / self.entries.max(1);
        let tells = each_bytes * self.entries >= TELLING_BYTES || self.standing.scattered == Scattered::Go;
        if self.terms.learns && tells && each_bytes >= MIN_ENTRY_BYTES {
            (missing_bytes / each_bytes).min(self.entries)
        } else {
            0
        }
    }
}

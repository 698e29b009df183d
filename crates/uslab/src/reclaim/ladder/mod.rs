//! The ladder: what a pass takes, the gentlest first, as a table.
//!
//! A pass is one loop: *take the gentlest step that is allowed, until the goal is met or no step
//! is.* [`LADDER`] lists the steps; a step is allowed by what happened so far, the [`Standing`].
//!
//! ```text
//!   free pages      ─┐ whatever came free since the last sweep, no more than is missing
//!   empty slabs     ─┘ (and sheaves that are not about to be used)
//!   entries            one round: every shrinker its share, at the next priority
//!   scattered pages ─┐ where shrinkers have nothing, or are asked at priority 0:
//!   busy sheaves    ─┘ what running threads use; again after each round that brought entries
//!   time               a millisecond, for a shrinker that another thread is inside
//!   retry              priority 0 again, for what was waited for and for slow shrinkers
//! ```
//!
//! The rungs decide and [`World`] acts, so that tests run every transition without a thread or a
//! clock, and `simulation` runs passes, limits and sources by the hundred thousand.
//!
//! Must never: hold a lock in a callback; end an allocation's pass while an entry could go.

mod goal;
mod round;
#[cfg(test)]
mod simulation;
mod standing;
#[cfg(test)]
mod tests;
mod world;

pub use goal::{Estimate, Given, Goal, Terms, Until};
pub use world::{Basis, Visit, World};

use super::balance::WHOLE;
use crate::pages::Scattered;
use round::{LeftOut, MAX_ROUNDS, Pressure, Prospect};
use standing::{Round, Standing};

/// A rung: what a pass takes, and when.
#[derive(Clone, Copy)]
pub struct Step {
    /// What it takes, which is its name too.
    pub takes: Takes,
    /// When it is allowed.
    pub when: fn(&Standing) -> bool,
}

/// What a step takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Free pages: groups of 64 KiB; single ones beyond the 512 KiB that are kept anyway.
    Pages,
    /// Sheaves of this CPU and of barns, where they hold much; empty slabs, but each cache's last.
    Slabs,
    /// Entries of shrinkers, at the next priority.
    Entries,
    /// Single free pages too, from now on. Most lie together a little later.
    ScatteredPages,
    /// Everything that is free: every sheaf of every CPU, every empty slab, every page.
    BusySheaves,
    /// A millisecond of the calling thread.
    Time,
    /// Another chance for the shrinkers that were passed over or left out.
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

/// About what stays in this CPU's sheaves, page lists and scattered pages of what entries bring.
const TELLING_BYTES: usize = 512 << 10;

/// The least that an object of `malloc` holds.
const MIN_ENTRY_BYTES: usize = 16;

/// A batch, as most shrinkers have it: no round is asked for less.
const MIN_LOT: usize = 128;

/// What a pass came to so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Bytes that went to the system. Frees in callbacks that purge by themselves count, and what
    /// other threads give meanwhile: it was this memory that was wanted.
    pub given_bytes: usize,
    /// Entries that shrinkers let go.
    pub entries: usize,
    /// Bytes that they should have held on average.
    pub estimated_bytes: usize,
    /// Rounds over the shrinkers.
    pub rounds: u32,
}

/// One pass over `ladder`, for `bytes` to begin with.
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

/// A pass under way.
struct Pass<'w, W: World> {
    world: &'w W,
    terms: Terms,
    /// What was missing at the start.
    bytes: usize,
    standing: Standing,
    left_out: LeftOut<W::Shrinker>,
    purged_before: u64,
    used_before: usize,
    /// Bytes that went before the first entry did.
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
        self.world.purged_bytes().wrapping_sub(self.purged_before) as usize
    }

    fn progress(&self) -> Progress {
        Progress {
            given_bytes: self.given_bytes(),
            entries: self.entries,
            estimated_bytes: self.estimated_bytes,
            rounds: self.standing.round,
        }
    }

    /// One step.
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

    /// Bytes of what is free that are to go. An estimate may have been too high: as long as the
    /// bytes are not with the system, what is free goes before what running threads use.
    fn sweep_bytes(&self, missing_bytes: usize) -> usize {
        missing_bytes.max(self.bytes.saturating_sub(self.given_bytes()))
    }

    /// One round of entries.
    fn round(&mut self, missing_bytes: usize) -> Round {
        if self.entries == 0 {
            self.free_bytes = self.given_bytes();
        }
        let pressure = Pressure::of(self.standing.round);
        let prospect = round::look(self.world, pressure, &self.left_out);
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

    /// What part of the round is enough, in 4096ths: priorities go by powers of two.
    fn part(&self, prospect: &Prospect, missing_bytes: usize, entry_bytes: usize) -> u64 {
        let by_size = (missing_bytes / entry_bytes).saturating_mul(self.terms.margin);
        let enough = by_size.max(MIN_LOT).max(self.learnt(missing_bytes)) as u64;
        match prospect.expected {
            expected if expected > enough => enough.saturating_mul(WHOLE).div_ceil(expected),
            _ => WHOLE,
        }
    }

    /// Entries for `missing_bytes`, by what those that went brought; 0 while that does not tell.
    ///
    /// Estimated sizes are too large where most of what is used is no entries. What entries brought
    /// tells once it is more than what stays in sheaves and lists, or these have been emptied. It
    /// is trusted no further than to as many entries again, and not at all where they seem smaller
    /// than any object.
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

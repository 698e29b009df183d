//! The state of a pass, as a plain value: everything that the choice of the next step depends on.

use super::goal::Terms;
use super::round::MAX_ROUNDS;
use crate::pages::Scattered;
use crate::reclaim::balance::LIGHTEST;

/// Upper bound on the milliseconds that an allocation waits for other threads inside shrinkers. A
/// quarter of a second is long for a callback, and short for a program that would fail instead.
pub const MAX_WAITS: u32 = 250;

/// Upper bound on the repetitions of the last round for an allocation. If shrinkers used all of
/// their 20 ms each time, they have delayed the allocation for seconds by then.
pub const MAX_REPEATS: u32 = 250;

/// The state of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Rounds of entries so far: priority 12 and down, then the rounds beyond priority 0.
    pub round: u32,
    /// Bytes that the present sweep of free memory still has to release.
    pub sweep_bytes: usize,
    /// The step for free pages has run since shrinkers last freed entries.
    pub is_purged: bool,
    /// The step for empty slabs has run since then, or free pages alone were enough.
    pub is_swept: bool,
    /// Treatment of scattered pages.
    pub scattered: Scattered,
    /// All free memory was released since shrinkers last freed entries, or since the last retry.
    pub is_trimmed: bool,
    /// In the last round, shrinkers had no entry that could go.
    pub is_barren: bool,
    /// The pass waits for a thread inside a shrinker that the last round passed over. Set after a
    /// round that brought nothing, and after the last possible one.
    pub awaits_other: bool,
    /// Milliseconds that the pass has waited in all.
    pub waits: u32,
    /// The pass has waited since the last retry.
    pub has_waited: bool,
    /// Number of repetitions of the last round.
    pub repeats: u32,
    /// Freeable entries in the last round so far. The round repeats only while they become fewer.
    pub min_freeable: usize,
    /// A shrinker was too slow, and rounds leave it out.
    pub has_left_out: bool,
    /// A retry has asked the slow shrinkers again.
    pub has_forgiven: bool,
}

impl Standing {
    /// The state of a pass that starts, with a sweep for `bytes`.
    pub const fn new(bytes: usize, terms: Terms) -> Standing {
        Standing {
            round: 0,
            sweep_bytes: bytes,
            is_purged: false,
            is_swept: false,
            scattered: terms.scattered,
            is_trimmed: false,
            is_barren: false,
            awaits_other: false,
            waits: 0,
            has_waited: false,
            repeats: 0,
            min_freeable: usize::MAX,
            has_left_out: false,
            has_forgiven: false,
        }
    }

    /// Whether the next round is at priority 0 or beyond.
    pub fn is_at_last_priority(&self) -> bool {
        self.round >= LIGHTEST
    }

    /// Whether the gentle steps have nothing more, or rounds have reached the last priority.
    pub fn has_done_gently(&self) -> bool {
        self.is_barren || self.is_at_last_priority()
    }

    /// Whether the sweep of free memory is finished.
    pub fn is_settled(&self) -> bool {
        self.is_purged && self.is_swept
    }

    pub fn note_purged(&mut self, given_bytes: usize) {
        self.sweep_bytes = self.sweep_bytes.saturating_sub(given_bytes);
        self.is_purged = true;
        self.is_swept |= self.sweep_bytes == 0;
    }

    /// Notes that shrinkers may have entries again.
    pub fn look_again(&mut self) {
        (self.is_barren, self.awaits_other) = (false, false);
    }

    /// Notes a round. If it freed entries, a sweep for `sweep_bytes` follows.
    pub fn note_round(&mut self, round: &Round, terms: Terms, sweep_bytes: usize) {
        self.has_left_out |= round.has_left_out;
        self.is_barren = round.freeable == 0;
        let is_last = self.round + 1 >= MAX_ROUNDS;
        self.awaits_other =
            (round.entries == 0 || is_last) && round.has_passed_over && terms.waits && self.waits < MAX_WAITS;
        // A slow shrinker frees a little in each round, so the last round repeats while it does.
        let is_repeated = is_last
            && terms.waits
            && (1..self.min_freeable).contains(&round.freeable)
            && round.entries > 0
            && self.repeats < MAX_REPEATS;
        self.repeats += u32::from(is_repeated);
        self.min_freeable = if is_last { round.freeable } else { usize::MAX };
        if round.entries > 0 {
            self.sweep_bytes = sweep_bytes;
            (self.is_purged, self.is_swept, self.is_trimmed) = (false, false, false);
        }
        // If the pass waits for a thread inside a shrinker, the same round follows again.
        if !self.awaits_other && !is_repeated && !self.is_barren {
            self.round += 1;
        }
    }

    /// Lets the pass take scattered pages from now on, and starts a sweep.
    pub fn note_scattered(&mut self, sweep_bytes: usize) {
        self.scattered = Scattered::Go;
        self.sweep_bytes = sweep_bytes;
        (self.is_purged, self.is_swept) = (false, false);
        self.look_again();
    }

    /// Notes that all free memory was released. `awaits_other` stays set: otherwise a shrinker that
    /// claims to free, and does not, would make the last round repeat for ever.
    pub fn note_trimmed(&mut self) {
        (self.is_trimmed, self.is_barren) = (true, false);
    }

    pub fn note_wait(&mut self) {
        self.waits += 1;
        self.has_waited = true;
        self.look_again();
    }

    /// Starts a retry. Memory that other threads freed may lie in their sheaves, so the pass takes
    /// all sheaves once more. A slow shrinker may just have been off its CPU, so rounds ask all
    /// shrinkers once more.
    pub fn note_retry(&mut self) {
        self.has_forgiven |= self.has_left_out;
        (self.has_left_out, self.has_waited, self.is_trimmed) = (false, false, false);
        self.round = LIGHTEST;
        self.look_again();
    }
}

/// The result of a round of entries.
#[derive(Clone, Copy, Default)]
pub struct Round {
    pub freeable: usize,
    pub entries: usize,
    pub has_passed_over: bool,
    pub has_left_out: bool,
}

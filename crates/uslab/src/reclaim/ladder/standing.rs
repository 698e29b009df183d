//! What happened so far in a pass, as a plain value: all that the next step depends on.

use super::goal::Terms;
use super::round::MAX_ROUNDS;
use crate::pages::Scattered;
use crate::reclaim::balance::LIGHTEST;

/// Milliseconds that an allocation waits for other threads inside shrinkers. A quarter of a second
/// is long for a callback, and short for a program that would fail instead.
pub const MAX_WAITS: u32 = 250;

/// Times that the last round is repeated for an allocation, at most: shrinkers that took all of
/// their 20 ms each time have held it up for seconds by then.
pub const MAX_REPEATS: u32 = 250;

/// What happened so far, as far as the next step depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Rounds of entries so far: priority 12 and down, then the urges beyond priority 0.
    pub round: u32,
    /// Bytes that the sweep under way is still to give.
    pub sweep_bytes: usize,
    /// The step for free pages has run since shrinkers last freed entries.
    pub is_purged: bool,
    /// So has the step for empty slabs, or free pages alone were enough.
    pub is_swept: bool,
    /// What becomes of pages that stand alone.
    pub scattered: Scattered,
    /// Everything free was given back since shrinkers last freed entries, or since the last retry.
    pub is_trimmed: bool,
    /// Shrinkers have no entry that could go, as of the last look.
    pub is_barren: bool,
    /// The pass waits for a thread inside a shrinker that the last round passed over. Set after a
    /// round that brought nothing, and after the last possible one.
    pub awaits_other: bool,
    /// Milliseconds waited in all.
    pub waits: u32,
    /// Some of them since the last retry.
    pub has_waited: bool,
    /// How often the last round was repeated.
    pub repeats: u32,
    /// Freeable entries in the last round so far: it is repeated only while they become fewer.
    pub min_freeable: usize,
    /// A shrinker was too slow and is not asked.
    pub has_left_out: bool,
    /// Slow shrinkers have had their second chance.
    pub has_forgiven: bool,
}

impl Standing {
    /// Of a pass that begins.
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

    /// Whether gentle steps have nothing more, or have been asked at every priority but the last.
    pub fn has_done_gently(&self) -> bool {
        self.is_barren || self.is_at_last_priority()
    }

    /// Whether all that came free has been given back, as far as it was wanted.
    pub fn is_settled(&self) -> bool {
        self.is_purged && self.is_swept
    }

    pub fn note_purged(&mut self, given_bytes: usize) {
        self.sweep_bytes = self.sweep_bytes.saturating_sub(given_bytes);
        self.is_purged = true;
        self.is_swept |= self.sweep_bytes == 0;
    }

    /// Shrinkers may have something again.
    pub fn look_again(&mut self) {
        (self.is_barren, self.awaits_other) = (false, false);
    }

    /// After a round; of what it brought `sweep_bytes` are to go to the system.
    pub fn note_round(&mut self, round: &Round, terms: Terms, sweep_bytes: usize) {
        self.has_left_out |= round.has_left_out;
        self.is_barren = round.freeable == 0;
        let is_last = self.round + 1 >= MAX_ROUNDS;
        self.awaits_other =
            (round.entries == 0 || is_last) && round.has_passed_over && terms.waits && self.waits < MAX_WAITS;
        // A slow shrinker gives a little in each round: the last one is repeated while it does.
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
        // While the pass waits for a thread inside a shrinker, the same round follows again.
        if !self.awaits_other && !is_repeated && !self.is_barren {
            self.round += 1;
        }
    }

    /// Pages that stand alone go from now on.
    pub fn note_scattered(&mut self, sweep_bytes: usize) {
        self.scattered = Scattered::Go;
        self.sweep_bytes = sweep_bytes;
        (self.is_purged, self.is_swept) = (false, false);
        self.look_again();
    }

    /// Everything free was given back. `awaits_other` stays set. Otherwise a shrinker that claims
    /// to free, and does not, would have the last round repeated for ever.
    pub fn note_trimmed(&mut self) {
        (self.is_trimmed, self.is_barren) = (true, false);
    }

    pub fn note_wait(&mut self) {
        self.waits += 1;
        self.has_waited = true;
        self.look_again();
    }

    /// What other threads let go may lie in their sheaves, and a slow one may have been kept from
    /// its CPU: all is taken once more, and all are asked.
    pub fn note_retry(&mut self) {
        self.has_forgiven |= self.has_left_out;
        (self.has_left_out, self.has_waited, self.is_trimmed) = (false, false, false);
        self.round = LIGHTEST;
        self.look_again();
    }
}

/// What a round of entries came to.
#[derive(Clone, Copy, Default)]
pub struct Round {
    pub freeable: usize,
    pub entries: usize,
    pub has_passed_over: bool,
    pub has_left_out: bool,
}

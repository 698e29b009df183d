//! Converts ticks to nanoseconds and core cycles, and detects whether the machine disturbed a
//! round.
//!
//! The time stamp counter runs at a constant rate that is neither nanoseconds nor core cycles. Both
//! factors are measured at start: nanoseconds against the monotonic clock, core cycles against a
//! chain of dependent additions, one a cycle. The same short chain runs before and after every
//! round. If it takes longer than on the quiet machine, the core's clock changed or another task
//! ran here, and the round is repeated. If it stays longer, the reference follows it.
//!
//! Must never: assume that the counter's rate is the core's (it is not, with boost), or judge a
//! round by its own duration.

use std::time::{Duration, Instant};

use crate::asm::{ADDS_PER_TURN, dependent_adds, ticks};

/// Turns of the chain beside a round: 16 000 cycles, about 4 µs.
const BESIDE_TURNS: u64 = 1_000;

/// Upper bound on the chain beside a round, as a multiple of the reference.
const TOLERANCE: f64 = 1.04;

/// After this many disturbed rounds in a row, the machine counts as changed.
const PATIENCE: u32 = 12;

/// The factors and the state of the watch on the machine.
#[derive(Clone, Debug)]
pub struct Clock {
    pub ns_per_tick: f64,
    /// The ticks of the chain beside a round on the quiet machine.
    reference_ticks: f64,
    disturbed_on_end: u32,
}

impl Clock {
    /// Measures both factors; takes about 100 ms.
    pub fn calibrate() -> Self {
        let ns_per_tick = measure_ns_per_tick(Duration::from_millis(40));
        let reference_ticks = (0..2_000).map(|_| chain_beside()).fold(f64::INFINITY, f64::min);
        Self { ns_per_tick, reference_ticks, disturbed_on_end: 0 }
    }

    /// Core cycles in a tick, at the core's present speed.
    pub fn cycles_per_tick(&self) -> f64 {
        (BESIDE_TURNS * ADDS_PER_TURN) as f64 / self.reference_ticks
    }

    /// The core's present speed.
    pub fn core_hz(&self) -> f64 {
        self.cycles_per_tick() * self.tick_hz()
    }

    pub fn tick_hz(&self) -> f64 {
        1e9 / self.ns_per_tick
    }

    /// Runs `round` with the chain before and after it. `None`: the machine disturbed it, do it
    /// again.
    pub fn watch<R>(&mut self, round: impl FnOnce() -> R) -> Option<R> {
        let before = chain_beside();
        let result = round();
        let after = chain_beside();
        self.accept(before, after).then_some(result)
    }

    fn accept(&mut self, before: f64, after: f64) -> bool {
        self.reference_ticks = self.reference_ticks.min(before).min(after);
        if before.max(after) <= self.reference_ticks * TOLERANCE {
            self.disturbed_on_end = 0;
            return true;
        }
        self.disturbed_on_end += 1;
        if self.disturbed_on_end < PATIENCE {
            return false;
        }
        self.disturbed_on_end = 0;
        self.reference_ticks = before.min(after);
        true
    }
}

fn chain_beside() -> f64 {
    let start = ticks();
    dependent_adds(BESIDE_TURNS);
    (ticks() - start) as f64
}

/// Reads both clocks at each end of `window`. Each end takes the quickest of several readings, to
/// exclude interruptions between the two clocks.
fn measure_ns_per_tick(window: Duration) -> f64 {
    let both = || {
        (0..32)
            .map(|_| {
                let before = ticks();
                let now = Instant::now();
                (ticks() - before, before, now)
            })
            .min_by_key(|&(took, _, _)| took)
            .expect("32 readings were taken")
    };
    let (_, start_ticks, start) = both();
    while start.elapsed() < window {
        std::hint::spin_loop();
    }
    let (_, end_ticks, end) = both();
    end.duration_since(start).as_nanos() as f64 / (end_ticks - start_ticks) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> Clock {
        Clock { ns_per_tick: 0.5, reference_ticks: 100.0, disturbed_on_end: 0 }
    }

    #[test]
    fn a_quiet_round_counts_and_a_disturbed_one_does_not() {
        let mut clock = clock();
        assert!(clock.accept(100.0, 102.0));
        assert!(!clock.accept(100.0, 120.0));
        assert!(!clock.accept(120.0, 100.0));
    }

    #[test]
    fn a_machine_that_stays_slower_becomes_the_reference() {
        let mut clock = clock();
        let accepted = (0..PATIENCE).filter(|_| clock.accept(130.0, 131.0)).count();
        assert_eq!(accepted, 1);
        assert_eq!(clock.reference_ticks, 130.0);
        assert!(clock.accept(131.0, 130.0));
    }

    #[test]
    fn cycles_follow_the_reference() {
        let mut clock = clock();
        clock.reference_ticks = (BESIDE_TURNS * ADDS_PER_TURN) as f64 / 2.0;
        assert_eq!(clock.cycles_per_tick(), 2.0);
        assert_eq!(clock.tick_hz(), 2e9);
        assert_eq!(clock.core_hz(), 4e9);
    }
}

//! Rounds of all contestants of a row, one after the other, again and again: the measurement itself.
//!
//! ```text
//!   round 1:  A B C D      how often a lane repeats its work is set once, so that a round takes about `round_ns`;
//!   round 2:  B C D A      who goes first changes every round, so that nobody always follows the same neighbour;
//!   round 3:  C D A B      a round that the machine disturbed is done again at once (clock.rs).
//! ```
//!
//! Interleaving is what makes ratios hold on a machine that is not quiet: whatever changes, changes for all
//! within a millisecond.
//!
//! Must never: reorder, drop or repeat rounds by what they measured.

use crate::clock::Clock;
use crate::results::{Figure, Role};
use crate::rounds::Work;
use crate::stats::summarise;
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    pub round_ns: f64,
}

/// A contestant in a row.
pub struct Lane {
    pub name: String,
    pub role: Role,
    pub work: Box<dyn Work>,
}

/// A lane made ready, and what it has measured so far: (ns, cycles) an object.
struct Running<'a> {
    lane: &'a Lane,
    run: Box<dyn FnMut(usize) -> u64>,
    repeats: usize,
    samples: Vec<(f64, f64)>,
    redone: usize,
}

/// A row that takes longer (on a quiet machine none comes near) ends with the rounds it has, if they are this
/// many.
const ROW_MOST: Duration = Duration::from_secs(10);
const ENOUGH_ROUNDS: usize = 20;

/// Tries at an undisturbed round; the clock's patience ends before.
const TRIES: usize = 64;

/// Measures all lanes; `None` if `stop` said so before the row was done.
pub fn measure(
    lanes: &[Lane],
    plan: Plan,
    clock: &mut Clock,
    stop: impl Fn() -> bool,
) -> Option<Vec<Figure>> {
    let mut running: Vec<Running> = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let mut run = lane.work.prepare();
        let filling = repeats_for(&mut run, plan.round_ns, clock.ns_per_tick);
        let repeats = lane.work.fixed_repeats().filter(|_| plan.round_ns > 0.0).unwrap_or(filling);
        running.push(Running { lane, run, repeats, samples: Vec::with_capacity(plan.rounds), redone: 0 });
    }
    let started = Instant::now();
    for round in 0..plan.rounds {
        if round >= ENOUGH_ROUNDS && started.elapsed() > ROW_MOST {
            break;
        }
        for turn in 0..running.len() {
            if stop() {
                return None;
            }
            let at = (round + turn) % running.len();
            running[at].one_round(clock);
        }
    }
    Some(running.iter().map(Running::figure).collect())
}

impl Running<'_> {
    fn one_round(&mut self, clock: &mut Clock) {
        let objects = (self.repeats * self.lane.work.objects_per_repeat()) as f64;
        for _ in 0..TRIES {
            if let Some(ticks) = clock.watch(|| (self.run)(self.repeats)) {
                let each = ticks as f64 / objects;
                self.samples.push((each * clock.ns_per_tick, each * clock.cycles_per_tick()));
                return;
            }
            self.redone += 1;
        }
    }

    fn figure(&self) -> Figure {
        let column = |pick: fn(&(f64, f64)) -> f64| {
            let values: Vec<f64> = self.samples.iter().map(pick).collect();
            summarise(&values).expect("at least one round was run").into()
        };
        Figure {
            contestant: self.lane.name.clone(),
            role: self.lane.role,
            ns: column(|sample| sample.0),
            cycles: column(|sample| sample.1),
            ratio: None,
            ratio_of_medians: None,
            ratio_above_floor: None,
            rounds: self.samples.len(),
            redone: self.redone,
        }
    }
}

/// How many repetitions take `round_ns`. Doubling until one run takes a quarter of it is the warm-up as well.
fn repeats_for(run: &mut dyn FnMut(usize) -> u64, round_ns: f64, ns_per_tick: f64) -> usize {
    let mut repeats = 1;
    loop {
        let took_ns = (run(repeats) as f64 * ns_per_tick).max(1.0);
        if took_ns * 4.0 >= round_ns {
            // The first run of a size pays for fresh memory, and any may be interrupted: the best of three
            // more counts.
            let ticks = (0..3).map(|_| run(repeats)).min().unwrap_or(1);
            let took_ns = (ticks as f64 * ns_per_tick).max(1.0);
            return ((repeats as f64 * round_ns / took_ns) as usize).clamp(1, 4 * repeats);
        }
        repeats *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Work that notes who ran.
    struct Noted(&'static str, Rc<RefCell<Vec<&'static str>>>);

    impl Work for Noted {
        fn objects_per_repeat(&self) -> usize {
            10
        }

        fn prepare(&self) -> Box<dyn FnMut(usize) -> u64> {
            let (name, log) = (self.0, Rc::clone(&self.1));
            Box::new(move |repeats| {
                log.borrow_mut().push(name);
                1_000 * repeats as u64
            })
        }
    }

    #[test]
    fn rounds_interleave_and_the_first_changes() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let lane = |name| Lane {
            name: String::from(name),
            role: Role::Peer,
            work: Box::new(Noted(name, Rc::clone(&log))),
        };
        let lanes = [lane("a"), lane("b"), lane("c")];
        let mut clock = Clock::calibrate();
        let plan = Plan { rounds: 3, round_ns: 0.0 };
        let figures = measure(&lanes, plan, &mut clock, || false).unwrap();
        assert_eq!(figures.len(), 3);
        assert!(figures.iter().all(|figure| figure.rounds == 3 && figure.ns.min > 0.0));
        let mut log = log.borrow().clone();
        // Without the sizing runs, four each, and without rounds done again, which stand beside their first
        // try.
        log.drain(..12);
        log.dedup();
        assert_eq!(log, ["a", "b", "c", "b", "c", "a", "c", "a", "b"]);
    }

    #[test]
    fn a_stopped_row_is_no_row() {
        let mut clock = Clock::calibrate();
        let lane = Lane { name: "a".into(), role: Role::Peer, work: Box::new(Noted("a", Rc::default())) };
        assert!(measure(&[lane], Plan { rounds: 3, round_ns: 0.0 }, &mut clock, || true).is_none());
    }

    #[test]
    fn repetitions_fill_the_round() {
        let mut run = |repeats: usize| 100 * repeats as u64;
        let repeats = repeats_for(&mut run, 100_000.0, 0.5);
        assert_eq!(repeats, 2000);
        assert_eq!(repeats_for(&mut run, 0.0, 0.5), 1);
    }
}

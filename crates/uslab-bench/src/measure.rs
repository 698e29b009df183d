//! The measurement: rounds of all contestants of a row, in turn, many times.
//!
//! ```text
//!   round 1:  A B D C      how often a lane repeats its work is set once, for about `round_ns`;
//!   round 2:  B C A D      no lane always follows the same other one (turns.rs);
//!   round 3:  C D B A      a round that the machine disturbed is done again at once (clock.rs).
//! ```
//!
//! Interleaving makes ratios hold on a busy machine: a change of the machine affects all
//! contestants within a millisecond.
//!
//! Work that does not fit a round (threads that come and go, a process of its own, a program) is a
//! *run*. The lane's work is called a few times, in turn with the other lanes, and returns its own
//! figure. Runs are not repeated when the machine disturbs them.
//!
//! Must never: reorder, drop or repeat rounds by what they measured.

use crate::clock::Clock;
use crate::results::{Figure, Role, Skipped};
use crate::stats::summarise;
use crate::turns;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The number and length of rounds.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    pub round_ns: f64,
}

/// Work that is prepared once and repeated as often as fits a round.
pub trait Work {
    /// Objects that one repetition allocates and frees: the divisor of the time.
    fn objects_per_repeat(&self) -> usize;

    /// The repetitions of a round, where all contestants must have the same number. `None`: as many
    /// as fill the round's time.
    fn fixed_repeats(&self) -> Option<usize> {
        None
    }

    /// Upper bound on the rounds, where each is long. The least bound of all lanes counts.
    fn max_rounds(&self) -> usize {
        usize::MAX
    }

    /// The parts of the last round's ticks, by name ("alloc", "free"). Those of the least round are
    /// reported.
    fn parts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Prepares everything that must not be timed. The result runs a number of repetitions and
    /// returns their ticks.
    fn prepare(&self) -> Box<dyn FnMut(usize) -> u64>;
}

/// A contestant in a row. Its work is [`Work`], timed round by round, or an [`Errand`].
pub struct Lane<W = Box<dyn Work>> {
    pub name: String,
    pub role: Role,
    pub work: W,
}

/// One run, which returns its own figure. An error is one line, and removes the contestant from the
/// row.
pub type Errand = Box<dyn FnMut() -> Result<Sample, String>>;

impl Lane {
    pub fn of_rounds(name: impl Into<String>, role: Role, work: impl Work + 'static) -> Self {
        Lane { name: name.into(), role, work: Box::new(work) }
    }
}

impl Lane<Errand> {
    pub fn of_runs(
        name: impl Into<String>,
        role: Role,
        run: impl FnMut() -> Result<Sample, String> + 'static,
    ) -> Self {
        Lane { name: name.into(), role, work: Box::new(run) }
    }
}

/// The result of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// In the row's unit.
    pub value: f64,
    pub extra: BTreeMap<String, f64>,
    pub series: BTreeMap<String, Vec<[f64; 2]>>,
}

impl Sample {
    pub fn of(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

/// How a row is measured.
pub enum Method {
    /// Short rounds on this thread's clock.
    Rounds(Vec<Lane>),
    /// A number of runs of each lane. Extras and series are those of the run with the least value;
    /// the series `value_by_run` has all runs.
    Runs(usize, Vec<Lane<Errand>>),
}

impl Method {
    /// Names and roles of the lanes.
    pub fn lanes(&self) -> Vec<(&str, Role)> {
        match self {
            Method::Rounds(lanes) => lanes.iter().map(|lane| (lane.name.as_str(), lane.role)).collect(),
            Method::Runs(_, lanes) => lanes.iter().map(|lane| (lane.name.as_str(), lane.role)).collect(),
        }
    }
}

/// Measures a row; `None` if `stop` returned true before the end.
pub fn measure(
    method: Method,
    plan: Plan,
    clock: &mut Clock,
    stop: impl Fn() -> bool,
) -> Option<(Vec<Figure>, Vec<Skipped>)> {
    match method {
        Method::Rounds(lanes) => rounds(&lanes, plan, clock, stop).map(|figures| (figures, Vec::new())),
        Method::Runs(times, lanes) => runs(times, lanes, stop),
    }
}

/// Runs of all lanes, in turn.
fn runs(
    times: usize,
    mut lanes: Vec<Lane<Errand>>,
    stop: impl Fn() -> bool,
) -> Option<(Vec<Figure>, Vec<Skipped>)> {
    let mut samples: Vec<Result<Vec<Sample>, String>> = lanes.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..times {
        for turn in 0..lanes.len() {
            if stop() {
                return None;
            }
            let at = turns::contestant(round, turn, lanes.len());
            if let Ok(taken) = &mut samples[at] {
                match (lanes[at].work)() {
                    Ok(sample) => taken.push(sample),
                    Err(why) => samples[at] = Err(why),
                }
            }
        }
    }
    if stop() {
        return None;
    }
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for (lane, samples) in lanes.into_iter().zip(samples) {
        match samples {
            Ok(samples) => figures.extend(figure_of_runs(lane, samples)),
            Err(why) => skipped.push(Skipped { contestant: lane.name, why }),
        }
    }
    Some((figures, skipped))
}

fn figure_of_runs(lane: Lane<Errand>, samples: Vec<Sample>) -> Option<Figure> {
    let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
    let value = summarise(&values)?;
    let mut best = samples.into_iter().min_by(|a, b| a.value.total_cmp(&b.value))?;
    let by_run = values.iter().enumerate().map(|(run, &value)| [run as f64, value]).collect();
    best.series.insert("value_by_run".into(), by_run);
    Some(Figure {
        contestant: lane.name,
        role: lane.role,
        value,
        extra: best.extra,
        series: best.series,
        rounds: values.len(),
        ..Figure::default()
    })
}

/// A prepared lane, and its samples so far: (ns, cycles) an object.
struct Running<'a> {
    lane: &'a Lane,
    run: Box<dyn FnMut(usize) -> u64>,
    repeats: usize,
    samples: Vec<(f64, f64)>,
    /// The parts of the least round, in ns an object.
    parts: BTreeMap<String, f64>,
    redone: usize,
}

/// A row that takes longer ends, once it has this many rounds. On a quiet machine none takes as
/// long.
const MAX_ROW_TIME: Duration = Duration::from_secs(10);
const MIN_ROUNDS: usize = 20;

/// Upper bound on repeats of a disturbed round; the clock's patience ends earlier.
const MAX_TRIES: usize = 64;

/// Rounds of all lanes, in turn.
fn rounds(lanes: &[Lane], plan: Plan, clock: &mut Clock, stop: impl Fn() -> bool) -> Option<Vec<Figure>> {
    let mut running: Vec<Running> = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let mut run = lane.work.prepare();
        let repeats = match lane.work.fixed_repeats().filter(|_| plan.round_ns > 0.0) {
            Some(repeats) => {
                run(repeats);
                repeats
            }
            None => repeats_for(&mut run, plan.round_ns, clock.ns_per_tick),
        };
        let samples = Vec::with_capacity(plan.rounds);
        running.push(Running { lane, run, repeats, samples, parts: BTreeMap::new(), redone: 0 });
    }
    let most = lanes.iter().map(|lane| lane.work.max_rounds()).min().unwrap_or(0);
    let started = Instant::now();
    for round in 0..plan.rounds.min(most) {
        if round >= MIN_ROUNDS && started.elapsed() > MAX_ROW_TIME {
            break;
        }
        for turn in 0..running.len() {
            if stop() {
                return None;
            }
            let at = turns::contestant(round, turn, running.len());
            running[at].one_round(clock);
        }
    }
    Some(running.iter().map(Running::figure).collect())
}

impl Running<'_> {
    fn one_round(&mut self, clock: &mut Clock) {
        let objects = (self.repeats * self.lane.work.objects_per_repeat()) as f64;
        for _ in 0..MAX_TRIES {
            if let Some(ticks) = clock.watch(|| (self.run)(self.repeats)) {
                let each = ticks as f64 / objects;
                let ns = each * clock.ns_per_tick;
                if self.samples.iter().all(|sample| ns < sample.0) {
                    let part =
                        |(name, ticks)| (format!("{name}_ns"), ticks as f64 / objects * clock.ns_per_tick);
                    self.parts = self.lane.work.parts().into_iter().map(part).collect();
                }
                self.samples.push((ns, each * clock.cycles_per_tick()));
                return;
            }
            self.redone += 1;
        }
    }

    fn figure(&self) -> Figure {
        let column = |pick: fn(&(f64, f64)) -> f64| {
            let values: Vec<f64> = self.samples.iter().map(pick).collect();
            summarise(&values).expect("at least one round was run")
        };
        Figure {
            contestant: self.lane.name.clone(),
            role: self.lane.role,
            value: column(|sample| sample.0),
            cycles: Some(column(|sample| sample.1)),
            extra: self.parts.clone(),
            rounds: self.samples.len(),
            redone: self.redone,
            ..Figure::default()
        }
    }
}

/// The number of repetitions that takes `round_ns`. It doubles until a run takes a quarter of that,
/// which is the warm-up as well.
pub fn repeats_for(run: &mut dyn FnMut(usize) -> u64, round_ns: f64, ns_per_tick: f64) -> usize {
    let mut repeats = 1;
    loop {
        let took_ns = (run(repeats) as f64 * ns_per_tick).max(1.0);
        if took_ns * 4.0 >= round_ns {
            // The first run of a size pays for fresh memory, and any may be interrupted: the best
            // of three more counts.
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

    /// Work that records the order of lanes.
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
    fn rounds_interleave_and_the_order_changes() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let lane = |name| Lane::of_rounds(name, Role::Peer, Noted(name, Rc::clone(&log)));
        let lanes = [lane("a"), lane("b"), lane("c")];
        let mut clock = Clock::calibrate();
        let plan = Plan { rounds: 3, round_ns: 0.0 };
        let figures = rounds(&lanes, plan, &mut clock, || false).unwrap();
        assert_eq!(figures.len(), 3);
        assert!(figures.iter().all(|figure| figure.rounds == 3 && figure.value.min > 0.0));
        let mut log = log.borrow().clone();
        // Without the sizing runs, four each, and without rounds done again, which stand beside
        // their first try.
        log.drain(..12);
        log.dedup();
        assert_eq!(log, ["a", "b", "c", "b", "c", "a", "c", "a", "b"]);
    }

    #[test]
    fn a_stopped_row_is_no_row() {
        let mut clock = Clock::calibrate();
        let lane = Lane::of_rounds("a", Role::Peer, Noted("a", Rc::default()));
        assert!(rounds(&[lane], Plan { rounds: 3, round_ns: 0.0 }, &mut clock, || true).is_none());
    }

    #[test]
    fn runs_take_turns_and_who_cannot_is_left_out_with_the_reason() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let lane = |name: &'static str| {
            let log = Rc::clone(&log);
            let run = move || {
                log.borrow_mut().push(name);
                let n = log.borrow().len() as f64;
                if name == "c" { Err("not installed".into()) } else { Ok(Sample::of(n)) }
            };
            Lane::of_runs(name, Role::Peer, run)
        };
        let lanes = vec![lane("a"), lane("b"), lane("c")];
        let (figures, skipped) = runs(2, lanes, || false).unwrap();
        assert_eq!(log.borrow().as_slice(), ["a", "b", "c", "b", "a"]);
        assert_eq!(figures.iter().map(|f| (f.value.min, f.rounds)).collect::<Vec<_>>(), [(1.0, 2), (2.0, 2)]);
        assert_eq!(skipped, [Skipped { contestant: "c".into(), why: "not installed".into() }]);
    }

    #[test]
    fn repetitions_fill_the_round() {
        let mut run = |repeats: usize| 100 * repeats as u64;
        let repeats = repeats_for(&mut run, 100_000.0, 0.5);
        assert_eq!(repeats, 2000);
        assert_eq!(repeats_for(&mut run, 0.0, 0.5), 1);
    }
}

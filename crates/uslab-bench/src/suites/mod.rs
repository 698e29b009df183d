//! The suites: each has its rows, the form of its tables, and lines below them.
//!
//! A new suite is a [`Suite`] in a file and a line in [`SUITES`]. Rows are plans: contestants,
//! their work, and a target. Must never: run anything while planning, so that listing and filtering
//! cost nothing.

pub mod batch10000;
pub mod bulk;
pub mod churn4k;
pub mod classics;
pub mod fork;
pub mod heaps;
pub mod latency;
pub mod linked;
pub mod locality;
pub mod medium;
pub mod order;
pub mod pair;
pub mod programs;
pub mod published;
pub mod remote;
pub mod rss;
pub mod settings;
mod shared;
pub mod threads;

use crate::cpu::Cpus;
use crate::lineup::{MALLOC, peers};
use crate::measure::{Lane, Method, Sample, Work};
use crate::results::{Role, Row, Run, RunOptions, Verdict};
use crate::rounds::crew::{Crew, CrewWork, Job};
use crate::rounds::{Entry, LocalRound, LocalWork};
use std::sync::Arc;

pub struct Suite {
    pub name: &'static str,
    /// One line for the help.
    pub summary: &'static str,
    pub rows: fn(&Context) -> Vec<RowPlan>,
    pub tables: Tables,
    /// Lines below the tables.
    pub notes: fn(&Run) -> Vec<String>,
}

impl Suite {
    /// A suite of tables with a column a contestant, and nothing below them.
    const fn new(name: &'static str, summary: &'static str, rows: fn(&Context) -> Vec<RowPlan>) -> Self {
        Self { name, summary, rows, tables: Tables::Columns, notes: |_| Vec::new() }
    }
}

/// The form of a suite's tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// A column a contestant.
    Columns,
    /// A line a contestant, with all that was measured beside the figure.
    Lines,
}

pub const SUITES: &[&Suite] = &[
    &pair::PAIR,
    &medium::MEDIUM,
    &bulk::BULK,
    &batch10000::BATCH_10000,
    &churn4k::CHURN_4K,
    &order::ORDER,
    &programs::PROGRAMS,
    &settings::HARDENING,
    &settings::PROFILE,
    &locality::LOCALITY,
    &fork::FORK,
    &heaps::HEAPS,
    &linked::CAPI,
    &linked::CONTAINERS,
    &remote::REMOTE,
    &threads::THREADS,
    &classics::LARSON,
    &classics::XMALLOC,
    &latency::LATENCY,
    &rss::RSS,
];

/// The suite of that name.
pub fn find(name: &str) -> Option<&'static Suite> {
    SUITES.iter().copied().find(|suite| suite.name == name)
}

/// The facts that planning a suite needs.
pub struct Context {
    pub options: RunOptions,
    pub cpus: Cpus,
    /// The threads of rows with more than one; the first round that needs one starts it.
    crew: Arc<Crew>,
}

impl Context {
    pub fn new(options: RunOptions, cpus: Cpus) -> Self {
        Self { options, cpus, crew: Arc::new(Crew::new(cpus)) }
    }

    /// One of three values: for `--check`, for `--quick`, for a full run.
    fn pick<T>(&self, check: T, quick: T, full: T) -> T {
        self.options.scale().pick(check, quick, full)
    }

    fn local(&self, live: usize, round: LocalRound) -> impl Fn(Entry) -> LocalWork + use<> {
        let round = LocalRound { touch: self.options.touch, order: self.options.order, ..round };
        move |entry| LocalWork { entry, live, round: round.clone() }
    }

    /// Rounds of the crew: `operations` in all threads for a repetition, and what the threads do in
    /// a round of so many repetitions.
    fn crew_lane(
        &self,
        name: impl Into<String>,
        role: Role,
        (threads, operations, repeats): (usize, usize, usize),
        job: impl Fn(usize) -> Job + 'static,
    ) -> Lane {
        let work = CrewWork {
            crew: Arc::clone(&self.crew),
            threads,
            objects_per_repeat: operations,
            repeats,
            has_caller: false,
            job: Arc::new(job),
        };
        Lane::of_rounds(name, role, work)
    }

    /// Runs of uslab's malloc and the peers, each of which makes `operations` and returns the
    /// nanoseconds they took.
    fn runs(&self, operations: usize, run: impl Fn(Entry) -> Box<dyn FnMut() -> f64>) -> Method {
        let lanes = everyone(MALLOC).map(|(entry, role)| {
            let mut run = run(entry);
            Lane::of_runs(entry.name, role, move || Ok(Sample::of(run() / operations as f64)))
        });
        Method::Runs(self.pick(1, 3, 7), lanes.collect())
    }

    /// As many threads as CPUs, and four times as many; two at least.
    fn thread_counts(&self) -> [usize; 2] {
        let cpus = self.cpus.allowed;
        [cpus.max(2), (4 * cpus).max(4)]
    }

    /// A target for two CPUs and more: on one the threads take turns, and the scheduler would be
    /// judged.
    fn if_parallel(&self, target: f64) -> Option<f64> {
        self.cpus.second.map(|_| target)
    }
}

/// A row before it is measured.
pub struct RowPlan {
    pub row: Row,
    pub method: Method,
}

impl Row {
    fn by(self, method: Method) -> RowPlan {
        RowPlan { row: self, method }
    }

    fn by_rounds(self, lanes: impl IntoIterator<Item = Lane>) -> RowPlan {
        self.by(Method::Rounds(lanes.into_iter().collect()))
    }
}

/// The way of using uslab that is judged, and the peers.
fn everyone(subject: Entry) -> impl Iterator<Item = (Entry, Role)> {
    let peers = peers().iter().map(|&peer| (peer, Role::Peer));
    std::iter::once((subject, Role::Subject)).chain(peers)
}

/// A lane for the judged way of using uslab, and one for every peer.
fn lanes<W: Work + 'static>(subject: Entry, work: impl Fn(Entry) -> W) -> Vec<Lane> {
    everyone(subject).map(|(entry, role)| Lane::of_rounds(entry.name, role, work(entry))).collect()
}

/// The judged figure of the row of that id.
fn cost(run: &Run, is: impl Fn(&Row) -> bool) -> Option<f64> {
    Some(run.rows.iter().find(|row| is(row))?.figure(Role::Subject)?.value.min)
}

/// "pass" or "MISS" for a requirement on several rows; empty where no row was judged.
fn mark(run: &Run, held: bool) -> &'static str {
    let judged = run.rows.iter().any(|row| row.verdict != Verdict::None);
    match (judged, held) {
        (false, _) => "",
        (true, true) => "pass",
        (true, false) => "MISS",
    }
}

/// A line that compares `cost` over `base` with its upper bound; `None` if the run lacks one of
/// them.
fn shape(run: &Run, what: &str, cost: Option<f64>, base: Option<f64>, most: f64) -> Option<String> {
    let (cost, base) = (cost?, base?);
    let (ratio, mark) = (cost / base, mark(run, cost / base <= most));
    Some(format!("{what}: {cost:.2} / {base:.2} ns = {ratio:.3} (at most {most:.2})  {mark}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn rows_have_one_subject_all_peers_and_a_name_of_their_own() {
        let options = RunOptions { rounds: 1, object_size_bytes: 256, check: true, ..RunOptions::default() };
        let context = Context::new(options, Cpus { first: 0, second: None, allowed: 1 });
        for suite in SUITES {
            let mut ids = HashSet::new();
            for RowPlan { row, method } in (suite.rows)(&context) {
                let lanes = method.lanes();
                let count = |role| lanes.iter().filter(|lane| lane.1 == role).count();
                assert_eq!(count(Role::Subject), 1, "{}", row.id);
                if matches!(method, Method::Rounds(_)) {
                    assert_eq!(count(Role::Peer), peers().len(), "{}", row.id);
                }
                let names: HashSet<_> = lanes.iter().map(|lane| lane.0).collect();
                assert_eq!(names.len(), lanes.len(), "{}: a name twice", row.id);
                assert!(ids.insert(row.id.clone()), "{} twice", row.id);
            }
            assert!(!ids.is_empty());
        }
    }

    #[test]
    fn suites_are_found_by_name() {
        assert_eq!(find("pair").map(|suite| suite.name), Some("pair"));
        assert!(find("pears").is_none());
    }

    #[test]
    fn a_shape_is_told_but_not_judged_where_no_row_is() {
        let run = Run { suite: "s".into(), mode: "locked".into(), complete: true, rows: Vec::new() };
        let text = shape(&run, "large to small", Some(3.0), Some(2.0), 1.3).unwrap();
        assert_eq!(text, "large to small: 3.00 / 2.00 ns = 1.500 (at most 1.30)  ");
        assert!(shape(&run, "none", None, Some(2.0), 1.3).is_none());
    }
}

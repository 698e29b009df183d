//! The results: one schema for all suites, in `--json` and between the two processes of
//! `--both-modes`.
//!
//! `schema` is raised whenever a reader of an older one would misunderstand; new fields do not
//! raise it. A row has one unit, and in every unit less is better: a throughput is given as the
//! time of one operation. Must never: hold a figure without its unit in its name or its place.

use crate::machine::{Build, Machine};
use crate::stats::Cost;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The present form of [`Report`].
pub const SCHEMA: u32 = 2;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// "uslab-bench".
    pub tool: String,
    pub schema: u32,
    pub started_unix_s: u64,
    pub machine: Machine,
    pub build: Build,
    pub options: RunOptions,
    pub contestants: Vec<About>,
    /// Contestants that this machine lacks, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Skipped>,
    pub runs: Vec<Run>,
}

/// The options that change the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunOptions {
    pub rounds: usize,
    /// Runs of each contestant, where a row is of runs and they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<usize>,
    pub round_us: u64,
    pub object_size_bytes: usize,
    pub touch: bool,
    pub order: Order,
    /// Run for function only: the figures mean nothing.
    pub check: bool,
}

impl RunOptions {
    pub fn scale(&self) -> Scale {
        match (self.check, self.rounds <= QUICK_ROUNDS) {
            (true, _) => Scale::Check,
            (_, true) => Scale::Quick,
            _ => Scale::Full,
        }
    }
}

/// The most rounds that a first look has.
pub const QUICK_ROUNDS: usize = 60;

/// The amount of a suite's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// For function only: the least work.
    Check,
    /// A first look.
    Quick,
    Full,
}

impl Scale {
    /// The value of three for this scale.
    pub fn pick<T>(self, check: T, quick: T, full: T) -> T {
        match self {
            Scale::Check => check,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }
}

/// The order in which a live set is freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As it was allocated.
    #[default]
    Fifo,
    /// The youngest first.
    Lifo,
    /// Shuffled, once for the row and the same for every contestant.
    Random,
}

/// The description of a contestant in the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub name: String,
    pub version: String,
    /// How it was built and is called.
    pub build: String,
    /// The reason to doubt its figures; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub warning: String,
}

impl About {
    pub fn new(name: &str, version: impl Into<String>, build: impl Into<String>) -> Self {
        let (name, warning) = (name.into(), String::new());
        Self { name, version: version.into(), build: build.into(), warning }
    }
}

/// One suite in one mode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub suite: String,
    /// "rseq" or "locked": how uslab ran.
    pub mode: String,
    /// Whether every row is there; not after Ctrl-C.
    pub complete: bool,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// Unique in its suite, and the same from run to run.
    pub id: String,
    /// The table it stands in.
    pub group: String,
    pub title: String,
    pub size_bytes: usize,
    /// Objects live at once; of a bulk row, N.
    pub live: usize,
    pub threads: usize,
    /// Of every figure's value.
    pub unit: Unit,
    /// Upper bound on the subject's ratio to the best peer.
    pub target: Option<f64>,
    pub verdict: Verdict,
    pub best_peer: Option<String>,
    pub figures: Vec<Figure>,
    /// Published figures for the same row, in cycles.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub published_cycles: BTreeMap<String, f64>,
    /// Contestants that could not take part, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
}

/// A contestant that could not take part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    pub contestant: String,
    /// One line.
    pub why: String,
}

/// The unit of a row's values. Less is better in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds for one object or operation.
    #[default]
    Ns,
    Seconds,
    Bytes,
    /// Of events or things.
    Count,
}

impl Row {
    /// A row of one thread and one live object, in nanoseconds, without a target; callers set the
    /// fields that differ.
    pub fn new(id: impl Into<String>, group: impl Into<String>, title: impl Into<String>) -> Self {
        let (id, group, title) = (id.into(), group.into(), title.into());
        Self { id, group, title, live: 1, threads: 1, ..Self::default() }
    }

    pub fn figure(&self, role: Role) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.role == role)
    }

    pub fn named(&self, contestant: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.contestant == contestant)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Pass,
    Miss,
    /// No target, a mode that is not judged, or a run for function only.
    #[default]
    None,
}

/// The role of a contestant in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The way of using uslab that the row judges.
    Subject,
    /// Another way of using uslab, for information.
    Ours,
    #[default]
    Peer,
    /// An allocator that serves one thread or one size alone. It is compared apart, and is never
    /// the best peer.
    Rival,
    /// The round without any allocator. [`Figure::ratio_above_floor`] subtracts it from both sides.
    Floor,
    /// A known mechanism that is no allocator: for the reader alone.
    Reference,
}

/// The figures of a contestant in a row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figure {
    pub contestant: String,
    pub role: Role,
    /// In the row's unit.
    pub value: Cost,
    /// The same in core cycles, where the value is a time that was measured on one pinned thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<Cost>,
    /// Further measurements, each with its unit at the end of its name: "peak_bytes", "p99_ns".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, f64>,
    /// Courses: points (x, y) by a name that holds both units: "resident_bytes_by_s".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<[f64; 2]>>,
    /// Minimum over the best peer's minimum.
    pub ratio: Option<f64>,
    /// Median over the median of that same peer.
    pub ratio_of_medians: Option<f64>,
    /// The ratio with the floor taken off both sides, where the row has a floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_above_floor: Option<f64>,
    pub rounds: usize,
    /// Rounds that the machine disturbed and that were done again.
    pub redone: usize,
}

/// An extra of one of these names is an upper bound on its figure's value, independent of peers.
/// The subject is judged by it where the row has no target.
pub const LIMIT_BYTES: &str = "limit_bytes";
pub const LIMIT_NS: &str = "limit_ns";

impl Figure {
    /// The bound of [`LIMIT_BYTES`] or [`LIMIT_NS`].
    pub fn limit(&self) -> Option<f64> {
        [LIMIT_BYTES, LIMIT_NS].into_iter().find_map(|name| self.extra.get(name).copied())
    }
}

/// Fills in the best peer, each figure's ratio to it, and the verdict on the subject.
pub fn judge(row: &mut Row, judged_mode: bool) {
    let best = row
        .figures
        .iter()
        .filter(|figure| figure.role == Role::Peer)
        .min_by(|a, b| a.value.min.total_cmp(&b.value.min))
        .map(|figure| (figure.contestant.clone(), figure.value));
    let floor = row.figure(Role::Floor).map(|figure| figure.value.min);
    row.verdict = Verdict::None;
    let Some((name, best)) = best else { return };
    for figure in &mut row.figures {
        figure.ratio = Some(figure.value.min / best.min);
        figure.ratio_of_medians = Some(figure.value.median / best.median);
        figure.ratio_above_floor = floor
            .filter(|&floor| best.min > floor)
            .map(|floor| (figure.value.min - floor) / (best.min - floor));
    }
    row.best_peer = Some(name);
    let subject = row.figure(Role::Subject);
    let met = match row.target {
        Some(target) => subject.and_then(|figure| Some(figure.ratio? <= target)),
        None => subject.and_then(|figure| Some(figure.value.min <= figure.limit()?)),
    };
    if let (Some(met), true) = (met, judged_mode) {
        row.verdict = if met { Verdict::Pass } else { Verdict::Miss };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(contestant: &str, role: Role, ns: f64) -> Figure {
        let cost = |min: f64| Cost { min, median: min * 1.1, median_low: min, median_high: min * 1.2 };
        Figure { contestant: contestant.into(), role, value: cost(ns), ..Figure::default() }
    }

    fn row(figures: Vec<Figure>, target: Option<f64>) -> Row {
        Row { target, figures, ..Row::new("x", "g", "t") }
    }

    #[test]
    fn the_best_peer_is_the_fastest_and_never_one_of_ours_or_a_rival() {
        let figures = vec![
            figure("us", Role::Subject, 1.0),
            figure("us too", Role::Ours, 0.5),
            figure("slow", Role::Peer, 4.0),
            figure("fast", Role::Peer, 2.0),
            figure("rival", Role::Rival, 0.7),
        ];
        let mut row = row(figures, Some(0.5));
        judge(&mut row, true);
        assert_eq!(row.best_peer.as_deref(), Some("fast"));
        assert_eq!(row.figure(Role::Subject).unwrap().ratio, Some(0.5));
        assert_eq!(row.verdict, Verdict::Pass);
        row.target = Some(0.49);
        judge(&mut row, true);
        assert_eq!(row.verdict, Verdict::Miss);
        judge(&mut row, false);
        assert_eq!(row.verdict, Verdict::None);
    }

    #[test]
    fn a_wide_interval_is_no_figure_to_compare() {
        let cost = |low, high| Cost { min: 1.0, median: 2.0, median_low: low, median_high: high };
        assert!(!cost(1.95, 2.05).is_unsure());
        assert!(cost(1.8, 2.2).is_unsure());
    }

    #[test]
    fn a_floor_is_taken_off_both_sides() {
        let figures = vec![
            figure("us", Role::Subject, 2.0),
            figure("peer", Role::Peer, 3.0),
            figure("floor", Role::Floor, 1.0),
        ];
        let mut row = row(figures, None);
        judge(&mut row, true);
        assert_eq!(row.figure(Role::Subject).unwrap().ratio_above_floor, Some(0.5));
        assert_eq!(row.verdict, Verdict::None);
    }

    #[test]
    fn a_row_of_no_target_is_judged_by_its_limit() {
        let mut row = row(vec![figure("us", Role::Subject, 2.0), figure("peer", Role::Peer, 1.0)], None);
        for name in [LIMIT_BYTES, LIMIT_NS] {
            for (limit, verdict) in [(2.0, Verdict::Pass), (1.9, Verdict::Miss)] {
                row.figures[0].extra = [(name.into(), limit)].into();
                judge(&mut row, true);
                assert_eq!(row.verdict, verdict);
            }
        }
        row.target = Some(3.0);
        judge(&mut row, true);
        assert_eq!(row.verdict, Verdict::Pass);
    }

    #[test]
    fn a_row_without_peers_has_no_ratio() {
        let mut row = row(vec![figure("us", Role::Subject, 2.0)], Some(0.5));
        judge(&mut row, true);
        assert_eq!((row.best_peer.as_deref(), row.verdict), (None, Verdict::None));
    }
}

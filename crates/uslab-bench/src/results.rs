//! The results: one schema for all suites, in `--json` and between the two processes of `--both-modes`.
//!
//! `schema` is raised whenever a reader of an older one would misunderstand; new fields do not raise it.
//! A row has one unit, and in every unit less is better: a throughput is told as the time of one operation.
//! Must never: hold a figure without its unit in its name or its place.

use crate::contestants::{About, found::Missing};
use crate::machine::{Build, Machine};
use crate::stats::Summary;
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
    pub contestants: Vec<AboutText>,
    /// Contestants that this machine has not, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Skipped>,
    pub runs: Vec<Run>,
}

/// The options that change what is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunOptions {
    pub rounds: usize,
    pub round_us: u64,
    pub object_size_bytes: usize,
    pub touch: bool,
    pub order: crate::rounds::Order,
    /// Run for function only: the figures mean nothing.
    pub check: bool,
}

/// [`About`], as read back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AboutText {
    pub name: String,
    pub version: String,
    pub build: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub warning: String,
}

impl From<About> for AboutText {
    fn from(about: About) -> Self {
        Self { name: about.name.into(), version: about.version, build: about.build, warning: about.warning }
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

#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// The subject's ratio to the best peer must be no more than this.
    pub target: Option<f64>,
    pub verdict: Verdict,
    pub best_peer: Option<String>,
    pub figures: Vec<Figure>,
    /// Published figures for the same row, in cycles.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub published_cycles: BTreeMap<String, f64>,
    /// Contestants that could not take part, and why.
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

impl From<Missing> for Skipped {
    fn from(missing: Missing) -> Self {
        Self { contestant: missing.name.into(), why: missing.why }
    }
}

/// What a row's values are. Less is better in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds for one object or operation.
    Ns,
    Seconds,
    Bytes,
}

impl Row {
    pub fn figure(&self, role: Role) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.role == role)
    }

    pub fn named(&self, contestant: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.contestant == contestant)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Pass,
    Miss,
    /// There is no target, or it is not for this mode, or nothing was measured in earnest.
    None,
}

/// What part a contestant plays in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The way of using uslab that the row judges.
    Subject,
    /// Another way of using uslab, for information.
    Ours,
    Peer,
    /// One that does a part of what an allocator does, and is compared apart: never the best peer.
    Rival,
    /// What the round costs without any allocator: taken off both sides in [`Figure::ratio_above_floor`].
    Floor,
    /// What a known mechanism costs, that is no allocator: for the reader alone.
    Reference,
}

/// What a contestant cost in a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub contestant: String,
    pub role: Role,
    /// In the row's unit.
    pub value: Cost,
    /// The same in core cycles, where the value is a time that was measured on one pinned thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<Cost>,
    /// What else was measured, each with its unit at the end of its name: "peak_bytes", "p99_ns".
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

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub min: f64,
    pub median: f64,
    pub median_low: f64,
    pub median_high: f64,
}

impl Cost {
    /// Whether the median is known too badly to compare percents: its 95 % interval is wider than a tenth of it.
    pub fn unsure(&self) -> bool {
        self.median_high - self.median_low > 0.1 * self.median
    }
}

impl From<Summary> for Cost {
    fn from(s: Summary) -> Self {
        Self { min: s.min, median: s.median, median_low: s.median_low, median_high: s.median_high }
    }
}

/// An extra of this name is the most that its figure's value may be: a requirement that looks at no peer. The
/// subject is judged by it where the row has no target.
pub const LIMIT_BYTES: &str = "limit_bytes";

/// Fills in who the best peer is, everybody's ratio to it, and the verdict on the subject.
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
        None => subject.and_then(|figure| Some(figure.value.min <= *figure.extra.get(LIMIT_BYTES)?)),
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
        Figure {
            contestant: contestant.into(),
            role,
            value: cost(ns),
            cycles: Some(cost(ns * 4.0)),
            extra: BTreeMap::new(),
            series: BTreeMap::new(),
            ratio: None,
            ratio_of_medians: None,
            ratio_above_floor: None,
            rounds: 1,
            redone: 0,
        }
    }

    fn row(figures: Vec<Figure>, target: Option<f64>) -> Row {
        Row {
            id: "x".into(),
            group: "g".into(),
            title: "t".into(),
            size_bytes: 256,
            live: 1,
            threads: 1,
            unit: Unit::Ns,
            target,
            verdict: Verdict::None,
            best_peer: None,
            figures,
            published_cycles: BTreeMap::new(),
            skipped: Vec::new(),
        }
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
        assert!(!cost(1.95, 2.05).unsure());
        assert!(cost(1.8, 2.2).unsure());
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
        for (limit, verdict) in [(2.0, Verdict::Pass), (1.9, Verdict::Miss)] {
            row.figures[0].extra.insert(LIMIT_BYTES.into(), limit);
            judge(&mut row, true);
            assert_eq!(row.verdict, verdict);
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

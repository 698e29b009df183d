//! Which charts a run's rows ask for. Nothing here knows a suite: the rows say what they vary.
//!
//! ```text
//!   rows that differ in one of live, size, threads   a line a contestant, over it
//!   the same, with published cycles                  another, in cycles, with the published ones
//!   figures with series "y_unit_by_x_unit"           their course
//!   figures with extras p50_ns … max_ns              cost by percentile
//!   what is left                                     bars, one chart a row
//! ```
//!
//! Must never: draw a figure in another place than its value's, or leave a row out without its table having it.

use super::axis::{Amount, Axis, Kind, short};
use super::chart::{Bar, BarChart, Line, LineChart};
use super::panels::{LEAST_POINTS, Panel, panels};
use super::words;
use crate::results::{Figure, Role, Row, Run};
use std::collections::{BTreeMap, BTreeSet};

/// More bar charts than this in one group say less than its table.
const MOST_BAR_CHARTS: usize = 12;
/// Of a course; a chart is about this many pixels wide.
const MOST_COURSE_POINTS: usize = 300;
/// Colours of peers in the stylesheet.
pub const PEER_COLOURS: usize = 10;

/// A colour for every contestant, the same in all charts of a page.
pub struct Palette {
    peers: Vec<String>,
    ours: Vec<String>,
}

impl Palette {
    pub fn of<'a>(runs: impl Iterator<Item = &'a Run>) -> Self {
        let (mut peers, mut ours) = (Vec::new(), Vec::new());
        for figure in runs.flat_map(|run| &run.rows).flat_map(|row| &row.figures) {
            let list = match figure.role {
                Role::Peer => &mut peers,
                Role::Ours => &mut ours,
                _ => continue,
            };
            if !list.contains(&figure.contestant) {
                list.push(figure.contestant.clone());
            }
        }
        Self { peers, ours }
    }

    fn class(&self, figure: &Figure) -> String {
        let index = |list: &[String]| list.iter().position(|name| *name == figure.contestant).unwrap_or(0);
        match figure.role {
            Role::Subject => "subject".into(),
            Role::Ours => format!("ours ours{}", index(&self.ours) % 3),
            Role::Peer => format!("peer{}", index(&self.peers) % PEER_COLOURS),
            _ => "floor".into(),
        }
    }
}

pub enum Picture {
    Lines(LineChart),
    Bars(BarChart),
}

/// The rows table by table, as they stand.
pub fn groups(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| a.group == b.group)
}

/// The charts of one table's rows; `other` are the rows of the other mode, whose subject is shown as well.
pub fn pictures(rows: &[Row], other: &[Row], palette: &Palette) -> Vec<Picture> {
    let mut pictures = Vec::new();
    let panels = panels(rows);
    for panel in &panels {
        pictures.extend(cost_chart(panel, other, palette).map(Picture::Lines));
        pictures.extend(published_chart(panel).map(Picture::Lines));
    }
    for row in rows {
        pictures.extend(course_charts(row, palette).into_iter().map(Picture::Lines));
        pictures.extend(percentile_charts(row, palette).into_iter().map(Picture::Lines));
    }
    let drawn = |row: &&Row| panels.iter().any(|panel| panel.rows.iter().any(|r| r.id == row.id));
    let rest: Vec<&Row> = rows.iter().filter(|row| !drawn(row) && row.figures.len() > 1).collect();
    if rest.len() <= MOST_BAR_CHARTS {
        pictures.extend(rest.into_iter().map(|row| Picture::Bars(bars(row, palette))));
    }
    pictures
}

/// A chart stands under its group's heading, so its own title is what sets it apart there.
fn title(row: &Row, part: &str) -> String {
    if part.is_empty() { row.group.clone() } else { part.to_owned() }
}

fn unit_words(row: &Row) -> &'static str {
    match Amount::from(row.unit) {
        Amount::Mib => "memory",
        Amount::Ns => "time of an operation",
        _ => "time",
    }
}

/// Least important first, so that the last is drawn over the others.
fn rank(role: Role) -> u8 {
    match role {
        Role::Subject => 3,
        Role::Ours => 2,
        Role::Peer => 1,
        _ => 0,
    }
}

/// Collects lines by name, in order of rank.
#[derive(Default)]
struct Lines(Vec<(u8, Line)>);

impl Lines {
    fn push(&mut self, rank: u8, name: &str, class: String, point: [f64; 2]) {
        if !point.iter().all(|value| value.is_finite()) {
            return;
        }
        match self.0.iter_mut().find(|(r, line)| *r == rank && (line.name == name || rank == 3)) {
            // The subject has other names in other rows; it is one line, and where names differ it is uslab's.
            Some((_, line)) => {
                if line.name != name {
                    (line.name, line.label) = ("uslab".into(), "uslab".into());
                }
                line.points.push(point);
            }
            None => {
                let (name, label) = (name.to_owned(), name.to_owned());
                self.0.push((rank, Line { name, label, class, points: vec![point], marked: true }));
            }
        }
    }

    fn into_chart(
        mut self,
        title: String,
        x: (&str, Kind),
        y: (&str, Kind),
        zero: bool,
    ) -> Option<LineChart> {
        self.0.sort_by_key(|line| line.0);
        let lines: Vec<Line> = self.0.into_iter().map(|line| line.1).collect();
        let values = |i: usize| lines.iter().flat_map(|line| &line.points).map(move |point| point[i]);
        let origin = || zero.then_some(0.0).into_iter();
        let x = Axis::new(x.0, x.1, values(0).chain(origin()))?;
        let y = Axis::new(y.0, y.1, values(1).chain(origin()))?;
        Some(LineChart { title, x, y, lines })
    }
}

/// Cost over what the panel varies.
fn cost_chart(panel: &Panel, other: &[Row], palette: &Palette) -> Option<LineChart> {
    let first = panel.rows.first()?;
    let amount = Amount::from(first.unit);
    let mut lines = Lines::default();
    for row in &panel.rows {
        let x = panel.by.of(row) as f64;
        for figure in &row.figures {
            let point = [x, amount.scaled(figure.value.min)];
            lines.push(rank(figure.role), &figure.contestant, palette.class(figure), point);
        }
        let fallback = other.iter().find(|r| r.id == row.id).and_then(|r| r.figure(Role::Subject));
        if let Some(figure) = fallback {
            let point = [x, amount.scaled(figure.value.min)];
            lines.push(2, "uslab, locked", "subject locked".into(), point);
        }
    }
    let kind = Kind::Amount(amount);
    lines.into_chart(
        title(first, &panel.title),
        (panel.by.name(), Kind::Count),
        (unit_words(first), kind),
        false,
    )
}

/// The same rows in core cycles, with what others published: the shapes of the curves beside each other.
fn published_chart(panel: &Panel) -> Option<LineChart> {
    let first = panel.rows.first()?;
    if panel.rows.iter().filter(|row| !row.published_cycles.is_empty()).count() < LEAST_POINTS {
        return None;
    }
    let names: BTreeSet<&String> = panel.rows.iter().flat_map(|row| row.published_cycles.keys()).collect();
    let mut lines = Lines::default();
    for row in &panel.rows {
        let x = panel.by.of(row) as f64;
        for (i, name) in names.iter().enumerate() {
            if let Some(&cycles) = row.published_cycles.get(*name) {
                let class = format!("published peer{}", i % PEER_COLOURS);
                lines.push(1, &words(name), class, [x, cycles]);
            }
        }
        let ours = row.figures.iter().filter(|figure| rank(figure.role) >= 2);
        for (i, figure) in ours.enumerate() {
            if let Some(cycles) = figure.cycles {
                let class = if figure.role == Role::Subject {
                    "subject".into()
                } else {
                    format!("ours ours{}", i % 3)
                };
                lines.push(rank(figure.role), &figure.contestant, class, [x, cycles.min]);
            }
        }
    }
    lines.into_chart(
        format!("{}, beside the published cycles", title(first, &panel.title)),
        (panel.by.name(), Kind::Count),
        ("core cycles of an operation", Kind::Amount(Amount::Cycles)),
        false,
    )
}

/// The unit at the end of a name, and the name without it.
fn unit_of(name: &str) -> (String, Amount) {
    let (rest, unit) = name.rsplit_once('_').unwrap_or(("", name));
    let amount = match unit {
        "ns" => Amount::Ns,
        "s" => Amount::Seconds,
        "bytes" => Amount::Mib,
        _ => return (words(name), Amount::Plain),
    };
    (words(rest), amount)
}

/// Courses that are no drawing: single runs are for statistics, and of a distribution the percentiles are drawn.
const UNDRAWN: [&str; 2] = ["_by_run", "_by_nines"];

fn course_charts(row: &Row, palette: &Palette) -> Vec<LineChart> {
    let names: BTreeSet<&String> = row.figures.iter().flat_map(|figure| figure.series.keys()).collect();
    let chart = |name: &String| {
        let (y, x) = name.split_once("_by_").unwrap_or((name, ""));
        let ((y_name, y_amount), (x_name, x_amount)) = (unit_of(y), unit_of(x));
        let mut lines = Lines::default();
        for figure in &row.figures {
            let course = figure.series.get(name).map_or(&[][..], Vec::as_slice);
            let every = course.len().div_ceil(MOST_COURSE_POINTS).max(1);
            let last = course.len().saturating_sub(1);
            for (_, &[x, y]) in course.iter().enumerate().filter(|(i, _)| i % every == 0 || *i == last) {
                let point = [x_amount.scaled(x), y_amount.scaled(y)];
                lines.push(rank(figure.role), &figure.contestant, palette.class(figure), point);
            }
        }
        let marked = lines.0.iter().all(|(_, line)| line.points.len() <= 12);
        lines.0.iter_mut().for_each(|(_, line)| line.marked = marked);
        let x_name = match (x_name.as_str(), x_amount) {
            ("", Amount::Seconds) => "time",
            ("", _) => x,
            (name, _) => name,
        };
        let (x, y) = ((x_name, Kind::Amount(x_amount)), (y_name.as_str(), Kind::Amount(y_amount)));
        lines.into_chart(title(row, &row.title), x, y, true)
    };
    let drawn = names.into_iter().filter(|name| !UNDRAWN.iter().any(|end| name.ends_with(end)));
    drawn.filter_map(chart).collect()
}

/// An extra's name as a percentile: what of, which one ("max" is all), and its unit.
pub fn percentile(key: &str) -> Option<(String, f64, Amount)> {
    let (rest, amount) = key.rsplit_once('_').map(|(rest, _)| (rest, unit_of(key).1))?;
    let tokens: Vec<&str> = rest.split('_').collect();
    let at = tokens.iter().position(|token| {
        let digits = token.strip_prefix('p').unwrap_or("");
        *token == "max" || (!digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit() || c == '.'))
    })?;
    let of = tokens[..at].join(" ");
    if tokens[at] == "max" {
        return (at + 1 == tokens.len()).then_some((of, 100.0, amount));
    }
    // p99_9, p99.9 and p999 are the same; p5 is not p50.
    let digits: String = tokens[at..].concat().chars().filter(char::is_ascii_digit).collect();
    let number: f64 = digits.parse().ok()?;
    let rank = number / 10f64.powi(i32::try_from(digits.len()).ok()?.max(2) - 2);
    (rank < 100.0).then_some((of, rank, amount))
}

fn percentile_charts(row: &Row, palette: &Palette) -> Vec<LineChart> {
    let mut kinds: BTreeMap<(String, u8), BTreeSet<u64>> = BTreeMap::new();
    for key in row.figures.iter().flat_map(|figure| figure.extra.keys()) {
        if let Some((of, rank, amount)) = percentile(key) {
            kinds.entry((of, amount as u8)).or_default().insert(rank.to_bits());
        }
    }
    // A maximum alone is no distribution.
    kinds.retain(|_, ranks| ranks.len() >= LEAST_POINTS);
    let chart = |((of, unit), ranks): ((String, u8), BTreeSet<u64>)| {
        // Bits of positive floats are in the floats' order.
        let ranks: Vec<u64> = ranks.into_iter().collect();
        let name = |rank: f64| if rank == 100.0 { "max".into() } else { format!("p{}", rank_text(rank)) };
        let names = ranks.iter().map(|&bits| name(f64::from_bits(bits))).collect();
        let (mut lines, mut in_amount) = (Lines::default(), Amount::Plain);
        for figure in &row.figures {
            let mut points: Vec<[f64; 2]> = Vec::new();
            for (key, &value) in &figure.extra {
                let found = percentile(key).filter(|p| p.0 == of && p.2 as u8 == unit);
                let Some((_, rank, amount)) = found else { continue };
                in_amount = amount;
                let place = ranks.iter().position(|&bits| bits == rank.to_bits());
                points.extend(place.map(|at| [at as f64, amount.scaled(value)]));
            }
            points.sort_by(|a, b| a[0].total_cmp(&b[0]));
            for point in points {
                lines.push(rank(figure.role), &figure.contestant, palette.class(figure), point);
            }
        }
        let part = if of.is_empty() { row.title.clone() } else { format!("{}, {of}", row.title) };
        let y = ("time of a call", Kind::Amount(in_amount));
        lines.into_chart(title(row, &part), ("percentile", Kind::Names(names)), y, false)
    };
    kinds.into_iter().filter_map(chart).collect()
}

fn rank_text(rank: f64) -> String {
    if rank.fract() == 0.0 { short(rank) } else { format!("{rank:.4}").trim_end_matches('0').to_owned() }
}

fn bars(row: &Row, palette: &Palette) -> BarChart {
    let amount = Amount::from(row.unit);
    let mut figures: Vec<&Figure> =
        row.figures.iter().filter(|figure| figure.value.min.is_finite()).collect();
    figures.sort_by_key(|figure| std::cmp::Reverse(rank(figure.role)));
    let bars = figures
        .into_iter()
        .map(|figure| {
            let value = amount.scaled(figure.value.min);
            Bar {
                name: figure.contestant.clone(),
                class: palette.class(figure),
                value,
                text: amount.text(value),
            }
        })
        .collect();
    BarChart { title: title(row, &row.title), unit: unit_words(row).into(), bars }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::sample;
    use super::*;

    fn lines_of(suite: &str) -> Vec<LineChart> {
        let joined = sample();
        let palette = Palette::of(joined.runs.iter().map(|taken| &taken.run));
        let runs: Vec<_> = joined.of_suite(suite).collect();
        let other = runs.get(1).map_or(&[][..], |taken| &taken.run.rows);
        groups(&runs[0].run.rows)
            .flat_map(|rows| pictures(rows, other, &palette))
            .filter_map(|picture| match picture {
                Picture::Lines(chart) => Some(chart),
                Picture::Bars(_) => None,
            })
            .collect()
    }

    #[test]
    fn bulk_is_drawn_over_n_with_both_modes_and_again_beside_the_published_cycles() {
        let charts = lines_of("bulk");
        assert_eq!(charts.len(), 2);
        assert_eq!(charts[0].x.name, "objects at once");
        let names: Vec<&str> = charts[0].lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names.last(), Some(&"uslab cache, bulk"), "uslab is drawn last");
        assert!(names.contains(&"uslab, locked") && names.contains(&"jemalloc"));
        assert!(charts[1].lines.iter().any(|line| line.name == "slab 2015 bulk"));
    }

    #[test]
    fn sizes_and_live_sets_make_a_panel_each() {
        let charts = lines_of("pair");
        let titles: Vec<&str> = charts.iter().map(|chart| chart.title.as_str()).collect();
        assert!(titles.contains(&"malloc and free"), "{titles:?}");
        assert!(charts.iter().any(|chart| chart.x.name == "object size, bytes"));
    }

    #[test]
    fn threads_courses_and_percentiles_have_their_charts() {
        let charts = lines_of("sample");
        let axes: Vec<(&str, &str)> = charts.iter().map(|c| (c.x.name.as_str(), c.y.name.as_str())).collect();
        for axis in
            [("threads", "time of an operation"), ("time", "resident"), ("percentile", "time of a call")]
        {
            assert!(axes.contains(&axis), "{axis:?} in {axes:?}");
        }
        let percentiles = charts.iter().find(|chart| chart.x.name == "percentile").unwrap();
        let ticks: Vec<&str> = percentiles.x.ticks.iter().map(|tick| tick.1.as_str()).collect();
        assert_eq!(ticks, ["p50", "p90", "p99", "p99.9", "p99.99", "max"]);
    }

    #[test]
    fn names_of_percentiles() {
        let rank = |key| percentile(key).map(|p| (p.0, p.1));
        for key in ["p99_9_ns", "p99.9_ns", "p999_ns"] {
            assert_eq!(rank(key), Some((String::new(), 99.9)), "{key}");
        }
        assert_eq!(rank("alloc_p50_ns"), Some(("alloc".into(), 50.0)));
        assert_eq!(rank("max_ns"), Some((String::new(), 100.0)));
        for key in ["peak_bytes", "pages_bytes", "p_ns", "max_count_of_x", ""] {
            assert_eq!(rank(key), None, "{key}");
        }
    }
}

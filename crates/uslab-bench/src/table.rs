//! Results as text: aligned columns and the marks beside them.
//!
//! All suites use two forms: a column a contestant, or a line a contestant. The first column and
//! names are aligned to the left, numbers to the right. Must never: hold a figure that the JSON
//! lacks.

use crate::facts;
use crate::preload::GLIBC;
use crate::results::{Figure, Report, Role, Row, Run, Unit, Verdict};
use crate::suites::{Suite, Tables};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The report as text.
pub fn text(report: &Report, find: impl Fn(&str) -> Option<&'static Suite>) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = heading(report, &mut text);
    for run in &report.runs {
        let Some(suite) = find(&run.suite) else { continue };
        for rows in run.rows.chunk_by(|a, b| a.group == b.group) {
            let (first, unit) = (&rows[0], unit_name(rows[0].unit));
            let _ = writeln!(text, "\n{} · uslab in {} mode · {unit}", first.group, run.mode);
            if suite.tables == Tables::Columns {
                text.push_str(&columns(rows));
            }
            text.push_str(&lines(rows, suite.tables == Tables::Lines));
            text.push_str(&skipped(rows));
        }
        (suite.notes)(run).iter().for_each(|line| text.extend([line.as_str(), "\n"]));
        let _ = closing(run, &mut text);
    }
    if report.options.check {
        text.push_str("run with --check: everything works; the figures mean nothing\n");
    }
    text
}

/// A column of words is aligned to the left.
fn grid(header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let words =
        |column: usize| column == 0 || rows.iter().any(|row| row[column].starts_with(char::is_alphabetic));
    let left: Vec<bool> = (0..header.len()).map(words).collect();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header).add_rows(rows);
    for (column, left) in table.column_iter_mut().zip(left) {
        column.set_padding((0, 2));
        column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.trim_fmt() + "\n"
}

fn number(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.2}"))
}

fn cycles(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.1}"))
}

pub fn ratio(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.3}"))
}

pub fn target(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("≤ {value:.2}"))
}

fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Miss => "MISS",
        Verdict::None => "",
    }
}

/// A value in its unit, without the unit's name.
pub fn value(value: Option<f64>, unit: Unit) -> String {
    match unit {
        Unit::Ns => number(value),
        Unit::Seconds => value.map_or("–".into(), |value| format!("{value:.3}")),
        Unit::Bytes => value.map_or("–".into(), |value| format!("{:.2}", value / (1 << 20) as f64)),
        Unit::Count => {
            let digits = |value: f64| if value < 100.0 { 1 } else { 0 };
            value.map_or("–".into(), |value| format!("{value:.*}", digits(value)))
        }
    }
}

/// The unit as tables name it; [`value`] shows bytes as MiB.
fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Ns => "ns an operation",
        Unit::Seconds => "seconds",
        Unit::Bytes => "MiB",
        Unit::Count => "count",
    }
}

/// The subject, and a column for every other contestant. The subject's name may differ by row.
fn columns(rows: &[Row]) -> String {
    let mut others: Vec<&str> = Vec::new();
    for figure in rows.iter().flat_map(|row| &row.figures).filter(|figure| figure.role != Role::Subject) {
        if !others.contains(&figure.contestant.as_str()) {
            others.push(&figure.contestant);
        }
    }
    let any = |is: fn(&Row) -> bool| rows.iter().any(is);
    type Shown<'a> = Box<dyn Fn(&Row, Option<&Figure>) -> String + 'a>;
    let mut columns: Vec<(&str, Shown)> = vec![
        ("", Box::new(|row, _| row.title.clone())),
        ("uslab", Box::new(|row, us| value(us.map(|figure| figure.value.min), row.unit))),
        ("median", Box::new(|row, us| value(us.map(|figure| figure.value.median), row.unit))),
    ];
    if any(|row| row.figures.iter().any(|figure| figure.cycles.is_some())) {
        columns.push(("cycles", Box::new(|_, us| cycles(us.and_then(|us| us.cycles).map(|c| c.min)))));
    }
    if any(|row| !row.published_cycles.is_empty()) {
        columns.push((
            "published cycles",
            Box::new(|row, _| {
                let published = row.published_cycles.values().map(|cycles| format!("{cycles:.0}"));
                published.collect::<Vec<_>>().join(" → ")
            }),
        ));
    }
    if any(|row| row.best_peer.is_some()) {
        columns.push(("to the best", Box::new(|_, us| us.map_or("–".into(), to_best))));
    }
    if any(|row| row.target.is_some()) {
        columns.push(("target", Box::new(|row, _| target(row.target))));
    }
    if any(|row| row.verdict != Verdict::None) {
        columns.push(("", Box::new(|row, _| mark(row.verdict).into())));
    }
    if any(|row| row.figure(Role::Floor).is_some()) {
        columns.push(("ratio above floor", Box::new(|_, us| ratio(us.and_then(|us| us.ratio_above_floor)))));
    }
    for &name in &others {
        columns.push((
            name,
            Box::new(move |row, _| {
                let best = if row.best_peer.as_deref() == Some(name) { "*" } else { "" };
                let min = row.named(name).map(|figure| figure.value.min);
                format!("{best}{}", value(min, row.unit))
            }),
        ));
    }
    let line = |row: &Row| columns.iter().map(|column| column.1(row, row.figure(Role::Subject))).collect();
    grid(columns.iter().map(|column| column.0.into()).collect(), rows.iter().map(line).collect())
}

/// A line a contestant of each row, with all further measurements. Where a table above has the
/// figures, only contestants with further measurements.
fn lines(rows: &[Row], with_figures: bool) -> String {
    let all = || rows.iter().flat_map(|row| &row.figures);
    let extras: BTreeSet<&str> = all().flat_map(|figure| figure.extra.keys().map(String::as_str)).collect();
    if extras.is_empty() && !with_figures {
        return String::new();
    }
    let with_target = with_figures && rows.iter().any(|row| row.target.is_some());
    let mut header: Vec<String> = vec![String::new(), String::new()];
    if with_figures {
        header.extend(["least", "median", "mean ± deviation", "to glibc"].map(String::from));
        header.extend(with_target.then(|| ["to the best", "target"].map(String::from)).into_iter().flatten());
    }
    // Bytes are shown as MiB.
    header.extend(extras.iter().map(|name| name.replace("_bytes", "_mib").replace('_', " ")));
    let mut lines = Vec::new();
    for row in rows {
        let shown = row.figures.iter().filter(|figure| with_figures || !figure.extra.is_empty());
        for (at, figure) in shown.enumerate() {
            let title = if at == 0 { row.title.clone() } else { String::new() };
            let best = if row.best_peer.as_ref() == Some(&figure.contestant) { "*" } else { "" };
            let mut line = vec![title, format!("{}{best}", figure.contestant)];
            if with_figures {
                let (least, median) = (figure.value.min, figure.value.median);
                line.extend([least, median].map(|figure| value(Some(figure), row.unit)));
                line.extend([moments(figure, row.unit), to_glibc(figure, row)]);
            }
            if with_target {
                let judged = format!("{} {}", target(row.target), mark(row.verdict));
                let judged = if figure.role == Role::Subject { judged } else { String::new() };
                line.extend([to_best(figure), judged]);
            }
            line.extend(extras.iter().map(|&name| {
                let unit = match name.rsplit('_').next() {
                    Some("bytes") => Unit::Bytes,
                    Some("s") => Unit::Seconds,
                    _ => Unit::Ns,
                };
                value(figure.extra.get(name).copied(), unit)
            }));
            lines.push(line);
        }
    }
    grid(header, lines)
}

/// Mean and standard deviation of all runs; empty for a single run.
fn moments(figure: &Figure, unit: Unit) -> String {
    let runs = figure.series.get("value_by_run").map_or(&[][..], Vec::as_slice);
    if runs.len() < 2 {
        return String::new();
    }
    let n = runs.len() as f64;
    let mean = runs.iter().map(|run| run[1]).sum::<f64>() / n;
    let squares = runs.iter().map(|run| (run[1] - mean).powi(2)).sum::<f64>();
    format!("{} ± {}", value(Some(mean), unit), value(Some((squares / (n - 1.0)).sqrt()), unit))
}

/// The difference to the best peer's minimum, in percent; "~" where the rounds agree too little.
fn to_best(figure: &Figure) -> String {
    let unsure = if figure.value.is_unsure() { "~" } else { "" };
    figure.ratio.map_or("–".into(), |ratio| format!("{unsure}{:+.1} %", (ratio - 1.0) * 100.0))
}

/// The difference of the medians: "+3.1 %" is 3.1 % more than glibc, that is worse. "~" marks a
/// median that is too uncertain, or 95 % intervals that overlap.
fn to_glibc(figure: &Figure, row: &Row) -> String {
    let Some(base) = row.named(GLIBC.name) else { return "–".into() };
    if figure.contestant == base.contestant {
        return String::new();
    }
    let (ours, theirs) = (figure.value, base.value);
    let overlap = ours.median_low <= theirs.median_high && theirs.median_low <= ours.median_high;
    let one_run = figure.rounds < 3 || base.rounds < 3;
    let mark = if overlap || one_run || ours.is_unsure() || theirs.is_unsure() { "~" } else { "" };
    format!("{mark}{:+.1} %", (ours.median / theirs.median - 1.0) * 100.0)
}

/// The contestants that were left out, once each; one line where none could take part.
fn skipped(rows: &[Row]) -> String {
    let all = rows.iter().flat_map(|row| &row.skipped);
    let lines: BTreeSet<String> = if rows.iter().all(|row| row.figures.is_empty()) {
        all.map(|skipped| format!("left out: {}\n", skipped.why)).collect()
    } else {
        all.map(|skipped| format!("left out: {}: {}\n", skipped.contestant, skipped.why)).collect()
    };
    lines.into_iter().collect()
}

/// The machine, build and versions, before the tables.
fn heading(report: &Report, out: &mut String) -> std::fmt::Result {
    for (name, text) in facts::lines(report, report.runs.iter()) {
        writeln!(out, "{name:<10}{text}")?;
    }
    for about in &report.contestants {
        let warning =
            if about.warning.is_empty() { String::new() } else { format!("  WARNING: {}", about.warning) };
        writeln!(out, "{:<10}{} {}, {}{warning}", "allocator", about.name, about.version, about.build)?;
    }
    for missing in &report.missing {
        writeln!(out, "{:<10}{}: {}", "left out", missing.contestant, missing.why)?;
    }
    Ok(())
}

/// The judged rows counted, after the tables.
fn closing(run: &Run, out: &mut String) -> std::fmt::Result {
    let count = |verdict| run.rows.iter().filter(|row| row.verdict == verdict).count();
    let (pass, miss) = (count(Verdict::Pass), count(Verdict::Miss));
    let redone: usize = run.rows.iter().flat_map(|row| &row.figures).map(|figure| figure.redone).sum();
    let rounds: usize = run.rows.iter().flat_map(|row| &row.figures).map(|figure| figure.rounds).sum();
    let cut = if run.complete { "" } else { " (interrupted: the rows that were done)" };
    let judged = match pass + miss {
        0 => "no row judged in this mode".to_owned(),
        all => format!("{pass} of {all} targets met"),
    };
    writeln!(
        out,
        "\n{}, {} mode: {judged}{cut}; * best peer, ~ too uncertain to compare percents; {redone} of {rounds} rounds disturbed and redone",
        run.suite, run.mode
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Cost;

    #[test]
    fn columns_line_up() {
        let words = |cells: [&str; 3]| cells.map(String::from).to_vec();
        let rows = vec![words(["a row", "1.00", "them"]), words(["b", "10.00", "us"])];
        let text = grid(words(["", "ns", "contestant"]), rows);
        assert_eq!(text, "          ns  contestant\na row   1.00  them\nb      10.00  us\n");
    }

    #[test]
    fn what_is_missing_is_a_dash_and_no_target_is_nothing() {
        assert_eq!((number(None), target(None)), ("–".into(), String::new()));
        assert_eq!((number(Some(1.234)), target(Some(0.9))), ("1.23".into(), "≤ 0.90".into()));
    }

    #[test]
    fn percents_are_marked_where_intervals_overlap_or_runs_are_few() {
        let figure = |contestant: &str, low: f64, median: f64, high: f64, rounds: usize| Figure {
            contestant: contestant.into(),
            value: Cost { min: low, median, median_low: low, median_high: high },
            rounds,
            ..Figure::default()
        };
        let figures = vec![
            figure(GLIBC.name, 99.0, 100.0, 101.0, 5),
            figure("apart", 109.0, 110.0, 111.0, 5),
            figure("close", 100.5, 101.0, 102.0, 5),
            figure("once", 110.0, 110.0, 110.0, 1),
        ];
        let row = Row { figures, ..Row::default() };
        let shown: Vec<_> = row.figures.iter().map(|figure| to_glibc(figure, &row)).collect();
        assert_eq!(shown, ["", "+10.0 %", "~+1.0 %", "~+10.0 %"]);
    }

    #[test]
    fn mean_and_deviation_are_of_all_runs() {
        let mut figure = Figure::default();
        let runs = [2.0, 4.0, 6.0].iter().enumerate().map(|(i, &value)| [i as f64, value]).collect();
        figure.series.insert("value_by_run".into(), runs);
        assert_eq!(moments(&figure, Unit::Ns), "4.00 ± 2.00");
        assert_eq!(moments(&Figure::default(), Unit::Ns), "");
    }
}

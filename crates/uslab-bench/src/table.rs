//! Results as text: aligned columns and the marks beside them.
//!
//! The first column stands to the left, names too; numbers to the right. Must never: hold a figure that the
//! JSON has not.

use crate::results::{Figure, Report, Role, Row, Run, Unit, Verdict};
use std::fmt::Write;

/// Rows of cells, written with each column as wide as its widest cell.
pub struct Grid {
    rows: Vec<Vec<String>>,
}

impl Grid {
    pub fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn write(&self, out: &mut dyn Write) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &[String], column: usize| row.get(column).map_or(String::new(), Clone::clone);
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0))
            .collect();
        // A column is of words if what stands under its heading is.
        let words: Vec<bool> = (0..columns)
            .map(|column| {
                let first = |row: &Vec<String>| cell(row, column).chars().next();
                self.rows[1..].iter().filter_map(first).any(char::is_alphabetic)
            })
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, &width) in widths.iter().enumerate() {
                let text = cell(row, column);
                if words[column] || column == 0 {
                    write!(line, "{text:<width$}  ")?;
                } else {
                    write!(line, "{text:>width$}  ")?;
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

pub fn number(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.2}"))
}

pub fn cycles(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.1}"))
}

pub fn ratio(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.3}"))
}

pub fn target(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("≤ {value:.2}"))
}

pub fn mark(verdict: Verdict) -> &'static str {
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
    }
}

/// The unit as tables name it; [`value`] shows bytes as MiB.
pub fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Ns => "ns an operation",
        Unit::Seconds => "seconds",
        Unit::Bytes => "MiB",
    }
}

/// A table a group, for suites whose rows are "uslab against each peer".
pub fn by_group(run: &Run, out: &mut dyn Write) -> std::fmt::Result {
    let mut rest = run.rows.as_slice();
    while let Some(first) = rest.first() {
        let length = rest.iter().take_while(|row| row.group == first.group).count();
        let (rows, after) = rest.split_at(length);
        group(rows, &run.mode, out)?;
        rest = after;
    }
    Ok(())
}

fn group(rows: &[Row], mode: &str, out: &mut dyn Write) -> std::fmt::Result {
    let Some(first) = rows.first() else { return Ok(()) };
    let unit = unit_name(first.unit);
    writeln!(out, "\n{} · uslab in {mode} mode · {unit}, minimum of the rounds", first.group)?;
    // Everybody but the subject, whose name may differ from row to row, has a column.
    let mut others: Vec<&str> = Vec::new();
    for figure in rows.iter().flat_map(|row| &row.figures).filter(|figure| figure.role != Role::Subject) {
        if !others.contains(&figure.contestant.as_str()) {
            others.push(&figure.contestant);
        }
    }
    let with_floor = rows.iter().any(|row| row.figure(Role::Floor).is_some());
    let with_cycles = rows.iter().any(|row| row.figures.iter().any(|figure| figure.cycles.is_some()));
    let with_peers = rows.iter().any(|row| row.best_peer.is_some());
    let with_target = rows.iter().any(|row| row.target.is_some());
    let with_published = rows.iter().any(|row| !row.published_cycles.is_empty());
    let mut header = vec!["", "uslab", "median"];
    header.extend(with_cycles.then_some("cycles"));
    header.extend(with_published.then_some("published cycles"));
    header.extend(with_peers.then_some("to the best"));
    header.extend(with_target.then_some(["target", ""]).into_iter().flatten());
    header.extend(with_floor.then_some("ratio above floor"));
    header.extend(&others);
    let mut grid = Grid::new(&header);
    for row in rows {
        let subject = row.figure(Role::Subject);
        let mut cells = vec![
            row.title.clone(),
            value(subject.map(|f| f.value.min), row.unit),
            value(subject.map(|f| f.value.median), row.unit),
        ];
        if with_cycles {
            cells.push(cycles(subject.and_then(|f| f.cycles).map(|c| c.min)));
        }
        if with_published {
            let published: Vec<String> =
                row.published_cycles.values().map(|value| format!("{value:.0}")).collect();
            cells.push(published.join(" → "));
        }
        if with_peers {
            cells.push(percent(subject));
        }
        if with_target {
            cells.extend([target(row.target), mark(row.verdict).to_owned()]);
        }
        if with_floor {
            cells.push(ratio(subject.and_then(|f| f.ratio_above_floor)));
        }
        cells.extend(others.iter().map(|&name| {
            let best = if row.best_peer.as_deref() == Some(name) { "*" } else { "" };
            format!("{best}{}", value(row.named(name).map(|f| f.value.min), row.unit))
        }));
        grid.row(cells);
    }
    grid.write(out)?;
    skipped(rows, out)
}

/// The subject against the best peer, in percent; "~" where the rounds agree too little for that.
fn percent(subject: Option<&Figure>) -> String {
    let Some((figure, ratio)) = subject.and_then(|figure| Some((figure, figure.ratio?))) else {
        return "–".into();
    };
    let unsure = if figure.value.unsure() { "~" } else { "" };
    format!("{unsure}{:+.1} %", (ratio - 1.0) * 100.0)
}

/// Who could not take part, once each.
pub fn skipped(rows: &[Row], out: &mut dyn Write) -> std::fmt::Result {
    let mut lines: Vec<String> = Vec::new();
    for skipped in rows.iter().flat_map(|row| &row.skipped) {
        let line = format!("left out: {}: {}", skipped.contestant, skipped.why);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// What was measured on, before the tables.
pub fn heading(report: &Report, out: &mut dyn Write) -> std::fmt::Result {
    let m = &report.machine;
    let guest = if m.virtual_machine { ", virtual machine" } else { "" };
    writeln!(
        out,
        "machine   {}, {} of {} CPUs{guest}, {}",
        m.cpu_model, m.cpus_allowed, m.cpus_online, m.kernel
    )?;
    let second = m.second_cpu.map_or("no second CPU".into(), |cpu| format!("second thread on CPU {cpu}"));
    writeln!(
        out,
        "          on CPU {} at {:.2} GHz (counter {:.2} GHz), {second}; load average at start {}",
        m.cpu,
        m.core_hz / 1e9,
        m.tick_hz / 1e9,
        m.load_average
    )?;
    let b = &report.build;
    writeln!(out, "build     {}, opt-level {}, {}; {}", b.profile, b.opt_level, b.rustc, b.cc)?;
    let o = &report.options;
    let touch = if o.touch { "touched" } else { "not touched" };
    let order = format!("{:?}", o.order).to_lowercase();
    writeln!(
        out,
        "method    {} rounds of {} µs each, interleaved; objects {touch}, freed {order}",
        o.rounds, o.round_us
    )?;
    for (i, about) in report.contestants.iter().enumerate() {
        let label = if i == 0 { "who" } else { "" };
        let warning =
            if about.warning.is_empty() { String::new() } else { format!("  WARNING: {}", about.warning) };
        writeln!(out, "{label:<10}{} {}, {}{warning}", about.name, about.version, about.build)?;
    }
    for (i, missing) in report.missing.iter().enumerate() {
        let label = if i == 0 { "left out" } else { "" };
        writeln!(out, "{label:<10}{}: {}", missing.contestant, missing.why)?;
    }
    Ok(())
}

/// The judged rows counted, after the tables.
pub fn closing(run: &Run, out: &mut dyn Write) -> std::fmt::Result {
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

    #[test]
    fn columns_line_up() {
        let mut grid = Grid::new(&["", "ns", "who"]);
        grid.row(["a row".into(), "1.00".into(), "them".into()]);
        grid.row(["b".into(), "10.00".into(), "us".into()]);
        let mut text = String::new();
        grid.write(&mut text).unwrap();
        assert_eq!(text, "          ns  who\na row   1.00  them\nb      10.00  us\n");
    }

    #[test]
    fn what_is_missing_is_a_dash_and_no_target_is_nothing() {
        assert_eq!((number(None), target(None)), ("–".into(), String::new()));
        assert_eq!((number(Some(1.234)), target(Some(0.9))), ("1.23".into(), "≤ 0.90".into()));
    }
}

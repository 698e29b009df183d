//! Results as text: aligned columns and the marks beside them.
//!
//! The first column stands to the left, names too; numbers to the right. Must never: hold a figure that the
//! JSON has not.

use crate::results::{Report, Role, Row, Run, Verdict};
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
    writeln!(out, "\n{} · uslab in {mode} mode · ns an object, minimum of the rounds", first.group)?;
    // Everybody but the subject, whose name may differ from row to row, has a column.
    let others: Vec<&str> =
        first.figures.iter().filter(|f| f.role != Role::Subject).map(|f| f.contestant.as_str()).collect();
    let with_floor = first.figure(Role::Floor).is_some();
    let mut header = vec!["", "uslab", "median", "cycles", "ratio", "target", ""];
    if with_floor {
        header.push("ratio above hand-over");
    }
    header.extend(&others);
    let mut grid = Grid::new(&header);
    for row in rows {
        let subject = row.figure(Role::Subject);
        let mut cells = vec![
            row.title.clone(),
            number(subject.map(|f| f.ns.min)),
            number(subject.map(|f| f.ns.median)),
            cycles(subject.map(|f| f.cycles.min)),
            ratio(subject.and_then(|f| f.ratio)),
            target(row.target),
            mark(row.verdict).to_owned(),
        ];
        if with_floor {
            cells.push(ratio(subject.and_then(|f| f.ratio_above_floor)));
        }
        cells.extend(others.iter().map(|&name| {
            let best = if row.best_peer.as_deref() == Some(name) { "*" } else { "" };
            format!("{best}{}", number(row.named(name).map(|f| f.ns.min)))
        }));
        grid.row(cells);
    }
    grid.write(out)
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
        "\n{}, {} mode: {judged}{cut}; * best peer; {redone} of {rounds} rounds disturbed and redone",
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

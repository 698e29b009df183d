//! `uslab-bench orders`: time and memory against the slab order, from result files: as Markdown
//! tables, or with `--svg` as a picture.
//!
//! `cargo xtask results` puts both into docs/results. Must never: show a row of the fallback mode.

mod picture;

use crate::facts::date;
use crate::load::{self, Joined};
use crate::results::{Report, Role, Row, Run, Unit};
use crate::suites::order::{ORDERS, READINGS, Reading};
use crate::summary;
use clap::ValueHint;
use std::fmt::Write;
use std::path::PathBuf;

/// Arguments of `orders`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files that `--json` wrote, or folders of them; "-" and nothing at all are standard input
    #[arg(value_name = "RESULTS", value_hint = ValueHint::AnyPath)]
    results: Vec<PathBuf>,

    /// Draw the picture instead of the tables
    #[arg(long)]
    svg: bool,
}

/// The suite's run with sequences, and its file.
struct Measured<'a> {
    run: &'a Run,
    source: &'a Report,
}

/// The tables or the picture.
pub fn text(args: &Args) -> Result<String, String> {
    let mut joined = load::load(&args.results)?;
    joined.runs.retain(|taken| taken.run.suite == "order");
    let found = measured(&joined).ok_or("these results have no suite `order` with sequences")?;
    Ok(if args.svg { picture::svg(&found) } else { markdown(&found, &joined) })
}

fn measured(joined: &Joined) -> Option<Measured<'_>> {
    let taken = joined.of_suite("order").find(|taken| taken.run.mode == "rseq")?;
    Some(Measured { run: &taken.run, source: joined.source(taken) })
}

impl Measured<'_> {
    /// The rows of a reading, by size.
    fn rows<'a>(&'a self, reading: &'a Reading) -> impl Iterator<Item = &'a Row> {
        self.run.rows.iter().filter(move |row| row.group == reading.group)
    }
}

/// The least of a contestant's runs: nanoseconds, or resident bytes of a live byte.
fn least(row: &Row, contestant: &str) -> Option<f64> {
    let value = row.named(contestant)?.value.min;
    Some(if row.unit == Unit::Bytes { value / f64::from(1 << 20) } else { value })
}

fn markdown(found: &Measured, joined: &Joined) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_markdown(found, joined, &mut text);
    text
}

fn write_markdown(found: &Measured, joined: &Joined, out: &mut String) -> std::fmt::Result {
    let names: Vec<&str> = ORDERS.iter().map(|order| order.1).chain(["uslab", "deep queue"]).collect();
    for reading in &READINGS {
        let mut group = reading.group.chars();
        let first = group.next().into_iter().flat_map(char::to_uppercase);
        let unit = if reading.unit == Unit::Bytes { "" } else { ": nanoseconds an object" };
        writeln!(out, "**{}{unit}**\n", first.chain(group).collect::<String>())?;
        writeln!(out, "| object | {} |\n|---|{}", names.join(" | "), "---:|".repeat(names.len()))?;
        for row in found.rows(reading) {
            let digits = if reading.unit == Unit::Bytes { 2 } else { 1 };
            let cells = names.iter().map(|name| match least(row, name) {
                Some(value) => format!("{value:.digits$}"),
                None => "–".to_owned(),
            });
            writeln!(out, "| {} | {} |", row.title, cells.collect::<Vec<_>>().join(" | "))?;
        }
        writeln!(out)?;
    }
    if let Some(row) = found.run.rows.iter().find(|row| row.id == "build") {
        let figures = row.figures.iter().filter(|figure| matches!(figure.role, Role::Subject | Role::Peer));
        let said = figures.map(|figure| format!("{} {:.2} s", figure.contestant, figure.value.min));
        writeln!(out, "{} ({}): {}.\n", row.group, row.title, said.collect::<Vec<_>>().join(", "))?;
    }
    let machine = &found.source.machine;
    writeln!(
        out,
        "The least of {} runs, interleaved.\n{}, {}, {} CPUs; uslab {}, {}.",
        found.run.rows.iter().flat_map(|row| &row.figures).map(|figure| figure.rounds).max().unwrap_or(0),
        machine.cpu_model,
        machine.kernel,
        machine.cpus_allowed,
        found.source.build.version,
        date(found.source.started_unix_s)
    )?;
    let cautions = summary::cautions(joined);
    cautions.iter().try_for_each(|line| writeln!(out, "**{}**", line.trim_end_matches('.')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Figure;
    use crate::stats::Cost;

    /// A run in which order n takes 100 - n nanoseconds, and keeps n + 1 bytes.
    fn run() -> Run {
        let rows = READINGS.iter().flat_map(|reading| {
            [64, 4096].map(|size| {
                let figure = |name: &str, value: f64| Figure {
                    contestant: name.into(),
                    role: Role::Ours,
                    value: Cost { min: value, ..Cost::default() },
                    ..Figure::default()
                };
                let of_order = |&(order, name): &(u32, &str)| match reading.unit {
                    Unit::Bytes => figure(name, f64::from((order + 1) << 20)),
                    _ => figure(name, f64::from(100 - order)),
                };
                let id = format!("order/{size}/{}", reading.id);
                let row = Row::new(id, reading.group, format!("{size} B"));
                let figures = ORDERS.iter().map(of_order).collect();
                Row { unit: reading.unit, size_bytes: size, figures, ..row }
            })
        });
        Run { suite: "order".into(), mode: "rseq".into(), complete: true, rows: rows.collect() }
    }

    fn joined() -> Joined {
        let mut joined = crate::load::tests::sample();
        joined.runs.truncate(1);
        joined.runs[0].run = run();
        joined
    }

    #[test]
    fn a_table_has_a_line_a_size_and_a_column_an_order() {
        let joined = joined();
        let text = markdown(&measured(&joined).unwrap(), &joined);
        assert!(text.contains("| 64 B | 100.0 | 99.0 | 98.0 | 97.0 | 96.0 | 95.0 | – | – |"), "{text}");
        assert!(text.contains("| 4096 B | 1.00 | 2.00 | 3.00 | 4.00 | 5.00 | 6.00 | – | – |"), "{text}");
        assert_eq!(text.matches("| object |").count(), READINGS.len());
    }

    #[test]
    fn the_picture_has_a_panel_for_time_and_for_memory() {
        let joined = joined();
        let text = picture::svg(&measured(&joined).unwrap());
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(text.contains("prefers-color-scheme:dark"));
        assert!(text.contains("order 5") && text.contains("4096 B"), "{text}");
    }

    #[test]
    fn without_the_suite_there_is_a_line() {
        let mut joined = joined();
        joined.runs[0].run.mode = "locked".into();
        assert!(measured(&joined).is_none());
    }
}

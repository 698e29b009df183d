//! How far uslab's figures spread over the rows of a suite, each beside the best peer of its row:
//! the middle row, the best and the worst. README.md of the project has this table.
//!
//! Must never: leave out a program, or what is left of memory after frees.

use crate::load::Joined;
use crate::results::{Figure, Role, Row, Run};

/// A line: what it shows, the suite, how its rows' ids begin and end, and how a figure is read.
type Line = (&'static str, &'static str, &'static str, &'static str, fn(&Figure) -> f64);

const LINES: [Line; 4] = [
    ("Processor time of whole programs, medians", "programs", "program/", "/cpu", |of| of.value.median),
    ("The same, least times", "programs", "program/", "/cpu", |of| of.value.min),
    ("Their peak memory, medians", "programs", "program/", "/peak", |of| of.value.median),
    ("Memory left after 2 to 10 idle seconds", "rss", "rss/", "", |of| of.value.min),
];

/// The table as Markdown. A line whose suite was not measured says so.
pub fn markdown(joined: &Joined) -> String {
    let mut text = String::from("| | typical | best | worst | command |\n|---|---|---|---|---|\n");
    for (what, suite, begin, end, read) in LINES {
        let run = joined.of_suite(suite).find(|taken| taken.run.mode == "rseq").map(|taken| &taken.run);
        let rows = run.map(|run| ratios(run, begin, end, read)).unwrap_or_default();
        let shown = match rows.as_slice() {
            [] => "not measured | | ".to_owned(),
            [best, .., worst] => [&rows[rows.len() / 2], best, worst]
                .map(|(ratio, name)| format!("{ratio:.2} ({name})"))
                .join(" | "),
            [(ratio, name)] => format!("{ratio:.2} ({name}) | | "),
        };
        text.push_str(&format!("| {what} | {shown} | `uslab bench {suite}` |\n"));
    }
    text
}

/// The ratios of uslab to the best peer of each row with the row's name, the least first.
fn ratios(run: &Run, begin: &str, end: &str, read: fn(&Figure) -> f64) -> Vec<(f64, String)> {
    let ratio = |row: &Row| {
        let name = name(row.id.strip_prefix(begin)?.strip_suffix(end)?)?;
        let subject = row.figures.iter().find(|figure| figure.role == Role::Subject)?;
        let peers = row.figures.iter().filter(|figure| figure.role == Role::Peer);
        Some((read(subject) / peers.map(read).min_by(f64::total_cmp)?, name))
    };
    let mut ratios: Vec<(f64, String)> = run.rows.iter().filter_map(ratio).collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    ratios
}

/// The name of a program, or what was freed before memory idled. `None` for other rows of memory.
fn name(id: &str) -> Option<String> {
    match id {
        "mixed/idle100" => Some("256 MiB, all freed".into()),
        "mixed/idle90" => Some("256 MiB, a random tenth kept".into()),
        "cache/64/idle100" => Some("1 GiB of one cache, all freed".into()),
        "spaced/500/idle95" => Some("400 000 objects, every 20th kept".into()),
        _ => (!id.contains('/')).then(|| id.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Cost;

    fn figure(role: Role, min: f64, median: f64) -> Figure {
        Figure {
            role,
            value: Cost { min, median, median_low: min, median_high: median },
            ..Figure::default()
        }
    }

    fn row(id: &str, subject: f64) -> Row {
        let figures = vec![
            figure(Role::Subject, subject, 2.0 * subject),
            figure(Role::Peer, 2.0, 2.0),
            figure(Role::Peer, 1.0, 4.0),
        ];
        Row { figures, ..Row::new(id, "", "") }
    }

    #[test]
    fn each_row_is_compared_with_its_best_peer() {
        let rows = vec![row("program/a/cpu", 3.0), row("program/b/cpu", 1.0), row("program/a/peak", 9.0)];
        let run = Run { suite: "programs".into(), mode: "rseq".into(), complete: true, rows };
        let least = ratios(&run, "program/", "/cpu", |figure| figure.value.min);
        assert_eq!(least, [(1.0, "b".to_owned()), (3.0, "a".to_owned())]);
        let medians = ratios(&run, "program/", "/cpu", |figure| figure.value.median);
        assert_eq!(medians, [(1.0, "b".to_owned()), (3.0, "a".to_owned())]);
    }

    #[test]
    fn rows_of_memory_that_is_live_have_no_name() {
        assert_eq!(name("mixed/live"), None);
        assert!(name("mixed/idle90").is_some());
    }
}

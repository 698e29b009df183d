//! The programs of a suite taken together: how near each allocator, or each setting of uslab,
//! comes to the best one of every program.
//!
//! A program's figures are divided by the least of all allocators in that program; the geometric
//! mean of these ratios over all programs is an allocator's standing. 1.00 would be the best in
//! each of them. Of processor time both the least and the median of the runs stand here, because a
//! shared machine disturbs programs by more than allocators differ.
//!
//! Must never: judge. An allocator that lacks a figure of one program has no standing.

use crate::results::{Figure, Row, Run};

/// A figure that is compared: the column's name, the end of the rows' ids, and how it is read.
type Column = (&'static str, &'static str, fn(&Figure) -> f64);

const COLUMNS: [Column; 4] = [
    ("processor time, least", "/cpu", |figure| figure.value.min),
    ("processor time, median", "/cpu", |figure| figure.value.median),
    ("peak memory, median", "/peak", |figure| figure.value.median),
    ("mean memory, median", "/mean", |figure| figure.value.median),
];

/// An allocator over all programs.
#[derive(Debug, PartialEq)]
pub struct Standing {
    pub contestant: String,
    /// Of each column.
    pub means: [f64; COLUMNS.len()],
}

/// The names of the columns.
pub fn names() -> [&'static str; COLUMNS.len()] {
    COLUMNS.map(|(name, ..)| name)
}

/// The programs of a run with all figures.
pub fn programs(run: &Run) -> usize {
    rows(run, COLUMNS[0].1).len()
}

/// The standings, the least processor time first. Empty without rows of programs.
pub fn standings(run: &Run) -> Vec<Standing> {
    let Some(first) = rows(run, COLUMNS[0].1).first().copied() else { return Vec::new() };
    let standing = |figure: &Figure| {
        let mut means = [0.0; COLUMNS.len()];
        for (mean, (_, end, read)) in means.iter_mut().zip(COLUMNS) {
            *mean = geometric_mean(&rows(run, end), &figure.contestant, read)?;
        }
        Some(Standing { contestant: figure.contestant.clone(), means })
    };
    let mut all: Vec<Standing> = first.figures.iter().filter_map(standing).collect();
    all.sort_by(|a, b| a.means[0].total_cmp(&b.means[0]));
    all
}

fn rows<'a>(run: &'a Run, end: &str) -> Vec<&'a Row> {
    let is_program =
        |row: &&Row| ["program/", "hardening/", "profile/"].iter().any(|of| row.id.starts_with(of));
    run.rows.iter().filter(|row| is_program(row) && row.id.ends_with(end)).collect()
}

/// `None` where the contestant lacks a figure.
fn geometric_mean(rows: &[&Row], contestant: &str, read: fn(&Figure) -> f64) -> Option<f64> {
    let logs = rows.iter().map(|row| {
        let least = row.figures.iter().map(read).min_by(f64::total_cmp)?;
        Some((read(row.named(contestant)?) / least).ln())
    });
    let sum: f64 = logs.sum::<Option<f64>>()?;
    (!rows.is_empty()).then(|| (sum / rows.len() as f64).exp())
}

/// The standings as lines of text, with a heading; empty where there are none.
pub fn lines(run: &Run) -> Vec<String> {
    let standings = standings(run);
    if standings.is_empty() {
        return Vec::new();
    }
    let heading = format!(
        "all {} programs together: geometric mean of the ratios to the least of each; {}",
        programs(run),
        names().join("; ")
    );
    let line = |standing: &Standing| {
        let means: Vec<String> = standing.means.iter().map(|mean| format!("{mean:6.3}")).collect();
        format!("  {:<14}{}", standing.contestant, means.join("  "))
    };
    std::iter::once(heading).chain(standings.iter().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Cost;

    fn row(id: &str, figures: &[(&str, f64, f64)]) -> Row {
        let figure = |&(name, min, median): &(&str, f64, f64)| Figure {
            contestant: name.into(),
            value: Cost { min, median, median_low: min, median_high: median },
            ..Figure::default()
        };
        Row { figures: figures.iter().map(figure).collect(), ..Row::new(id, "", "") }
    }

    fn run(rows: Vec<Row>) -> Run {
        Run { suite: "programs".into(), mode: "rseq".into(), complete: true, rows }
    }

    #[test]
    fn a_standing_is_the_geometric_mean_to_the_least_of_each_program() {
        let both = |end: &str| {
            [
                row(&format!("program/a/{end}"), &[("x", 1.0, 4.0), ("y", 4.0, 4.0)]),
                row(&format!("program/b/{end}"), &[("x", 2.0, 2.0), ("y", 2.0, 8.0)]),
            ]
        };
        let run = run(["cpu", "peak", "mean"].iter().flat_map(|end| both(end)).collect());
        let standings = standings(&run);
        assert_eq!(standings.iter().map(|s| s.contestant.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(standings[0].means, [1.0; 4]);
        assert_eq!(standings[1].means, [2.0; 4]);
        assert_eq!(lines(&run)[1], "  x              1.000   1.000   1.000   1.000");
        assert!(lines(&run)[0].starts_with("all 2 programs together"), "{:?}", lines(&run));
    }

    #[test]
    fn who_lacks_a_program_has_no_standing() {
        let mut rows: Vec<Row> = ["cpu", "peak", "mean"]
            .iter()
            .map(|end| row(&format!("program/a/{end}"), &[("x", 1.0, 1.0), ("y", 2.0, 2.0)]))
            .collect();
        rows.push(row("program/b/peak", &[("x", 1.0, 1.0)]));
        assert_eq!(standings(&run(rows)).len(), 1);
        assert!(lines(&run(Vec::new())).is_empty());
        assert!(lines(&run(vec![row("pair/a/cpu", &[("x", 1.0, 1.0)])])).is_empty());
    }
}

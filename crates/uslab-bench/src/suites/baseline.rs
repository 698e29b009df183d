//! Percent against a baseline, with the mark where confidence is too low: how the suites of whole programs and of
//! the knobs compare.
//!
//! Must never: hide a difference because it is uncertain, or show one without its mark.

use crate::results::{Figure, Row};

/// The contestant that percents are against.
pub const BASELINE: &str = "glibc";

/// Of the medians: "+3.1 %" is 3.1 % more than the baseline, that is worse. "~" before it if one of the two is known
/// too badly, or if their 95 % intervals overlap, so that the difference may as well be none.
pub fn percent(figure: &Figure, row: &Row) -> String {
    let Some(base) = row.named(BASELINE) else { return "–".into() };
    if figure.contestant == base.contestant {
        return String::new();
    }
    let (ours, theirs) = (figure.value, base.value);
    let overlap = ours.median_low <= theirs.median_high && theirs.median_low <= ours.median_high;
    let one_run = figure.rounds < 3 || base.rounds < 3;
    let mark = if overlap || one_run || ours.unsure() || theirs.unsure() { "~" } else { "" };
    format!("{mark}{:+.1} %", (ours.median / theirs.median - 1.0) * 100.0)
}

/// Percent of one extra against the baseline's; there is one value of each, and nothing to say about confidence.
pub fn percent_of_extra(figure: &Figure, row: &Row, name: &str) -> String {
    let of = |figure: &Figure| figure.extra.get(name).copied();
    match (of(figure), row.named(BASELINE).and_then(of)) {
        (Some(ours), Some(theirs)) if theirs > 0.0 && figure.contestant != BASELINE => {
            format!("{:+.1} %", (ours / theirs - 1.0) * 100.0)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Cost, Role, Unit, Verdict};
    use std::collections::BTreeMap;

    fn figure(contestant: &str, low: f64, median: f64, high: f64, rounds: usize) -> Figure {
        Figure {
            contestant: contestant.into(),
            role: Role::Peer,
            value: Cost { min: low, median, median_low: low, median_high: high },
            cycles: None,
            extra: BTreeMap::from([("peak_bytes".into(), median)]),
            series: BTreeMap::new(),
            ratio: None,
            ratio_of_medians: None,
            ratio_above_floor: None,
            rounds,
            redone: 0,
        }
    }

    #[test]
    fn percents_are_marked_where_intervals_overlap_or_runs_are_few() {
        let figures = vec![
            figure(BASELINE, 99.0, 100.0, 101.0, 5),
            figure("apart", 109.0, 110.0, 111.0, 5),
            figure("close", 100.5, 101.0, 102.0, 5),
            figure("once", 110.0, 110.0, 110.0, 1),
        ];
        let row = Row {
            id: "x".into(),
            group: "g".into(),
            title: "t".into(),
            size_bytes: 0,
            live: 0,
            threads: 1,
            unit: Unit::Seconds,
            target: None,
            verdict: Verdict::None,
            best_peer: None,
            figures,
            published_cycles: BTreeMap::new(),
            skipped: Vec::new(),
        };
        let shown: Vec<_> = row.figures.iter().map(|figure| percent(figure, &row)).collect();
        assert_eq!(shown, ["", "+10.0 %", "~+1.0 %", "~+10.0 %"]);
        assert_eq!(percent_of_extra(&row.figures[1], &row, "peak_bytes"), "+10.0 %");
        assert_eq!(percent_of_extra(&row.figures[0], &row, "peak_bytes"), "");
    }
}

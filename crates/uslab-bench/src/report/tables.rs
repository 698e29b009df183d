//! The tables of a page: every figure of a group of rows, and what else was measured.
//!
//! Must never: hold a figure without its unit in its heading or beside it; round differently from the text tables.

use super::axis::{Amount, short};
use super::pick::percentile;
use super::words;
use crate::results::{Figure, Role, Row, Run, Verdict};
use crate::table;
use maud::{Markup, html};
use std::collections::BTreeSet;

/// The table of rows of one group.
pub fn figures(rows: &[Row], run: &Run) -> Markup {
    let Some(first) = rows.first() else { return html! {} };
    let others = others(rows);
    let published: BTreeSet<&String> = rows.iter().flat_map(|row| row.published_cycles.keys()).collect();
    let any = |has: fn(&Row) -> bool| rows.iter().any(has);
    let with_cycles = any(|row| row.figure(Role::Subject).is_some_and(|figure| figure.cycles.is_some()));
    let with_ratio = any(|row| row.best_peer.is_some());
    let with_target = any(|row| row.target.is_some());
    let with_floor = any(|row| row.figures.iter().any(|figure| figure.ratio_above_floor.is_some()));
    let caption = format!(
        "{}, uslab in {} mode: {}, minimum of the rounds",
        first.group,
        run.mode,
        table::unit_name(first.unit)
    );
    boxed(
        &caption,
        html! {
            table {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "row" }
                    th scope="col" class="us" { "uslab" }
                    th scope="col" { "median" }
                    @if with_cycles { th scope="col" { "cycles" } }
                    @if with_ratio { th scope="col" { "ratio to best" } }
                    @if with_floor { th scope="col" { "above floor" } }
                    @if with_target { th scope="col" { "target" } th scope="col" { "verdict" } }
                    @for name in &others { th scope="col" { (name) } }
                    @for name in &published { th scope="col" class="published" { (words(name)) ", cycles" } }
                } }
                tbody { @for row in rows {
                    @let subject = row.figure(Role::Subject);
                    tr {
                        th scope="row" { (row.title) }
                        td class="us" title=(subject.map_or(String::new(), |figure| rounds_of(figure, row))) {
                            (table::value(subject.map(|f| f.value.min), row.unit))
                        }
                        td { (table::value(subject.map(|f| f.value.median), row.unit)) @if subject.is_some_and(|f| f.value.unsure()) { span title="the rounds agree too little to compare percents" { "\u{202f}~" } } }
                        @if with_cycles { td { (table::cycles(subject.and_then(|f| f.cycles).map(|c| c.min))) } }
                        @if with_ratio { td { (table::ratio(subject.and_then(|f| f.ratio))) } }
                        @if with_floor { td { (table::ratio(subject.and_then(|f| f.ratio_above_floor))) } }
                        @if with_target { td { (table::target(row.target)) } td { (verdict(row.verdict)) } }
                        @for name in &others { (other(row, name)) }
                        @for name in &published { td class="published" { @if let Some(cycles) = row.published_cycles.get(*name) { (short(*cycles)) } } }
                    }
                } }
            }
        },
    )
}

/// Everybody but the subject, whose name may differ from row to row, has a column.
fn others(rows: &[Row]) -> Vec<&str> {
    let mut others: Vec<&str> = Vec::new();
    for figure in rows.iter().flat_map(|row| &row.figures).filter(|figure| figure.role != Role::Subject) {
        if !others.contains(&figure.contestant.as_str()) {
            others.push(&figure.contestant);
        }
    }
    others
}

fn other(row: &Row, name: &str) -> Markup {
    let figure = row.figures.iter().find(|figure| figure.role != Role::Subject && figure.contestant == name);
    let best = row.best_peer.as_deref() == Some(name);
    html! {
        @if let Some(figure) = figure {
            td class=[best.then_some("best")] title=(rounds_of(figure, row)) {
                (table::value(Some(figure.value.min), row.unit))
                @if let Some(ratio) = figure.ratio { small { "×" (short(ratio)) } }
            }
        } @else { td { "–" } }
    }
}

/// How a figure came about, for its tooltip.
fn rounds_of(figure: &Figure, row: &Row) -> String {
    let value = |value| table::value(Some(value), row.unit);
    let redone =
        if figure.redone > 0 { format!(", {} disturbed and redone", figure.redone) } else { String::new() };
    format!(
        "{}: median {} (95 %: {} to {}), {} rounds{redone}",
        figure.contestant,
        value(figure.value.median),
        value(figure.value.median_low),
        value(figure.value.median_high),
        figure.rounds
    )
}

pub fn verdict(verdict: Verdict) -> Markup {
    match verdict {
        Verdict::Pass => html! { span class="met" { "✓ met" } },
        Verdict::Miss => html! { span class="missed" { "✗ missed" } },
        Verdict::None => html! {},
    }
}

/// What else was measured: a line a row and contestant, a column an extra.
pub fn extras(rows: &[Row]) -> Markup {
    let mut names: Vec<&String> =
        rows.iter().flat_map(|row| &row.figures).flat_map(|f| f.extra.keys()).collect();
    names.sort_by_key(|name| (natural(name), *name));
    names.dedup();
    let Some(first) = rows.first().filter(|_| !names.is_empty()) else { return html! {} };
    let caption = format!("{}: what else was measured", first.group);
    boxed(
        &caption,
        html! {
            table {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "row" }
                    th scope="col" class="words" { "who" }
                    @for name in &names { th scope="col" { (heading(name)) } }
                } }
                tbody { @for row in rows { @for figure in row.figures.iter().filter(|figure| !figure.extra.is_empty()) {
                    tr {
                        th scope="row" { (row.title) }
                        td class=(if figure.role == Role::Subject { "words us" } else { "words" }) { (figure.contestant) }
                        @for name in &names { td { (extra(name, figure.extra.get(*name).copied())) } }
                    }
                } } }
            }
        },
    )
}

/// Percentiles stand in their order, p99 before p99_9, and the maximum behind them.
fn natural(name: &str) -> (String, u64) {
    // Bits of positive floats are in the floats' order.
    percentile(name).map_or_else(|| (name.to_owned(), 0), |(of, rank, _)| (of, rank.to_bits()))
}

/// The unit of an extra's values, by the end of its name; [`extra`] shows bytes as MiB.
fn heading(name: &str) -> String {
    match name.rsplit_once('_') {
        Some((rest, "bytes")) => format!("{}, MiB", words(rest)),
        Some((rest, unit @ ("ns" | "s"))) => format!("{}, {unit}", words(rest)),
        _ => words(name),
    }
}

fn extra(name: &str, value: Option<f64>) -> String {
    let Some(value) = value else { return "–".into() };
    if name.ends_with("_bytes") { format!("{:.2}", Amount::Mib.scaled(value)) } else { short(value) }
}

/// Who could not take part, once each.
pub fn skipped(rows: &[Row]) -> Markup {
    let lines: BTreeSet<(&str, &str)> = rows
        .iter()
        .flat_map(|row| &row.skipped)
        .map(|skipped| (skipped.contestant.as_str(), skipped.why.as_str()))
        .collect();
    html! { @for (who, why) in lines { p class="note" { "Left out: " (who) ": " (why) } } }
}

/// A box that scrolls by itself, so that the page need not; reachable by keyboard.
pub fn boxed(label: &str, content: Markup) -> Markup {
    html! { div class="table" role="region" aria-label=(label) tabindex="0" { (content) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extras_have_their_unit_and_stand_in_order() {
        assert_eq!(
            [heading("peak_bytes"), heading("p99_9_ns"), heading("switches")],
            ["peak, MiB", "p99 9, ns", "switches"]
        );
        assert_eq!(extra("peak_bytes", Some(3.0 * 1048576.0)), "3.00");
        let mut names = ["max_ns", "p99_ns", "p50_ns", "p99_9_ns"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["p50_ns", "p99_ns", "p99_9_ns", "max_ns"]);
    }
}

//! The page around charts and tables: what was measured on, the claims, a section a suite.
//!
//! Must never: refer to anything outside itself, or hide by default what only a screen could open again.

use super::load::{Joined, Taken};
use super::pick::{Palette, Picture, groups, pictures};
use super::tables;
use crate::results::{Report, Row, Verdict};
use crate::suites;
use crate::summary::{self, Fact};
use crate::table;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

pub fn page(joined: &Joined) -> String {
    let palette = Palette::of(joined.runs.iter().map(|taken| &taken.run));
    let body = html! {
        header {
            h1 { "uslab benchmark results" }
            p { "Costs beside other allocators: in every unit less is better, and the best peer is the best of its own row." }
            @for line in summary::cautions(joined) { p class="caution" { (line) } }
            (facts(joined))
        }
        (PreEscaped("\n"))
        main {
            (claims(joined))
            (PreEscaped("\n"))
            @for suite in joined.suites() { (section(joined, suite, &palette)) (PreEscaped("\n")) }
        }
        footer { p {
            "* in bold: the best peer of the row. × its ratio to that peer. ~ the rounds agree too little to compare percents. "
            "Hold the pointer over a figure or a point for its details. Made by " code { "uslab bench report" } "."
        } }
    };
    let page = html! {
        (DOCTYPE) (PreEscaped("\n"))
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "uslab benchmark results" }
                style { (PreEscaped("\n")) (PreEscaped(STYLE)) }
            }
            (PreEscaped("\n"))
            body { (body) }
        }
    };
    format!("{}\n", page.into_string())
}

/// Machine, build and method of every file, once where they are the same.
fn facts(joined: &Joined) -> Markup {
    let told = summary::facts(joined);
    let several = told.len() > 1;
    html! {
        @for fact in &told {
            section class="facts" aria-label="What it was measured on and with" {
                @if several { h2 { (fact.suites.join(", ")) } }
                dl { @for (name, text) in &fact.lines { dt { (name) } dd { (text) } } }
                (contestants(fact))
                @for missing in &fact.report.missing { p class="note" { "Left out: " (missing.contestant) ": " (missing.why) } }
            }
        }
    }
}

fn contestants(fact: &Fact) -> Markup {
    let about = &fact.report.contestants;
    tables::boxed(
        "Contestants",
        html! {
            table class="who" {
                caption { "Contestants" }
                thead { tr { th scope="col" { "who" } th scope="col" class="words" { "version" } th scope="col" class="words" { "how it was built and is called" } } }
                tbody { @for about in about {
                    tr {
                        th scope="row" { (about.name) }
                        td class="words" { (about.version) }
                        td class="words" { (about.build) @if !about.warning.is_empty() { strong class="missed" { " " (about.warning) } } }
                    }
                } }
            }
        },
    )
}

/// The summary's table, and the way to the suites.
fn claims(joined: &Joined) -> Markup {
    html! {
        section aria-label="Claims" {
            h2 { "In short" }
            (tables::boxed("Claims", html! {
                table {
                    caption { "The worst judged row of each claim" }
                    thead { tr {
                        @for (name, words) in summary::COLUMNS { th scope="col" class=[words.then_some("words")] { (name) } }
                    } }
                    tbody { @for claim in summary::claims(joined) {
                        tr {
                            th scope="row" { (claim.name) }
                            @if let Some(found) = &claim.found {
                                td class="words" { (found.row) }
                                td class="us" { (found.ours) }
                                td { (found.best) }
                                td class="words" { (found.best_name) }
                                td { (table::ratio(Some(found.ratio))) }
                                td { (found.target) }
                                td class="words" { span class=(if found.all_met() { "met" } else { "missed" }) { (if found.all_met() { "✓ " } else { "✗ " }) (found.verdict()) } }
                            } @else { td class="words" colspan="7" { "not measured in these results" } }
                        }
                    } }
                }
            }))
            nav aria-label="Suites" { ul { @for suite in joined.suites() {
                li { a href=(format!("#{}", anchor(suite))) { (suite) } " " (counted(joined, suite)) }
            } } }
        }
    }
}

/// A name fit for an id, whatever the file said.
fn anchor(suite: &str) -> String {
    let plain: String = suite.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("suite-{plain}")
}

fn counted(joined: &Joined, suite: &str) -> String {
    let rows = || joined.of_suite(suite).flat_map(|taken| &taken.run.rows);
    let count = |verdict| rows().filter(|row| row.verdict == verdict).count();
    match (count(Verdict::Pass), count(Verdict::Miss)) {
        (0, 0) => "not judged".into(),
        (pass, miss) => format!("{pass} of {} targets met", pass + miss),
    }
}

fn section(joined: &Joined, suite: &str, palette: &Palette) -> Markup {
    let runs: Vec<&Taken> = joined.of_suite(suite).collect();
    let Some((first, others)) = runs.split_first() else { return html! {} };
    let other = others.first().map_or(&[][..], |taken| taken.run.rows.as_slice());
    html! {
        section id=(anchor(suite)) {
            h2 { (suite) small { (counted(joined, suite)) } }
            @if let Some(known) = suites::find(suite) { p { (known.summary()) } }
            @for rows in groups(&first.run.rows) { (group(rows, other, first, palette)) }
            (closing(first, joined.source(first)))
            @for taken in others {
                h3 { "The same in " (taken.run.mode) " mode" }
                @for rows in groups(&taken.run.rows) { (group_tables(rows, taken)) }
                (closing(taken, joined.source(taken)))
            }
        }
    }
}

fn group(rows: &[Row], other: &[Row], taken: &Taken, palette: &Palette) -> Markup {
    let pictures = pictures(rows, other, palette);
    html! {
        @if let Some(first) = rows.first() { h3 { (first.group) } }
        @if !pictures.is_empty() {
            div class="charts" { @for picture in &pictures {
                @match picture {
                    Picture::Lines(chart) => { (chart.figure()) }
                    Picture::Bars(chart) => { (chart.figure()) }
                }
            } }
        }
        (group_tables(rows, taken))
        (PreEscaped("\n"))
    }
}

fn group_tables(rows: &[Row], taken: &Taken) -> Markup {
    html! { (tables::figures(rows, &taken.run)) (tables::extras(rows)) (tables::skipped(rows)) }
}

/// What weakens a run's figures.
fn closing(taken: &Taken, report: &Report) -> Markup {
    let figures = || taken.run.rows.iter().flat_map(|row| &row.figures);
    let redone: usize = figures().map(|figure| figure.redone).sum();
    let rounds: usize = figures().map(|figure| figure.rounds).sum();
    html! {
        p class="note" {
            (taken.run.mode) " mode, " (summary::date(report.started_unix_s)) ": "
            (redone) " of " (rounds) " rounds disturbed and redone"
            @if !taken.run.complete { "; interrupted: these are the rows that were done" }
            "."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::sample;
    use super::*;

    #[test]
    fn a_page_stands_alone_and_has_everything() {
        let page = page(&sample());
        // The namespace of SVG in HTML need not be named, so there is no address at all.
        for outside in ["http:", "https:", "src=", "<script", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        for part in
            ["In short", "suite-pair", "suite-bulk", "<svg", "percentile", "slab 2015 bulk", "locked mode"]
        {
            assert!(page.contains(part), "no {part}");
        }
        for bad in ["NaN", "inf\"", "class=\"peer10"] {
            assert!(!page.contains(bad), "{bad}");
        }
        assert!(page.lines().count() < 600);
    }

    #[test]
    fn the_same_results_give_the_same_page() {
        assert_eq!(page(&sample()), page(&sample()));
    }

    #[test]
    fn what_a_file_says_is_text() {
        let mut joined = sample();
        let run = &mut joined.runs[0].run;
        run.suite = "<img onerror=x>\"'".into();
        run.rows[0].group = "<script>".into();
        run.rows[0].figures[0].contestant = "</svg><b>".into();
        joined.sources[0].report.machine.cpu_model = "<i>".into();
        let page = page(&joined);
        for bad in ["<img", "<script", "</svg><b>", "<i>"] {
            assert!(!page.contains(bad), "{bad}");
        }
    }

    #[test]
    fn odd_values_make_a_page_still() {
        let mut joined = sample();
        let odd = [0.0, -1.0, 1e300, 1e-300, f64::MAX];
        for (i, figure) in
            joined.runs.iter_mut().flat_map(|t| &mut t.run.rows).flat_map(|r| &mut r.figures).enumerate()
        {
            figure.value.min = odd[i % odd.len()];
            figure.series.values_mut().flatten().for_each(|point| *point = [odd[i % 5], odd[(i + 1) % 5]]);
            figure.extra.values_mut().for_each(|value| *value = odd[(i + 2) % 5]);
        }
        let page = page(&joined);
        assert!(!page.contains("NaN") && page.ends_with("</html>\n"));
        for taken in &mut joined.runs {
            taken.run.rows.clear();
        }
        assert!(super::page(&joined).ends_with("</html>\n"));
    }

    /// WCAG's contrast of two colours of the stylesheet.
    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |colour: &str| {
            let channel = |at: usize| {
                let c = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
                if c <= 0.03928 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
        };
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn every_colour_of_a_text_can_be_read_in_both_themes() {
        let (light, dark) = STYLE.split_once("prefers-color-scheme: dark").unwrap();
        for theme in [light, dark.split_once("@media").unwrap().0] {
            let colours: Vec<(&str, &str)> = theme
                .lines()
                .filter_map(|line| line.trim().strip_prefix("--")?.strip_suffix(';')?.split_once(": "))
                .filter(|colour| colour.1.starts_with('#'))
                .collect();
            let of = |name| colours.iter().find(|colour| colour.0 == name).unwrap().1;
            for (name, colour) in
                colours.iter().filter(|colour| !["paper", "shade", "rule"].contains(&colour.0))
            {
                for ground in ["paper", "shade"] {
                    let contrast = contrast(colour, of(ground));
                    assert!(contrast >= 4.5, "{name} {colour} on {ground}: {contrast:.2}");
                }
            }
            assert!(colours.len() >= 10 + super::super::pick::PEER_COLOURS);
        }
    }
}

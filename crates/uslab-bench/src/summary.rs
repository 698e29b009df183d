//! `uslab-bench summary`: the claims of the project as one Markdown table, from result files.
//!
//! A claim is a set of judged rows. Its line shows the row that is furthest from its target, and
//! the number of rows that met theirs. docs/results/README.md has this table between two markers;
//! `cargo xtask results` puts it there and CI checks it. Must never: show a row of the fallback
//! mode, or leave a claim out because it was missed or not measured.

use crate::facts::{self, date};
use crate::load::{self, Joined, Taken};
use crate::overall;
use crate::results::{About, QUICK_ROUNDS, Report, Role, Row, Skipped, Unit, Verdict};
use crate::spread;
use crate::table;
use clap::ValueHint;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

/// Arguments of `summary`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files that `--json` wrote, or folders of them; "-" and nothing at all are standard input
    #[arg(value_name = "RESULTS", value_hint = ValueHint::AnyPath)]
    results: Vec<PathBuf>,

    /// Put the machine, the build, the method and the versions before the table
    #[arg(long)]
    facts: bool,

    /// Only how far the ratios to the best peer spread over whole programs and rows of memory
    #[arg(long, conflicts_with = "facts")]
    spread: bool,
}

/// Which rows a claim is made of: a suite, how the rows' ids begin, and how they end.
struct Rows(&'static str, &'static str, &'static str);

impl Rows {
    fn has(&self, suite: &str, id: &str) -> bool {
        suite == self.0 && id.starts_with(self.1) && id.ends_with(self.2)
    }
}

const CLAIMS: &[(&str, &[Rows])] = &[
    ("Typed cache, one at a time", &[Rows("pair", "cache/", "")]),
    ("malloc and free", &[Rows("pair", "malloc/", "")]),
    ("Bulk of 64", &[Rows("bulk", "bulk/256/n", "")]),
    ("Batches of 10000", &[Rows("batch10000", "", "")]),
    ("Objects that change threads", &[Rows("remote", "", ""), Rows("xmalloc", "", "")]),
    ("Single calls, p99.99", &[Rows("latency", "", "")]),
    (
        "Memory",
        &[Rows("rss", "", ""), Rows("threads", "resident", ""), Rows("threads", "preloaded/", "/resident")],
    ),
];

/// The table's columns; those from the third that hold numbers stand to the right.
pub const COLUMNS: [&str; 8] = ["claim", "worst row", "uslab", "best peer", "which", "ratio", "target", ""];

/// A line of the table.
#[derive(Debug, Serialize)]
pub struct Claim {
    pub cells: [String; 8],
    /// Whether each of its judged rows met its target.
    pub met: bool,
}

pub fn claims(joined: &Joined) -> Vec<Claim> {
    CLAIMS.iter().map(|(name, rows)| found(joined, name, rows).unwrap_or_else(|| unmeasured(name))).collect()
}

fn unmeasured(name: &str) -> Claim {
    let mut cells = <[String; 8]>::default();
    (cells[0], cells[1]) = (name.to_owned(), "not measured in these results".to_owned());
    Claim { cells, met: false }
}

fn found(joined: &Joined, name: &str, claimed: &[Rows]) -> Option<Claim> {
    let judged: Vec<(&Row, Standing)> = joined
        .runs
        .iter()
        .filter(|taken| taken.run.mode == "rseq" && !joined.source(taken).options.check)
        .flat_map(|taken| taken.run.rows.iter().map(move |row| (&taken.run.suite, row)))
        .filter(|(suite, row)| claimed.iter().any(|rows| rows.has(suite, &row.id)))
        .filter_map(|(_, row)| Some((row, standing(row)?)))
        .collect();
    let (worst, standing) = judged.iter().max_by(|a, b| a.1.strain.total_cmp(&b.1.strain))?;
    let subject = worst.figure(Role::Subject)?;
    let best = worst.best_peer.as_ref().and_then(|name| worst.named(name));
    let (met, all) = (judged.iter().filter(|(_, standing)| standing.met).count(), judged.len());
    let verdict = match (met, all) {
        (1, 1) => "met".into(),
        (0, 1) => "missed".into(),
        _ if met == all => format!("met in all {all} rows"),
        _ => format!("met in {met} of {all} rows"),
    };
    let cells = [
        name.to_owned(),
        worst.title.clone(),
        with_unit(subject.value.min, worst.unit),
        best.map_or("–".into(), |best| with_unit(best.value.min, worst.unit)),
        best.map_or("–".into(), |best| best.contestant.clone()),
        table::ratio(subject.ratio),
        standing.target.clone(),
        verdict,
    ];
    Some(Claim { cells, met: met == all })
}

/// A row against its target or limit.
struct Standing {
    /// The value divided by its target or limit.
    strain: f64,
    target: String,
    met: bool,
}

fn standing(row: &Row) -> Option<Standing> {
    let subject = row.figure(Role::Subject)?;
    if let (Some(ratio), Some(target), true) = (subject.ratio, row.target, row.verdict != Verdict::None) {
        let met = row.verdict == Verdict::Pass;
        return Some(Standing { strain: ratio / target, target: table::target(Some(target)), met });
    }
    let (limit, value) = (subject.limit()?, subject.value.min);
    let target = format!("≤ {}", with_unit(limit, row.unit));
    Some(Standing { strain: value / limit, target, met: value <= limit })
}

fn with_unit(value: f64, unit: Unit) -> String {
    let name = match unit {
        Unit::Ns => "ns",
        Unit::Seconds => "s",
        Unit::Bytes => "MiB",
        Unit::Count => "",
    };
    format!("{} {name}", table::value(Some(value), unit)).trim_end().to_owned()
}

/// The weaknesses of the results as a whole, a line each.
pub fn cautions(joined: &Joined) -> Vec<String> {
    let any = |is: fn(&Report) -> bool| joined.sources.iter().any(is);
    let mut lines = Vec::new();
    if any(|report| report.options.check) {
        lines.push("Run with --check, for function only: these figures mean nothing.".into());
    } else if any(|report| report.options.rounds <= QUICK_ROUNDS) {
        lines.push("Run with --quick: a first look with few rounds, no figures to quote.".into());
    }
    if any(|report| report.build.unfit().is_some()) {
        lines.push("Measured with a build that was not optimised: these figures mean nothing.".into());
    }
    let set: BTreeSet<String> =
        joined.sources.iter().map(|report| facts::variables(&report.machine)).collect();
    for variables in set.iter().filter(|variables| !variables.is_empty()) {
        lines.push(format!("Measured with allocators set up by the caller: {variables}."));
    }
    if facts_of(joined).len() > 1 {
        lines.push(
            "Joined from runs of different machines, builds or options: compare within a suite only.".into(),
        );
    }
    let incomplete: Vec<&str> = joined
        .runs
        .iter()
        .filter(|taken| !taken.run.complete)
        .map(|taken| taken.run.suite.as_str())
        .collect();
    if !incomplete.is_empty() {
        lines.push(format!("Interrupted, with the rows that were done: {}.", incomplete.join(", ")));
    }
    lines
}

/// The machine, build and options of runs that share them.
#[derive(Serialize)]
pub struct Fact<'a> {
    pub suites: Vec<String>,
    pub lines: Vec<(&'static str, String)>,
    contestants: &'a [About],
    missing: &'a [Skipped],
    #[serde(skip)]
    report: &'a Report,
    /// Suites that another commit than the report's measured, by commit.
    #[serde(skip)]
    apart: Vec<(&'a str, Vec<String>)>,
}

/// The facts, once for all files that agree in them.
pub fn facts_of(joined: &Joined) -> Vec<Fact<'_>> {
    let mut facts: Vec<Fact> = Vec::new();
    for (index, report) in joined.sources.iter().enumerate() {
        let runs = joined.runs.iter().filter(|taken| taken.source == index);
        let mut suites: Vec<String> = runs.map(|taken| taken.run.suite.clone()).collect();
        suites.dedup();
        match facts.iter_mut().find(|fact| same(fact.report, report)) {
            Some(fact) => {
                suites.retain(|suite| !fact.suites.contains(suite));
                fact.note_commit(report, &suites);
                fact.suites.extend(suites);
            }
            None => facts.push(Fact {
                suites,
                lines: Vec::new(),
                contestants: &report.contestants,
                missing: &report.missing,
                report,
                apart: Vec::new(),
            }),
        }
    }
    for fact in &mut facts {
        let runs = joined.runs.iter().filter(|taken| same(fact.report, joined.source(taken)));
        fact.lines = facts::lines(fact.report, runs.map(|taken| &taken.run));
        fact.tell_commits();
    }
    facts
}

impl<'a> Fact<'a> {
    /// Notes the commit that measured `suites`, unless it is that of the first suites.
    fn note_commit(&mut self, report: &'a Report, suites: &[String]) {
        let Some(commit) = report.build.commit.as_deref() else { return };
        if suites.is_empty() || self.report.build.commit.as_deref() == Some(commit) {
            return;
        }
        match self.apart.iter_mut().find(|(other, _)| *other == commit) {
            Some((_, noted)) => noted.extend_from_slice(suites),
            None => self.apart.push((commit, suites.to_vec())),
        }
    }

    /// Adds the commits that it noted to the line about uslab.
    fn tell_commits(&mut self) {
        let line = self.lines.iter_mut().find(|(name, _)| *name == "uslab");
        if let Some((_, text)) = line {
            self.apart.iter().for_each(|(commit, suites)| {
                let _ = write!(text, "; {} by commit {commit}", suites.join(", "));
            });
        }
    }
}

/// Whether figures of both may be compared.
fn same(a: &Report, b: &Report) -> bool {
    let key = |report: &Report| {
        let (m, b, o) = (&report.machine, &report.build, &report.options);
        (
            [m.cpu_model.clone(), m.kernel.clone(), m.transparent_hugepages.clone(), facts::variables(m)],
            [m.cpus_allowed, m.cpus_online, m.page_size_bytes],
            [b.version.clone(), b.opt_level.clone(), b.rustc.clone(), b.rustflags.clone(), b.cc.clone()],
            (o.object_size_bytes, o.touch, format!("{:?}", o.order), o.check, o.rounds),
        )
    };
    key(a) == key(b)
}

/// The summary as Markdown.
pub fn text(args: &Args) -> Result<String, String> {
    let joined = load::load(&args.results)?;
    Ok(if args.spread { spread::markdown(&joined) } else { markdown(&joined, args.facts) })
}

fn markdown(joined: &Joined, with_facts: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_markdown(joined, with_facts, &mut text);
    text
}

fn write_markdown(joined: &Joined, with_facts: bool, out: &mut String) -> std::fmt::Result {
    for fact in facts_of(joined).iter().filter(|_| with_facts) {
        writeln!(out, "| {} | |\n|---|---|", cell(&fact.suites.join(", ")))?;
        fact.lines.iter().try_for_each(|(name, text)| writeln!(out, "| {name} | {} |", cell(text)))?;
        for about in fact.contestants {
            let warning =
                if about.warning.is_empty() { String::new() } else { format!("; **{}**", about.warning) };
            let about_text = format!("{}, {}{warning}", about.version, about.build);
            writeln!(out, "| {} | {} |", cell(&about.name), cell(&about_text))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "| {} |", COLUMNS.join(" | "))?;
    writeln!(out, "|---|---|---:|---:|---|---:|---:|---|")?;
    for claim in claims(joined) {
        writeln!(out, "| {} |", claim.cells.map(|text| cell(&text)).join(" | "))?;
    }
    let claimed = |taken: &&Taken| CLAIMS.iter().flat_map(|claim| claim.1).any(|c| c.0 == taken.run.suite);
    let last = joined.runs.iter().filter(claimed).map(|taken| taken.source).max();
    let Some(last) = last.map(|source| &joined.sources[source]).or(joined.sources.last()) else {
        return Ok(());
    };
    let m = &last.machine;
    writeln!(
        out,
        "\nOf each claim the row that is worst off against its target; the minimum of interleaved rounds.\n{}, {}, {} CPUs; uslab {}, {}.",
        m.cpu_model,
        m.kernel,
        m.cpus_allowed,
        last.build.version,
        date(last.started_unix_s)
    )?;
    write_standings(joined, out)?;
    for line in cautions(joined) {
        writeln!(out, "**{}**", line.trim_end_matches('.'))?;
    }
    Ok(())
}

/// All programs together, with restartable sequences.
fn write_standings(joined: &Joined, out: &mut String) -> std::fmt::Result {
    let Some(taken) = joined.of_suite("programs").find(|taken| taken.run.mode == "rseq") else {
        return Ok(());
    };
    let standings = overall::standings(&taken.run);
    if standings.is_empty() || joined.source(taken).options.check {
        return Ok(());
    }
    writeln!(
        out,
        "\n**{} whole programs together**: the geometric mean of the ratios to the least of each program, {}.\n",
        overall::programs(&taken.run),
        date(joined.source(taken).started_unix_s)
    )?;
    writeln!(out, "| | {} |\n|---|{}", overall::names().join(" | "), "---:|".repeat(overall::names().len()))?;
    for standing in standings {
        let means = standing.means.map(|mean| format!("{mean:.3}")).join(" | ");
        writeln!(out, "| {} | {means} |", cell(&standing.contestant))?;
    }
    writeln!(out)
}

/// A text as one cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::sample;
    use crate::results::LIMIT_BYTES;

    fn unclaimed(claim: &Claim) -> bool {
        claim.cells[1].contains("not measured") && !claim.met
    }

    #[test]
    fn a_claim_shows_its_worst_row_and_counts_all() {
        let mut joined = sample();
        let taken = joined.runs.iter_mut().find(|t| t.run.suite == "pair" && t.run.mode == "rseq").unwrap();
        let mut judged: Vec<&mut Row> =
            taken.run.rows.iter_mut().filter(|row| row.id.starts_with("malloc/")).collect();
        for (i, row) in judged.iter_mut().enumerate() {
            row.target = Some(0.5);
            row.verdict = if i == 1 { Verdict::Miss } else { Verdict::Pass };
            let ratio = if i == 1 { 0.75 } else { 0.25 };
            row.figures.iter_mut().find(|f| f.role == Role::Subject).unwrap().ratio = Some(ratio);
        }
        let (count, worst) = (judged.len(), judged[1].title.clone());
        let Claim { cells, met } = &claims(&joined)[1];
        assert_eq!((cells[1].as_str(), cells[5].as_str(), *met), (worst.as_str(), "0.750", false));
        assert_eq!(cells[7], format!("met in {} of {count} rows", count - 1));
        let text = markdown(&joined, false);
        assert!(text.contains("| malloc and free | "), "{text}");
        assert!(text.contains("0.750 | ≤ 0.50 | met in "), "{text}");
    }

    #[test]
    fn memory_has_the_rows_of_threads_linked_and_preloaded() {
        let (_, rows) = CLAIMS.iter().find(|claim| claim.0 == "Memory").unwrap();
        let has = |id: &str| rows.iter().any(|rows| rows.has("threads", id));
        let ids = ["resident/t64", "preloaded/t8/resident", "preloaded/t8/time", "mixed/t8"];
        assert_eq!(ids.map(has), [true, true, false, false]);
    }

    #[test]
    fn what_was_not_measured_is_said_so() {
        let mut joined = sample();
        joined.runs.retain(|taken| taken.run.suite == "bulk");
        let text = markdown(&joined, false);
        assert_eq!(text.matches("not measured in these results").count(), CLAIMS.len() - 1, "{text}");
        // Every line of the table has as many cells as its heading.
        let widths: Vec<usize> =
            text.lines().filter(|line| line.starts_with('|')).map(|line| line.matches('|').count()).collect();
        assert!(widths.iter().all(|&width| width == COLUMNS.len() + 1), "{widths:?}");
    }

    #[test]
    fn a_limit_in_bytes_is_a_target_as_well() {
        let mut joined = sample();
        let taken = joined.runs.iter_mut().find(|taken| taken.run.suite == "sample").unwrap();
        taken.run.suite = "rss".into();
        let row = taken.run.rows.iter_mut().find(|row| row.unit == Unit::Bytes).unwrap();
        let subject = row.figures.iter_mut().find(|figure| figure.role == Role::Subject).unwrap();
        subject.extra.insert(LIMIT_BYTES.into(), 3.0 * f64::from(1 << 20));
        subject.value.min = 2.0 * f64::from(1 << 20);
        let Claim { cells, met } = claims(&joined).pop().unwrap();
        assert_eq!((cells[2].as_str(), cells[6].as_str(), met), ("2.00 MiB", "≤ 3.00 MiB", true));
        // A row that no peer took part in counts all the same.
        let taken = joined.runs.iter_mut().find(|taken| taken.run.suite == "rss").unwrap();
        let row = taken.run.rows.iter_mut().find(|row| row.unit == Unit::Bytes).unwrap();
        row.best_peer = None;
        row.figures.retain(|figure| figure.role == Role::Subject);
        let Claim { cells, met } = claims(&joined).pop().unwrap();
        assert_eq!(
            (cells[2].as_str(), cells[3].as_str(), cells[4].as_str(), met),
            ("2.00 MiB", "–", "–", true)
        );
        joined.sources[0].options.check = true;
        assert!(claims(&joined).iter().all(unclaimed), "a run for function claims nothing");
    }

    #[test]
    fn the_fallback_makes_no_claim() {
        let mut joined = sample();
        joined.runs.retain(|taken| taken.run.mode == "locked");
        joined.runs.iter_mut().flat_map(|t| &mut t.run.rows).for_each(|row| row.verdict = Verdict::Pass);
        assert!(claims(&joined).iter().all(unclaimed));
    }

    #[test]
    fn files_that_agree_have_their_facts_once() {
        let mut joined = sample();
        assert_eq!(facts_of(&joined).len(), 1);
        let mut second = joined.sources[0].clone();
        second.machine.load_average = "9".into();
        joined.sources.push(second);
        assert_eq!(facts_of(&joined).len(), 1);
        joined.sources[1].machine.kernel = "Linux 1".into();
        assert_eq!(facts_of(&joined).len(), 2);
        assert!(cautions(&joined).iter().any(|line| line.contains("different machines")));
    }

    #[test]
    fn settings_of_allocators_are_a_fact_and_a_caution() {
        let mut joined = sample();
        joined.sources[0].machine.variables = [("USLAB_SECURE".into(), "1".into())].into();
        assert!(cautions(&joined).iter().any(|line| line.ends_with("caller: USLAB_SECURE=1.")));
        assert!(facts_of(&joined)[0].lines.contains(&("variables", "USLAB_SECURE=1".into())));
    }

    #[test]
    fn suites_that_another_commit_measured_are_told_apart() {
        let mut joined = sample();
        joined.sources.push(joined.sources[0].clone());
        joined.sources[0].build.commit = Some("abc".into());
        joined.sources[1].build.commit = Some("def".into());
        let last = joined.runs.last_mut().unwrap();
        (last.source, last.run.suite) = (1, "later".into());
        let facts = facts_of(&joined);
        let (_, text) = facts[0].lines.iter().find(|(name, _)| *name == "uslab").unwrap();
        assert!(text.contains(", commit abc, ") && text.ends_with("; later by commit def"), "{text}");
    }

    #[test]
    fn a_text_is_one_cell() {
        assert_eq!(cell("a|b\nc"), "a\\|b c");
    }
}

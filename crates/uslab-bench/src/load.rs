//! Reads result files, checks them, and joins them into one.
//!
//! The latest run of a suite in a mode counts; of two that began in the same second, the one named
//! last. Every run keeps the index of its file, for the file's machine and build. Must never: guess
//! at results of another schema, or show runs of different machines without a caution.

use crate::results::{Report, Run, SCHEMA};
use crate::suites::SUITES;
use serde_json::Value;
use std::fs;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

/// The command that makes results, for the messages.
const HOW: &str = "uslab bench SUITE --json > FILE";

/// A run and the index of its file.
#[derive(Clone, Debug)]
pub struct Taken {
    pub source: usize,
    pub run: Run,
}

#[derive(Clone, Debug, Default)]
pub struct Joined {
    /// The reports with a run that counts, without their runs, the oldest first.
    pub sources: Vec<Report>,
    /// In the order of the suites, with restartable sequences before the fallback.
    pub runs: Vec<Taken>,
}

impl Joined {
    pub fn source(&self, taken: &Taken) -> &Report {
        &self.sources[taken.source]
    }

    /// The runs of a suite, one a mode.
    pub fn of_suite<'a>(&'a self, suite: &'a str) -> impl Iterator<Item = &'a Taken> + 'a {
        self.runs.iter().filter(move |taken| taken.run.suite == suite)
    }

    /// The suites of the runs, once each.
    pub fn suites(&self) -> Vec<&str> {
        let mut suites: Vec<&str> = self.runs.iter().map(|taken| taken.run.suite.as_str()).collect();
        suites.dedup();
        suites
    }
}

/// Reads `paths`: files, folders of `*.json`, or "-" for standard input, which is also what no path
/// means. An error is one line.
pub fn load(paths: &[PathBuf]) -> Result<Joined, String> {
    let mut reports = Vec::new();
    if paths.is_empty() {
        if std::io::stdin().is_terminal() {
            return Err(format!("no results: name their files (they are made by {HOW})"));
        }
        reports.push(standard_input()?);
    }
    for path in paths {
        if path == Path::new("-") {
            reports.push(standard_input()?);
        } else if path.is_dir() {
            for file in json_files(path)? {
                reports.push(file_of(&file)?);
            }
        } else {
            reports.push(file_of(path)?);
        }
    }
    Ok(join(reports))
}

fn standard_input() -> Result<Report, String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    parse("standard input", &bytes)
}

fn file_of(path: &Path) -> Result<Report, String> {
    let name = shown(path);
    let bytes = fs::read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    parse(&name, &bytes)
}

/// A path in quotes, with no character that would break the line.
pub fn shown(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().escape_debug())
}

fn json_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let cannot = |error| format!("cannot read {}: {error}", shown(folder));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(format!("{} has no *.json (results are made by {HOW})", shown(folder)));
    }
    Ok(files)
}

/// The tool and the schema are checked before the rest, to distinguish an older file from a broken
/// one.
fn parse(name: &str, bytes: &[u8]) -> Result<Report, String> {
    if bytes.trim_ascii().is_empty() {
        return Err(format!("{name} is empty: results are made by {HOW}"));
    }
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("{name} is no JSON ({error}); results are made by {HOW}"))?;
    if value["tool"] != "uslab-bench" {
        return Err(format!("{name} is no result of uslab-bench; results are made by {HOW}"));
    }
    match value["schema"].as_u64() {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(schema) if schema > u64::from(SCHEMA) => {
            return Err(format!(
                "{name} has results of schema {schema}, newer than this program's {SCHEMA}: use the uslab-bench that wrote it"
            ));
        }
        Some(schema) => {
            return Err(format!(
                "{name} has results of schema {schema}, and this program reads {SCHEMA}: measure again ({HOW})"
            ));
        }
        None => return Err(format!("{name} does not say of which schema it is: measure again ({HOW})")),
    }
    let report: Report = serde_json::from_value(value)
        .map_err(|error| format!("{name} is broken ({error}): measure again"))?;
    if report.runs.iter().all(|run| run.rows.is_empty()) {
        return Err(format!("{name} has no rows: its run ended before the first was done"));
    }
    Ok(report)
}

fn join(mut reports: Vec<Report>) -> Joined {
    // Stable, so that of equals the last named stays the last.
    reports.sort_by_key(|report| report.started_unix_s);
    let mut taken: Vec<Taken> = Vec::new();
    for (source, report) in reports.iter_mut().enumerate() {
        for run in std::mem::take(&mut report.runs) {
            taken.retain(|old| (&old.run.suite, &old.run.mode) != (&run.suite, &run.mode));
            taken.push(Taken { source, run });
        }
    }
    let place = |suite: &str| SUITES.iter().position(|s| s.name == suite).unwrap_or(SUITES.len());
    taken.sort_by(|a, b| {
        let key = |t: &Taken| (place(&t.run.suite), t.run.suite.clone(), t.run.mode != "rseq");
        key(a).cmp(&key(b))
    });
    // A file whose every run was replaced is dropped.
    let mut sources = Vec::new();
    for (index, report) in reports.into_iter().enumerate() {
        if taken.iter().any(|t| t.source == index) {
            taken.iter_mut().filter(|t| t.source == index).for_each(|t| t.source = sources.len());
            sources.push(report);
        }
    }
    Joined { sources, runs: taken }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Results of every form there is: see tests/fixtures/README.md.
    pub const SAMPLE: &[u8] = include_bytes!("../tests/fixtures/sample.json");

    pub fn sample() -> Joined {
        join(vec![parse("sample", SAMPLE).unwrap()])
    }

    fn line(bytes: &[u8]) -> String {
        let line = parse("'x.json'", bytes).unwrap_err();
        assert!(line.starts_with("'x.json' ") && !line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn what_is_no_result_is_told_by_kind() {
        assert!(line(b" \n").contains("empty"));
        assert!(line(b"{").contains("no JSON"));
        assert!(line(b"[1]").contains("no result of uslab-bench"));
        assert!(line(br#"{"tool":"uslab-bench","schema":1}"#).contains("schema 1"));
        assert!(line(br#"{"tool":"uslab-bench","schema":99}"#).contains("newer"));
        assert!(line(br#"{"tool":"uslab-bench","schema":2}"#).contains("broken"));
        assert!(line(br#"{"tool":"uslab-bench"}"#).contains("schema"));
    }

    #[test]
    fn the_latest_run_of_a_suite_and_mode_counts() {
        let old = parse("old", SAMPLE).unwrap();
        let mut new = old.clone();
        new.started_unix_s += 1;
        new.runs.truncate(1);
        new.runs[0].rows.truncate(1);
        let first = (new.runs[0].suite.clone(), new.runs[0].mode.clone());
        let count = old.runs.len();
        // Whichever is named first.
        for reports in [vec![old.clone(), new.clone()], vec![new.clone(), old.clone()]] {
            let joined = join(reports);
            assert_eq!((joined.sources.len(), joined.runs.len()), (2, count));
            for taken in &joined.runs {
                let is_new = (taken.run.suite.clone(), taken.run.mode.clone()) == first;
                assert_eq!(taken.source, usize::from(is_new));
                assert_eq!(joined.source(taken).started_unix_s, old.started_unix_s + u64::from(is_new));
            }
        }
        // A file that counts no more is gone.
        assert_eq!(join(vec![old.clone(), old]).sources.len(), 1);
    }

    #[test]
    fn suites_stand_in_their_order_and_rseq_first() {
        let joined = sample();
        assert_eq!(joined.suites()[..2], ["pair", "bulk"]);
        let modes: Vec<&str> = joined.of_suite("bulk").map(|taken| taken.run.mode.as_str()).collect();
        assert_eq!(modes, ["rseq", "locked"]);
    }
}

//! `uslab-bench report`: one self-contained HTML page from result files.
//!
//! ```text
//!   mod ── load      files, checked and joined: the latest run of each suite and mode
//!    └──── page      the page: facts, claims, a section a suite ── page.css
//!           ├── tables            all figures
//!           └── pick ── panels          which charts the rows ask for
//!                └── chart ── axis      drawn as SVG
//! ```
//!
//! The page needs no network and no script. It is a function of the results alone: the same files give the same
//! bytes, so that CI can tell whether the page in docs/results is theirs. Must never: show a figure that is not in
//! the files, or read the clock.

mod axis;
mod chart;
pub mod load;
mod page;
mod panels;
mod pick;
mod tables;

use clap::ValueHint;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit statuses: what was given is wrong; what was asked could not be done.
const WRONG_INPUT: u8 = 2;
const FAILED: u8 = 1;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Files that `--json` wrote, or folders of them; "-" and nothing at all are standard input
    #[arg(value_name = "RESULTS", value_hint = ValueHint::AnyPath)]
    results: Vec<PathBuf>,

    /// Where the page goes; "-" is standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html", value_hint = ValueHint::FilePath)]
    output: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  uslab-bench all --both-modes --json > all.json && uslab-bench report all.json
  uslab-bench report docs/results/2026-11-21 -o report.html
  uslab-bench bulk --quick --json | uslab-bench report -o - > bulk.html

Of several results of one suite in one mode, the latest is shown.";

/// Writes the page.
pub fn main(args: &Args) -> ExitCode {
    let joined = match load::load(&args.results) {
        Ok(joined) => joined,
        Err(line) => return fail(WRONG_INPUT, &line),
    };
    let page = page::page(&joined);
    if args.output == Path::new("-") {
        // A reader that has gone away is no error of ours.
        let _ = std::io::stdout().lock().write_all(page.as_bytes());
        return ExitCode::SUCCESS;
    }
    if args.results.iter().any(|input| same_file(input, &args.output)) {
        let name = load::shown(&args.output);
        return fail(WRONG_INPUT, &format!("{name} is a result file; the page must have another name"));
    }
    match fs::write(&args.output, page) {
        Ok(()) => {
            eprintln!("uslab-bench: wrote {}", load::shown(&args.output));
            ExitCode::SUCCESS
        }
        Err(error) => fail(FAILED, &format!("cannot write {}: {error}", load::shown(&args.output))),
    }
}

pub(crate) fn fail(status: u8, line: &str) -> ExitCode {
    eprintln!("uslab-bench: {line}");
    ExitCode::from(status)
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// A name of the results as words: "peak_bytes" is "peak bytes".
fn words(name: &str) -> String {
    name.split(['_', ' ']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

//! The command line.
//!
//! Suites are checked by hand rather than by clap, so that an unknown one gets a single clear line.
//! Must never: have a default that differs from what `--help` says.

use crate::contestants::uslab::SIZES;
use crate::orders;
use crate::report;
use crate::results::{Order, RunOptions};
use crate::suites::{SUITES, Suite, find};
use crate::summary;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Rounds of each contestant in a row, and how long a round takes.
const FULL: (usize, u64) = (300, 100);
const QUICK: (usize, u64) = (60, 60);
/// `--check`: one repetition a round.
const CHECK: (usize, u64) = (2, 0);

#[derive(Debug, Parser)]
#[command(name = "uslab-bench", version, after_long_help = EXAMPLES)]
#[command(
    about = "Measures uslab beside mimalloc, jemalloc, snmalloc, rpmalloc and glibc, in one process and one run"
)]
#[command(long_about = LONG_ABOUT)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Suites to run, or "all"; --list names them
    #[arg(value_name = "SUITE", required_unless_present_any = ["list", "child"])]
    suites: Vec<String>,

    /// List the suites and their rows; measure nothing
    #[arg(long)]
    pub list: bool,

    /// Print the results as JSON, and nothing else, on standard output
    #[arg(long)]
    pub json: bool,

    /// Fewer and shorter rounds: a first look, within half a minute
    #[arg(long)]
    quick: bool,

    /// Run every row for function only; the figures mean nothing and are not judged
    #[arg(long, conflicts_with = "quick")]
    check: bool,

    /// Run twice: with restartable sequences, and with USLAB_RSEQ=0 (the locked fallback)
    ///
    /// The mode is chosen once per process, so each is a process of its own; the results come as
    /// one.
    #[arg(long)]
    pub both_modes: bool,

    /// Only rows whose id contains TEXT (ids are what --list and the JSON show)
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,

    /// Rounds of each contestant in a row [default: 300; with --quick: 60]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,

    /// Runs of each contestant in rows of whole programs [default: 5; with --quick: 1]
    ///
    /// The suites programs, locality and fork start their programs anew for each run. They judge by
    /// processor time and by memory, so a machine that is used meanwhile only needs more runs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,

    /// Size of the typed cache's objects: 16, 64, 256, 1024 or 4096; targets are for 256
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = object_size)]
    object_size: usize,

    /// The order in which a live set is freed
    #[arg(long, value_enum, default_value = "fifo")]
    order: Order,

    /// Write the first word of each object after its allocation, for every contestant
    #[arg(long)]
    touch: bool,

    /// Run single-threaded rounds on this CPU [default: the last one allowed]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,

    /// Make one measurement for the process that started this one, and print it (see child.rs)
    #[arg(long, value_name = "JSON", hide = true, exclusive = true)]
    pub child: Option<String>,

    /// Measure although this program was built without optimisation
    #[arg(long)]
    pub allow_unoptimised: bool,
}

/// The commands that read results; without one, suites are run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write an HTML page with tables and charts from JSON results
    Report(report::Args),
    /// Write the table of the claims, as Markdown, from JSON results
    Summary(summary::Args),
    /// Write the tables of slab orders, as Markdown or as a picture, from JSON results
    Orders(orders::Args),
}

const LONG_ABOUT: &str = "\
Measures uslab beside mimalloc, jemalloc, snmalloc, rpmalloc and glibc in one run, most suites in \
one process; and beside gperftools and TBB where they are installed.

A row is one question, such as 64 objects of 256 bytes live at once. All contestants answer it in \
short rounds, one after the other, again and again; the minimum of each is compared, as a ratio of \
uslab to the best peer of that row. A round that the machine disturbed is done again. Ctrl-C or \
SIGTERM ends the run and keeps the rows that are done.

Figures are nanoseconds (and core cycles) for one object, allocated and freed.";

const EXAMPLES: &str = "\
Examples:
  uslab-bench pair                        the table of pairs, against the targets
  uslab-bench bulk --both-modes           bulk allocation, with and without rseq
  uslab-bench pair --only malloc/64       the 64-byte rows alone
  uslab-bench all --json > results.json   everything, for another program
  uslab-bench programs --only lua/        one program under every allocator
  uslab-bench report results.json         a page with charts of it
  uslab-bench pair --order random --touch as a program that uses what it allocates

Exit status: 0 when the rows ran (met or missed), 1 when they could not, 2 for a wrong command \
line, 130 after Ctrl-C or SIGTERM.";

/// Parses a size that has a typed cache.
fn object_size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| SIZES.contains(size));
    size.ok_or_else(|| format!("there are caches of {:?} bytes", SIZES))
}

/// Reports a wrong command line in one line. Prints help and version, which clap returns as errors
/// as well.
pub fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is no error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    eprintln!("uslab-bench: {}; --help tells more", one_line(error));
    ExitCode::from(2)
}

/// The first paragraph of clap's message, without the usage.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

impl Args {
    /// The named suites, in that order; all suites for "all" and where none is named.
    pub fn suites(&self) -> Result<Vec<&'static Suite>, String> {
        if self.suites.is_empty() || self.suites.iter().any(|name| name == "all") {
            return Ok(SUITES.to_vec());
        }
        let known = || SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
        let one = |name: &String| {
            find(name).ok_or_else(|| format!("there is no suite '{name}'; suites are: {}, all", known()))
        };
        self.suites.iter().map(one).collect()
    }

    pub fn run_options(&self) -> RunOptions {
        let (rounds, round_us) = match (self.check, self.quick) {
            (true, _) => CHECK,
            (_, true) => QUICK,
            _ => FULL,
        };
        RunOptions {
            rounds: self.rounds.map_or(rounds, |rounds| rounds as usize),
            runs: self.runs.map(|runs| runs as usize),
            round_us,
            object_size_bytes: self.object_size,
            touch: self.touch,
            order: self.order,
            check: self.check,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Args {
        Args::try_parse_from(line.split(' ')).unwrap()
    }

    #[test]
    fn the_command_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn suites_by_name_and_all_of_them() {
        let names = |line| parse(line).suites().unwrap().iter().map(|suite| suite.name).collect::<Vec<_>>();
        assert_eq!(names("uslab-bench bulk pair"), ["bulk", "pair"]);
        assert_eq!(names("uslab-bench all").len(), SUITES.len());
        let Err(line) = parse("uslab-bench pears").suites() else { panic!("an unknown suite was taken") };
        assert!(line.contains("'pears'") && line.contains("pair, medium") && !line.contains('\n'));
    }

    #[test]
    fn options_of_the_three_lengths() {
        assert_eq!(parse("uslab-bench pair").run_options().rounds, FULL.0);
        assert_eq!(parse("uslab-bench pair --quick").run_options().rounds, QUICK.0);
        assert!(parse("uslab-bench pair --check").run_options().check);
        assert_eq!(parse("uslab-bench pair --quick --rounds 7").run_options().rounds, 7);
        assert!(Args::try_parse_from(["uslab-bench", "pair", "--object-size", "257"]).is_err());
    }
}

//! The command line of `uslab report`.

use std::path::PathBuf;

use clap::Args;

pub const REPORT_EXAMPLES: &str = "\
Examples:
  uslab record 4711 -o server.record --for 1h
  uslab report server.record              writes server.record.html
  uslab profile 4711 --for 30s --format dump -o heap.txt
  uslab report server.record --profile heap.txt -o report.html

The page is one file without references to other ones. It shows the memory by cache over time, what
went back to the system, the memory that no live object holds, and the caches that grew most; with
a profile, the call stacks that hold the memory. Its charts need no script.";

/// Options of `uslab report`.
#[derive(Args)]
pub struct Report {
    /// The record, as `uslab record` writes it
    #[arg(value_name = "FILE")]
    pub record: PathBuf,

    /// The page to write (FILE.html unless given); - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// A heap profile of the same process, for the flame graph: pprof, or the process's own text
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

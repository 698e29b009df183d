//! The command line of `uslab profile`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::args::process_id;
use crate::ask::args::{bytes, copy_number, seconds};
use crate::record::args::time;

pub const PROFILE_EXAMPLES: &str = "\
Examples:
  uslab profile 4711 --for 30s            what 30 seconds allocated, and what of it is in use
  uslab profile 4711 --for 30s -o heap.pb.gz && go tool pprof -top heap.pb.gz
  uslab profile 4711 --start              sample from now on; the process runs on
  uslab profile 4711                      the samples until now, as text
  uslab profile 4711 --stop
  uslab profile --diff before.pb.gz after.pb.gz
                                          the call stacks that hold more than before

The process samples about one allocation in 512 KiB, at random. Figures are estimates of all
allocations. This command resolves the symbols: the process reads no file. Text shows the ages of
the samples in use, and labels each call stack by how the program keeps its objects:
  start     allocated near the start of the profile, and kept since
  grows     objects of all ages, and none was freed: a leak looks like this
  turns     none is old: a cache that renews itself, or work in progress
  mixed     none of these

Formats:
  text      for people
  pprof     gzipped protobuf, for `go tool pprof`, Speedscope, Pyroscope (with -o, this one)
  jeprof    jemalloc's text, for jeprof
  folded    one line a call stack, for flamegraph.pl and inferno
  dump      as the process wrote it, for `uslab report --profile`, and for --from later";

/// Options of `uslab profile`.
#[derive(Args)]
pub struct Profile {
    /// The process
    #[arg(value_parser = process_id, required_unless_present_any = ["from", "diff"])]
    pub pid: Option<i32>,

    /// Sample for this time, then show what was sampled: 30s, 5m
    ///
    /// Ctrl-C ends it early. Sampling is off afterwards. Samples of an earlier start count too. If
    /// the process does not answer, a second Ctrl-C ends the command, and sampling may stay on.
    #[arg(long = "for", value_name = "TIME", value_parser = time, conflicts_with_all = ["start", "stop", "from", "diff"])]
    pub duration: Option<Duration>,

    /// Begin to sample, and leave it on
    #[arg(long, conflicts_with_all = ["stop", "from", "diff", "output", "format"])]
    pub start: bool,

    /// End sampling
    #[arg(long, conflicts_with_all = ["from", "diff", "output", "format"])]
    pub stop: bool,

    /// Bytes between two samples, with K, M, G or T for powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "512K", value_parser = bytes)]
    pub period: u64,

    /// Show this profile instead of a process's: pprof, or a process's own text
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "diff"])]
    pub from: Option<PathBuf>,

    /// Show what changed from profile A to profile B
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "pid")]
    pub diff: Option<Vec<PathBuf>>,

    /// The format: text, pprof, jeprof, folded or dump
    #[arg(long, value_name = "FORMAT", hide_possible_values = true)]
    pub format: Option<Format>,

    /// The file to write, instead of standard output; - is standard output, too
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Which copy of the library, if the process contains several; by default the one with the most
    /// memory
    #[arg(long, value_name = "N", value_parser = copy_number())]
    pub copy: Option<u32>,

    /// Seconds within which the process must accept each request
    #[arg(short, long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub timeout: Duration,
}

/// A format that a profile is written in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Pprof,
    Jeprof,
    Folded,
    Dump,
}

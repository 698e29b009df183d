//! The command line, defined once: parser, help, man page and shell completions all come from these
//! types.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_mangen::Man;

use crate::ask::args::{
    DEBUG_EXAMPLES, Debug, LIMIT_EXAMPLES, Limit, SHRINK_EXAMPLES, Shrink, VALIDATE_EXAMPLES, Validate,
    copy_number,
};
use crate::failure::{self, FAILED, Failure, Outcome};
use crate::metrics::Format;
use crate::output;
use crate::profile::args::{PROFILE_EXAMPLES, Profile};
use crate::record::args::{RECORD_EXAMPLES, Record};
use crate::report::args::{REPORT_EXAMPLES, Report};
use crate::settings;
use crate::text::reports::{self, Reports};

const ABOUT: &str = "Run programs on the uslab allocator and see what it does for them";

const LONG_ABOUT: &str = "\
Run programs on the uslab allocator and see what it does for them.

uslab is the Linux slab allocator rebuilt for user space: typed caches of equal objects, per-CPU sheaves in \
front of them, and a malloc on top. `uslab run` puts it under a program that was never built for it; the \
allocator then keeps its figures in a small shared-memory file, which `uslab info` reads without the program's \
help and without slowing it down.";

const EXAMPLES: &str = "\
Examples:
  uslab run -- redis-server               run a server on the allocator
  uslab info                              which processes run on it
  uslab info 4711                         the caches of one, as /proc/slabinfo would show them
  uslab run --stats -- python3 job.py     run a job, then print what each cache did
  uslab top 4711                          where its memory is, and why
  uslab metrics --listen 127.0.0.1:9712   serve the figures for Prometheus
  uslab debug 4711 malloc-64 F            check each free of that cache from now on
  uslab bench pair                        how fast an allocation and its free are

Environment:
  USLAB_LIB       the preload library, instead of the one that came with this program
  USLAB_SNAPSHOT  directory of the snapshots; auto, or nothing: /dev/shm/uslab-UID
  USLAB_RSEQ      0: no restartable sequences (the same as `run --rseq off`)
  USLAB_DEBUG     caches to debug (the same as `run --debug`)
  USLAB_LEAKS     1: report leaks at exit (the same as `run --leaks`)

Exit status:
  0 on success, 1 when a command fails, 2 for a wrong command line. `uslab help run` and `uslab help
  validate` list further ones. `uslab bench` returns the status of uslab-bench: 127 when that is not
  installed, 126 when it could not be executed.";

const RUN_EXAMPLES: &str = "\
Examples:
  uslab run -- sqlite3 big.db 'select count(*) from t'
  uslab run --stats -- g++ -O2 -c big.cc
  uslab run --stats-json figures.json -- node server.js
  uslab run --guard -- ./server            catch memory errors of a few allocations, in production
  uslab run --guard=all -- ./tests         catch those of every allocation
  uslab run --rseq off -- ./a.out          the fallback without restartable sequences
  uslab run --debug FZPU -- ./a.out        find overflows, double frees and writes after free
  uslab run --limit 80%,90% -- ./server    reclaim above 80 % of the container's memory
  uslab run --leaks -- ./a.out             find objects that nothing points to at exit

Exit status:
  that of PROGRAM, or 23 when --leaks found leaks; 128+N when signal N ended it; 127 when it was not
  found; 126 when it could not be executed; 125 when uslab could not do its part (no library, no
  directory for the snapshot, no file for --stats-json).

Static programs and programs that gain privileges (setuid, setgid) take no preloaded library: they
run on the allocator that they came with, and a warning says so.";

const INFO_EXAMPLES: &str = "\
Examples:
  uslab info                              processes that publish, with mode and heap
  uslab info 4711                         slabinfo 2.1 text, one row a cache
  uslab info 4711 --table                 for people: sizes, use, sheaves and slow paths
  uslab info 4711 --settings              its settings and where they came from, limits, shrinkers
  uslab info 4711 --json | jq '.caches[] | select(.slabs > 100) | .name'

Columns of --table; 917k is about 917 000:
  size                bytes of an object
  active, total, use  objects in use, all that the slabs have room for, and their ratio
  slabs, KiB          slabs, and their memory
  size, held          objects that a sheaf has room for, and free objects in all sheaves
  alloc, free         calls that the slow path served
  refill, flush       how often sheaves took objects from slabs, and gave some back
A sheaf holds free objects, and a CPU allocates from its own without a lock.

In slabinfo text, `limit` and `batchcount` are the capacity of a sheaf (what a CPU keeps, and what
it moves at once), and blanks in a cache's name become underscores. Objects in sheaves count as
free. The fast path counts nothing: a figure can be behind by what the CPUs hold, and by their last
slow paths.";

const TOP_EXAMPLES: &str = "\
Examples:
  uslab top 4711                          keys: ? explains them, q ends
  uslab top 4711 --once                   the same as text, after two updates
  uslab top 4711 --json -n 61 | jq .verdict
                                          the cause of growth, after a minute

The first lines divide the resident memory into parts that add up to it; `uslab help metrics` lists
them. A ~ marks estimates: the kernel shows the mappings of a process only to its user and to root.

The verdict names the cause of the memory, with its reasons:
  leak           live objects grew through at least a minute
  fragmentation  free objects in slabs that also hold objects in use
  cache          free memory that the allocator keeps, or a cache of the program that is full
  elsewhere      memory that is not the allocator's
  not known      none of these for certain";

const DIFF_EXAMPLES: &str = "\
Examples:
  uslab info 4711 --json > before.json
  uslab info 4711 --json > after.json
  uslab diff before.json after.json       the caches that changed, largest growth first";

const METRICS_EXAMPLES: &str = "\
Examples:
  uslab metrics 4711                      OpenMetrics text of one process
  uslab metrics --listen 127.0.0.1:9712   all processes of this user, for Prometheus to scrape
  uslab metrics -o /var/lib/prometheus/node-exporter/uslab.prom --every 15
                                          for the textfile collector of node_exporter

jemalloc's words are uslab_allocated_bytes, _active_, _metadata_, _resident_, _mapped_ and
_retained_bytes. uslab_part_bytes divides the resident memory of a process: the parts add up to
uslab_process_resident_bytes plus uslab_absent_bytes.

  live      objects in the program's hands, at the size of their cache; large objects
  slack     what the distance of objects and the ends of slabs add to that
  cached    objects in sheaves and barns
  partial   free objects in slabs that also hold objects in use
  empty     slabs with every object free
  other     pages of private heaps, and of the heap profile while it runs
  dirty     free pages that still have memory behind them
  metadata  the allocator's tables
  not_ours  code, stacks, files, and memory of other allocators";

const BENCH_EXAMPLES: &str = "\
Examples:
  uslab bench pair                        one allocation and one free, beside other allocators
  uslab bench bulk --json                 bulk of 64, as JSON
  uslab bench --help                      all suites and their options

Everything after `bench` goes to the program uslab-bench as it is.";

/// Everything on the command line.
#[derive(Parser)]
#[command(name = "uslab", version, about = ABOUT, long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[command(max_term_width = 100, disable_help_subcommand = false)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program on the allocator
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(Run),
    /// Show the caches of a running process, or which processes publish
    #[command(after_long_help = format!("{INFO_EXAMPLES}\n{}", reports::EXAMPLES))]
    Info(Info),
    /// Watch where the memory of a process is, and why
    #[command(after_long_help = TOP_EXAMPLES)]
    Top(Top),
    /// Show what grew between two files of figures
    #[command(after_long_help = DIFF_EXAMPLES)]
    Diff(Diff),
    /// Record the figures of a process over time
    #[command(after_long_help = RECORD_EXAMPLES)]
    Record(Record),
    /// Make a page of HTML from a record
    #[command(after_long_help = REPORT_EXAMPLES)]
    Report(Report),
    /// Show which call stacks allocated the memory of a process
    #[command(after_long_help = PROFILE_EXAMPLES)]
    Profile(Profile),
    /// Print, write or serve the figures for Prometheus
    #[command(after_long_help = METRICS_EXAMPLES)]
    Metrics(Metrics),
    /// Have a running process check the allocator's structures
    #[command(after_long_help = VALIDATE_EXAMPLES)]
    Validate(Validate),
    /// Switch debugging of a running process's caches on or off
    #[command(after_long_help = DEBUG_EXAMPLES)]
    Debug(Debug),
    /// Have a running process release free memory
    #[command(after_long_help = SHRINK_EXAMPLES)]
    Shrink(Shrink),
    /// Set the limits of a running process
    #[command(after_long_help = LIMIT_EXAMPLES)]
    Limit(Limit),
    /// Measure the allocator (hands over to uslab-bench)
    #[command(after_long_help = BENCH_EXAMPLES, disable_help_flag = true)]
    Bench(Bench),
    /// Print the man page or shell completions, for packagers
    #[command(hide = true)]
    Generate(Generate),
}

/// Options of `uslab run`.
#[derive(Args)]
pub struct Run {
    /// Print a table of the caches to standard error when the program has ended
    #[arg(short, long)]
    pub stats: bool,

    /// Write the same figures to FILE as JSON when the program has ended
    #[arg(long, value_name = "FILE", value_parser = plain_file())]
    pub stats_json: Option<PathBuf>,

    /// Use restartable sequences where they work (on) or never (off)
    ///
    /// Sets USLAB_RSEQ for the program. The table and `uslab info` show the mode that it really
    /// used.
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    pub rseq: Option<Switch>,

    /// Put about one allocation in MS milliseconds between guard pages (100 unless given)
    ///
    /// An overflow of such an object, or a use after its free, is reported with the stacks of the
    /// access, the allocation and the free. `all` guards every allocation; 1 is the same as 100.
    /// Sets USLAB_GUARD for the program.
    #[arg(long, value_name = "MS|all", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(value_parser = settings::guard)]
    pub guard: Option<String>,

    /// Debug caches: letters F, Z, P, U, T, then names
    ///
    /// Sets USLAB_DEBUG for the program. F checks each free, Z puts guard bytes around objects, P
    /// fills free objects with patterns, U records who allocated and freed, T prints each call.
    /// `FZPU,malloc-64` debugs one cache; see uslab's guide, "Debugging".
    #[arg(long, value_name = "LETTERS[,CACHE...]", value_parser = settings::debug)]
    pub debug: Option<String>,

    /// Report leaked objects when the program exits, which then ends with status 23
    ///
    /// A leaked object is one that no pointer leads to. Each report has the stack of the
    /// allocation. With `=report` the program keeps its exit status. Sets USLAB_LEAKS for the
    /// program.
    #[arg(long, value_name = "report", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(value_parser = ["1", "report"], hide_possible_values = true)]
    pub leaks: Option<String>,

    /// Report no leak whose stack matches a line `leak:PATTERN` of FILE
    ///
    /// The syntax is LeakSanitizer's. Sets USLAB_LEAK_SUPPRESSIONS for the program.
    #[arg(long, value_name = "FILE", requires = "leaks")]
    pub leak_suppressions: Option<PathBuf>,

    /// Limit the memory that the allocator holds: SOFT or SOFT,HARD, in bytes or percent
    ///
    /// Bytes may have K, M, G or T behind them; a percentage is of the control group's limit, or of
    /// the machine's memory. Above SOFT a thread of the library reclaims; an allocation that would
    /// exceed HARD fails. Sets USLAB_LIMIT for the program.
    #[arg(long, value_name = "SOFT[,HARD]", value_parser = settings::limit)]
    pub limit: Option<String>,

    /// Other settings: names of the variables, in lower case and without USLAB_
    ///
    /// `decay_ms=0,huge_pages=never`; uslab's guide lists all. Sets USLAB_CONF for the program.
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = settings::conf)]
    pub conf: Option<String>,

    /// Profile the heap: one allocation in BYTES bytes is a sample (524288 unless given)
    ///
    /// 1 is the same as 524288. The program writes the profile at its exit, as `uslab-profile.PID`
    /// in the present directory, and each of its children does. Sets USLAB_PROFILE and
    /// USLAB_PROFILE_FILE for the program.
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub profile: Option<u64>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub program: Vec<OsString>,
}

/// A setting that is on or off.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// Options of `uslab info`.
#[derive(Args)]
pub struct Info {
    /// The process; without it, list the processes that publish
    #[arg(value_parser = process_id)]
    pub pid: Option<i32>,

    /// Which copy of the library, if the process contains several; by default the one with the most
    /// memory
    #[arg(long, value_name = "N", requires = "pid", value_parser = copy_number())]
    pub copy: Option<u32>,

    /// JSON instead of text
    #[arg(long, conflicts_with = "table")]
    pub json: bool,

    /// The table that `uslab run --stats` prints, instead of slabinfo text
    #[arg(long, requires = "pid")]
    pub table: bool,

    /// The settings that the process runs with and where each came from, its limits, and what
    /// reclaim did: passes, pressure sources, shrinkers
    #[arg(long, requires = "pid", conflicts_with_all = ["json", "table"])]
    pub settings: bool,

    /// List the processes of every user whose snapshots can be read
    #[arg(long, conflicts_with = "pid")]
    pub all: bool,

    #[command(flatten)]
    pub reports: Reports,
}

/// Options of `uslab top`.
#[derive(Args)]
pub struct Top {
    /// The process; without it, the only one that publishes
    #[arg(value_parser = process_id)]
    pub pid: Option<i32>,

    /// Which copy of the library, if the process contains several; by default the one with the most
    /// memory
    #[arg(long, value_name = "N", value_parser = copy_number())]
    pub copy: Option<u32>,

    /// Seconds between two updates
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: f64,

    /// Print the last update as text and end
    #[arg(long)]
    pub once: bool,

    /// Print the last update as JSON and end
    #[arg(long, conflicts_with = "once")]
    pub json: bool,

    /// Updates before --once and --json print; growth needs a minute of them
    #[arg(short = 'n', long, value_name = "COUNT", default_value = "2", value_parser = clap::value_parser!(u32).range(1..))]
    pub updates: u32,

    /// Seconds that a second counts for, so that a test need not watch for a minute
    #[arg(long, hide = true, default_value = "1")]
    pub time_scale: f64,
}

/// The number of a process.
pub fn process_id(text: &str) -> Result<i32, String> {
    let id = text.parse().ok().filter(|id| *id >= 1);
    id.ok_or_else(|| "not the number of a process".to_owned())
}

/// Seconds between two updates.
fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds from 0.05 to 3600".to_owned()),
    }
}

/// Options of `uslab diff`.
#[derive(Args)]
pub struct Diff {
    /// The earlier figures, as `uslab info PID --json` prints them
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,

    /// The later ones, of the same process or of another run
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,
}

/// Options of `uslab metrics`.
#[derive(Args)]
pub struct Metrics {
    /// The processes; without one, all of this user that publish
    #[arg(value_name = "PID", value_parser = process_id)]
    pub pids: Vec<i32>,

    /// Serve them at http://ADDRESS/metrics until interrupted
    ///
    /// An IP address and a port, or a port alone for 127.0.0.1. Port 0 takes a free one. Every
    /// program that reaches the address can read the figures.
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address, conflicts_with_all = ["output", "format"])]
    pub listen: Option<SocketAddr>,

    /// Write them to FILE, which is replaced in one step
    #[arg(short, long, value_name = "FILE", value_parser = plain_file())]
    pub output: Option<PathBuf>,

    /// Write the file again every so many SECONDS, until interrupted or the last PID has ended
    #[arg(long, value_name = "SECONDS", requires = "output", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,

    /// The format: openmetrics (otherwise printed) or prometheus (otherwise written to files)
    #[arg(long, value_name = "FORMAT", hide_possible_values = true)]
    pub format: Option<Format>,
}

/// Prints what the parser answers in place of a command: an error, or the help that was asked for.
/// Returns the exit status.
pub fn end(answer: &clap::Error) -> u8 {
    let printed = answer.print().and_then(|()| io::stdout().flush());
    match printed {
        Err(error) if !answer.use_stderr() && error.kind() != io::ErrorKind::BrokenPipe => {
            failure::complain(&format!("cannot write to standard output: {error}"));
            FAILED
        }
        _ => u8::try_from(answer.exit_code()).unwrap_or(FAILED),
    }
}

/// A file that is replaced, or written over time: not standard output, which `-` often stands for.
pub fn plain_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|file| match output::is_standard_output(&file) {
        true => Err("this command writes to a file, not to standard output; a file of that name is ./-"),
        false => Ok(file),
    })
}

/// An address to listen on; a port alone means this machine only.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Err(_) => text.parse().map_err(|_| "not IP:PORT or PORT".to_owned()),
    }
}

/// Options of `uslab bench`: none of its own.
#[derive(Args)]
pub struct Bench {
    /// Suite and options for uslab-bench
    #[arg(value_name = "SUITE", trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// Options of `uslab generate`.
#[derive(Args)]
pub struct Generate {
    /// What to print
    pub what: Generated,
}

/// What `uslab generate` can print.
#[derive(Clone, Copy, ValueEnum)]
pub enum Generated {
    Man,
    Bash,
    Fish,
    Zsh,
}

/// Prints the man page or a completion script to standard output.
pub fn generate(what: Generated) -> Outcome {
    let mut text = Vec::new();
    match what {
        Generated::Man => man_page(&mut text)
            .map_err(|error| Failure::new(FAILED, format_args!("cannot make the man page: {error}")))?,
        Generated::Bash => complete(clap_complete::Shell::Bash, &mut text),
        Generated::Fish => complete(clap_complete::Shell::Fish, &mut text),
        Generated::Zsh => complete(clap_complete::Shell::Zsh, &mut text),
    }
    failure::print(text)
}

fn complete(shell: clap_complete::Shell, text: &mut Vec<u8>) {
    clap_complete::generate(shell, &mut Arguments::command(), "uslab", text);
}

/// One page for the program and all its commands: a reader of uslab(1) should not have to open
/// four.
fn man_page(text: &mut Vec<u8>) -> io::Result<()> {
    let mut whole = Arguments::command();
    whole.build();
    let page = Man::new(whole.clone()).section("1");
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    as_it_stands(text, &whole)?;
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        if command.get_name() == "help" {
            continue;
        }
        let mut part = Vec::new();
        let page = Man::new(command.clone());
        page.render_description_section(&mut part)?;
        page.render_synopsis_section(&mut part)?;
        page.render_options_section(&mut part)?;
        // A section of the page is a command here; what would be sections of its own page are its
        // parts.
        let part = String::from_utf8_lossy(&part).replace(".SH ", ".SS ");
        write!(text, ".SH \"USLAB {}\"\n{part}", command.get_name().to_uppercase())?;
        as_it_stands(text, command)?;
    }
    Ok(())
}

/// The text after a command's help, with its lines kept: it is examples and small tables.
fn as_it_stands(text: &mut Vec<u8>, command: &clap::Command) -> io::Result<()> {
    let Some(after) = command.get_after_long_help() else { return Ok(()) };
    writeln!(text, ".PP\n.nf")?;
    for line in after.to_string().lines() {
        // `\&` is nothing: it keeps a line that begins with a dot from being a request.
        writeln!(text, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(text, ".fi")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_options(line: &[&str]) -> Run {
        match Arguments::try_parse_from(line).expect("a valid command line").command {
            Command::Run(options) => options,
            _ => panic!("not a run"),
        }
    }

    #[test]
    fn definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_after_the_program_are_its_own() {
        let options = run_options(&["uslab", "run", "--stats", "ls", "--stats", "-l", "--", "x"]);
        assert!(options.stats);
        assert_eq!(options.program, ["ls", "--stats", "-l", "--", "x"]);
        let options = run_options(&["uslab", "run", "--", "--stats"]);
        assert!(!options.stats);
        assert_eq!(options.program, ["--stats"]);
    }

    #[test]
    fn bench_passes_everything_on() {
        let parsed = Arguments::try_parse_from(["uslab", "bench", "--help", "pair", "--json", "--", "-x"]);
        match parsed.expect("a valid command line").command {
            Command::Bench(options) => {
                assert_eq!(options.arguments, ["--help", "pair", "--json", "--", "-x"]);
            }
            _ => panic!("not a bench"),
        }
    }

    #[test]
    fn a_pid_is_a_positive_number() {
        for pid in ["0", "-1", "x", "99999999999", ""] {
            assert!(Arguments::try_parse_from(["uslab", "info", "--", pid]).is_err(), "{pid:?}");
        }
        assert!(Arguments::try_parse_from(["uslab", "info", "--table"]).is_err(), "a table needs a process");
    }

    #[test]
    fn man_page_names_every_option() {
        let mut page = Vec::new();
        man_page(&mut page).expect("a man page");
        let page = String::from_utf8(page).expect("UTF-8").replace("\\-", "-");
        for option in [
            "--stats",
            "--stats-json",
            "--rseq",
            "--guard",
            "--leaks",
            "--leak-suppressions",
            "--limit",
            "--conf",
            "--settings",
            "--json",
            "--table",
            "--all",
            "USLAB_SNAPSHOT",
            "--listen",
            "--once",
            "BEFORE",
            "--every",
            "--loss",
            "--diff",
            "USLAB VALIDATE",
            "uslab debug 4711 malloc-64 F",
        ] {
            assert!(page.contains(option), "{option} is missing from:\n{page}");
        }
    }
}

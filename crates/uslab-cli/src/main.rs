//! `uslab`: runs programs on the uslab allocator and shows what they publish about it.
//!
//! ```text
//!   main ── args                        the command line, its help, man page and completions
//!    ├── run ──┬── preload              which library, and LD_PRELOAD
//!    │         ├── settings             which values the library takes
//!    │         ├── program ── elf       which file runs, and whether it can be preloaded at all
//!    │         └── supervise            child, signals, exit status
//!    ├── info                           one process or all that publish
//!    ├── top                            where the memory is, sample after sample, and why
//!    ├── diff                           what grew between two files of figures
//!    ├── record ──▶ report              figures over time, as a page
//!    ├── profile                        call stacks that hold memory
//!    ├── metrics                        OpenMetrics text: printed, in a file, over HTTP
//!    ├── validate, debug, shrink, limit ── ask    requests to a running process
//!    └── bench                          hands over to uslab-bench
//!        all but diff and bench read through:
//!          find ── snapdir (where files live) ── snapshot (what is in one)
//!          accounts (where the memory is) ── residence (what the kernel counts)
//!          text (slabinfo, table), json
//!        files of other makers are read through: input
//! ```
//!
//! This program never links the allocator that it observes. It shares with it the source of the
//! snapshot's layout and of the settings' grammar, and trusts nothing that it reads in a snapshot.

#![deny(unsafe_code)]

mod accounts;
mod args;
mod ask;
mod bench;
mod diff;
mod elf;
mod failure;
mod find;
mod info;
mod input;
mod json;
#[allow(dead_code, reason = "shared with the library, which uses the rest of it")]
mod layout;
mod metrics;
mod output;
mod preload;
mod process;
mod profile;
mod program;
mod record;
mod report;
mod residence;
mod run;
mod settings;
mod snapdir;
mod snapshot;
mod supervise;
mod text;
mod top;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(answer) => return ExitCode::from(args::end(&answer)),
    };
    let outcome = match arguments.command {
        Command::Run(options) => run::run(&options),
        Command::Info(options) => info::info(&options),
        Command::Diff(options) => diff::diff(&options),
        Command::Top(options) => top::top(&options),
        Command::Record(options) => record::record(&options),
        Command::Report(options) => report::report(&options),
        Command::Profile(options) => profile::profile(&options),
        Command::Metrics(options) => metrics::metrics(&options),
        Command::Validate(options) => ask::validate(&options),
        Command::Debug(options) => ask::debug(&options),
        Command::Shrink(options) => ask::shrink(&options),
        Command::Limit(options) => ask::limit(&options),
        Command::Bench(options) => bench::bench(&options),
        Command::Generate(options) => args::generate(options.what),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure::complain(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

//! `cargo xtask ci`: everything that must hold before a change lands, in one command on a fresh
//! Debian.
//!
//! The steps run in order and the first that fails ends the run. Each prints its heading and all
//! output of its program, so that the log has the test runners' closing lines.
//!
//! Steps are ordered by their cost: rules and lints first, programs and staging last.

mod install;
mod testing;

use crate::workspace::{self, Workspace};
use crate::{balance, checkers, deb, dist, golden, musl, public, results, scale, tidy};
use anyhow::{Result, bail, ensure};
use clap::Parser;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// Arguments of `cargo xtask ci`.
#[derive(clap::Args)]
pub struct Args {
    /// Run only these steps.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these steps out.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    skip: Vec<String>,
    /// List the steps that would run, and stop.
    #[arg(long)]
    list: bool,
}

/// One check.
struct Step {
    name: &'static str,
    what: &'static str,
    run: fn(&Workspace) -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "packages", what: "Debian packages that the tests need", run: install::packages },
    Step {
        name: "toolchain",
        what: "rustfmt, clippy, the standard libraries for arm64 and musl",
        run: install::toolchain,
    },
    Step { name: "tidy", what: "the house rules", run: |w| tidy::run(w, &options()) },
    Step { name: "format", what: "rustfmt", run: |w| cargo(w, &["fmt", "--all", "--check"], &[]) },
    Step { name: "clippy", what: "lints, all targets, and the features for memory checkers", run: clippy },
    Step { name: "arm64", what: "the library type-checks for arm64", run: arm64 },
    Step {
        name: "public",
        what: "the crate's public items",
        run: |w| public::run(w, &public::Args::default()),
    },
    Step { name: "doc", what: "the documentation builds without a warning", run: doc },
    Step {
        name: "release",
        what: "release build of all that users get",
        run: |w| shown_and_checked(&mut w.release_build()),
    },
    Step { name: "golden", what: "the machine code of the fast path", run: |w| golden::run(w, &options()) },
    Step {
        name: "results",
        what: "the pages of docs/results are what its JSON files give",
        run: |w| results::run(w, &results::Args::checking()),
    },
    Step {
        name: "balance",
        what: "docs/results' curves are what the simulation gives",
        run: |w| balance::run(w, &balance::Args::checking()),
    },
    Step {
        name: "scale",
        what: "what CPUs share: lines and atomics, counted",
        run: |w| scale::run(w, &scale::Args::checking()),
    },
    Step { name: "loom", what: "models of the protocols, every interleaving", run: testing::loom },
    Step { name: "test", what: "all tests, with and without restartable sequences", run: testing::all },
    Step { name: "test-own", what: "threads that the library registers itself", run: testing::own },
    Step {
        name: "checkers",
        what: "valgrind and AddressSanitizer see faults in memory of caches",
        run: |w| checkers::run(w, &options()),
    },
    Step { name: "musl", what: "everything for musl, tested there", run: for_musl },
    Step {
        name: "dist",
        what: "staging a release, and using it elsewhere",
        run: |w| dist::run(w, &dist::Args::checking()),
    },
    Step { name: "deb", what: "Debian packages: lintian, installed, used and removed", run: deb },
];

/// Runs the steps.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let steps = chosen(args)?;
    if args.list {
        steps.iter().for_each(|step| println!("{:<12} {}", step.name, step.what));
        return Ok(());
    }
    let begin = Instant::now();
    let mut times = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!("\n=== {}/{} {}: {}", index + 1, steps.len(), step.name, step.what);
        std::io::stdout().flush()?;
        let start = Instant::now();
        let outcome = (step.run)(workspace);
        times.push((step.name, start.elapsed()));
        if let Err(error) = outcome {
            summary(&times);
            return Err(
                error.context(format!("step `{}` failed; again: cargo xtask ci --only {0}", step.name))
            );
        }
    }
    summary(&times);
    println!("ci: all {} steps passed in {}", steps.len(), shown(begin.elapsed()));
    Ok(())
}

fn chosen(args: &Args) -> Result<Vec<&'static Step>> {
    if let Some(unknown) =
        args.only.iter().chain(&args.skip).find(|name| STEPS.iter().all(|s| s.name != **name))
    {
        bail!("there is no step `{unknown}`; `cargo xtask ci --list` lists them");
    }
    let listed = |names: &[String], step: &Step| names.iter().any(|name| name == step.name);
    let steps: Vec<&Step> = STEPS
        .iter()
        .filter(|s| (args.only.is_empty() || listed(&args.only, s)) && !listed(&args.skip, s))
        .collect();
    ensure!(!steps.is_empty(), "--only and --skip leave no step to run");
    Ok(steps)
}

fn summary(times: &[(&str, Duration)]) {
    println!();
    for (name, time) in times {
        println!("{name:<12} {:>8}", shown(*time));
    }
}

fn shown(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1}s", time.as_secs_f64())
    } else {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
    }
}

/// The options of another command, all at their defaults.
fn options<T: clap::Args>() -> T {
    #[derive(Parser)]
    struct Only<T: clap::Args> {
        #[command(flatten)]
        options: T,
    }
    Only::parse_from(["xtask"]).options
}

const NOT_UTF8: &str = "the target directory's path is not UTF-8";

/// Runs cargo with the mode chosen by the step, not by the caller's environment.
fn cargo(workspace: &Workspace, args: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut command = workspace.cargo(args);
    command.env_remove("USLAB_RSEQ").envs(environment.iter().copied());
    shown_and_checked(&mut command)
}

fn shown_and_checked(command: &mut Command) -> Result<()> {
    println!("$ {}", workspace::line_of(command));
    std::io::stdout().flush()?;
    workspace::check(command)
}

/// The step `checkers` tests the features for memory checkers.
fn clippy(workspace: &Workspace) -> Result<()> {
    let deny = ["--", "-D", "warnings"];
    cargo(workspace, &[&["clippy", "--workspace", "--all-targets"][..], &deny].concat(), &[])?;
    let checkers = ["clippy", "--package", "uslab-capi", "--features", "asan,valgrind"];
    cargo(workspace, &[&checkers[..], &deny].concat(), &[])
}

fn arm64(workspace: &Workspace) -> Result<()> {
    if !install::has_rustup() {
        println!("skipped: without rustup there is no standard library for {}", install::ARM64);
        return Ok(());
    }
    cargo(
        workspace,
        &["clippy", "--package", "uslab", "--target", install::ARM64, "--", "-D", "warnings"],
        &[],
    )
}

fn for_musl(workspace: &Workspace) -> Result<()> {
    if !install::has_rustup() || cfg!(not(target_arch = "x86_64")) {
        println!("skipped: there is no standard library for {}", musl::TARGET);
        return Ok(());
    }
    musl::run(workspace, &options())
}

fn deb(workspace: &Workspace) -> Result<()> {
    if !install::is_debian() {
        println!("skipped: this is no Debian");
        return Ok(());
    }
    deb::run(workspace, &deb::Args::checking_stage())
}

/// The command is left out: it has the library's name, and both would write to one place.
fn doc(workspace: &Workspace) -> Result<()> {
    let args = ["doc", "--workspace", "--exclude", "uslab-cli", "--no-deps"];
    cargo(workspace, &args, &[("RUSTDOCFLAGS", "-D warnings")])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str], skip: &[&str]) -> Result<Vec<&'static str>> {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let args = Args { only: owned(only), skip: owned(skip), list: false };
        Ok(chosen(&args)?.iter().map(|step| step.name).collect())
    }

    #[test]
    fn steps_are_chosen_by_name_in_their_order() {
        assert_eq!(names(&["clippy", "tidy"], &[]).unwrap(), ["tidy", "clippy"]);
        assert_eq!(names(&["clippy", "tidy"], &["tidy"]).unwrap(), ["clippy"]);
        assert_eq!(names(&[], &[]).unwrap().len(), STEPS.len());
        assert!(names(&["nothing"], &[]).is_err());
        assert!(names(&["tidy"], &["tidy"]).is_err(), "no step is no success");
    }

    #[test]
    fn times_are_shown_in_the_unit_that_reads_best() {
        assert_eq!(shown(Duration::from_millis(1540)), "1.5s");
        assert_eq!(shown(Duration::from_secs(125)), "2m05s");
    }
}

//! `cargo xtask ci`: everything that must hold before a change lands, in one command on a fresh
//! Debian.
//!
//! The steps run in order and the first that fails ends the run. Each prints its heading and all
//! output of its program, so that the log has the test runners' closing lines.
//!
//! Steps are ordered by their cost: rules and lints first, programs and staging last.

mod install;

use crate::workspace::{self, Workspace};
use crate::{balance, checkers, deb, dist, golden, musl, public, results, scale, tidy};
use anyhow::{Context, Result, bail};
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
    /// List the steps and stop.
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
    Step { name: "loom", what: "models of the protocols, every interleaving", run: loom },
    Step {
        name: "test",
        what: "all tests; programs in both modes",
        run: |w| cargo(w, &["test", "--workspace"], &[]),
    },
    Step { name: "test-locked", what: "the same without restartable sequences", run: test_locked },
    Step { name: "test-own", what: "threads that the library registers itself", run: test_own },
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
    if args.list {
        for step in STEPS {
            println!("{:<12} {}", step.name, step.what);
        }
        return Ok(());
    }
    let steps = chosen(args)?;
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
    Ok(STEPS
        .iter()
        .filter(|s| (args.only.is_empty() || listed(&args.only, s)) && !listed(&args.skip, s))
        .collect())
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

/// Cargo's setting of a program that runs each test program, but not those of `tests/`, which run
/// their programs in both modes themselves, and of the tools, which know no modes. To exclude these
/// packages would change the features of what they share with others, and compile all of it anew.
const LOCKED_RUNNER: &str = r#"target.'cfg(unix)'.runner = ["sh", "-c", 'case $CARGO_PKG_NAME in uslab-tests|xtask) ;; *) exec "$@" ;; esac', "sh"]"#;

fn test_locked(workspace: &Workspace) -> Result<()> {
    cargo(workspace, &["test", "--workspace", "--config", LOCKED_RUNNER], &[("USLAB_RSEQ", "0")])
}

const NOT_UTF8: &str = "the target directory's path is not UTF-8";

/// What depends on the registration of threads, as on glibc before 2.35. The build has a directory
/// of its own: it has other sequences.
fn test_own(workspace: &Workspace) -> Result<()> {
    let target = workspace.target.join("own");
    let directory = target.to_str().context(NOT_UTF8)?;
    let own =
        [("USLAB_RSEQ", "own"), ("GLIBC_TUNABLES", "glibc.pthread.rseq=0"), ("CARGO_TARGET_DIR", directory)];
    let tests = ["sequences", "threads", "fork", "destroy", "refused", "heaps"].map(|name| ["--test", name]);
    let library_tests = ["test", "-p", "uslab", "--features", "register-threads", "--lib"];
    cargo(workspace, &[&library_tests[..], &tests.concat()].concat(), &own)?;
    let preload = ["build", "--release", "-p", "uslab-preload", "--features", "register-threads"];
    cargo(workspace, &preload, &own[2..])?;
    let library = format!("{directory}/release/libuslab_malloc.so");
    let conformance = ["test", "-p", "uslab-tests", "--test", "conformance", "--", "::rseq"];
    cargo(workspace, &conformance, &[own[0], own[1], ("USLAB_LIB", &library)])
}

/// Loom replaces the atomics, so it has a build directory of its own. Release: it explores many
/// interleavings. Optimising across crates would take longer than it saves.
fn loom(workspace: &Workspace) -> Result<()> {
    if !workspace.root.join("crates/uslab/tests/loom.rs").is_file() {
        bail!("crates/uslab/tests/loom.rs is missing: the protocols must have their models");
    }
    let target = workspace.target.join("loom");
    let target = target.to_str().context(NOT_UTF8)?;
    let flags = format!("{} --cfg loom", std::env::var("RUSTFLAGS").unwrap_or_default());
    let environment = [
        ("RUSTFLAGS", flags.trim()),
        ("CARGO_TARGET_DIR", target),
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ];
    cargo(workspace, &["test", "--package", "uslab", "--release", "--test", "loom"], &environment)
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
    }

    #[test]
    fn times_are_shown_in_the_unit_that_reads_best() {
        assert_eq!(shown(Duration::from_millis(1540)), "1.5s");
        assert_eq!(shown(Duration::from_secs(125)), "2m05s");
    }
}

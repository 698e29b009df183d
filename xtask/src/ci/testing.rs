//! The steps that run tests.
//!
//! Tests wait half of their time, for timers and for programs. So the step `test` runs two parts at
//! once: the tests of the library and its tools, with restartable sequences and then without, and
//! those of `tests/`, which run each program in both modes. The tools that see only other processes
//! are tested once.

use super::{NOT_UTF8, cargo, shown_and_checked};
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// All tests, the library's in both modes.
pub fn all(workspace: &Workspace) -> Result<()> {
    cargo(workspace, &["test", "--workspace", "--no-run"], &[])?;
    // Without `--tests`, rustdoc would look for tests in the documentation of all packages again.
    let programs = part(workspace, &["test", "--tests"], r#"uslab-tests) exec "$@""#);
    let programs = Beside::start(programs)?;
    let mut rseq = part(workspace, &["test"], r#"uslab-tests) ;; *) exec "$@""#);
    rseq.env("USLAB_RSEQ", "1");
    let tools = "uslab-tests|uslab-cli|uslab-bench|uslab-scale|xtask";
    let mut locked = part(workspace, &["test"], &format!(r#"{tools}) ;; *) exec "$@""#));
    locked.env("USLAB_RSEQ", "0");
    let library = shown_and_checked(&mut rseq).and_then(|()| shown_and_checked(&mut locked));
    if library.is_err() {
        programs.stop()?;
        return library;
    }
    programs.finish()
}

/// Cargo with a program that runs the test programs of some packages only: `arms` are those of a
/// shell's `case`, by the package's name. To exclude packages would change the features of what
/// they share with others, and compile all of it anew.
fn part(workspace: &Workspace, args: &[&str], arms: &str) -> Command {
    let runner = format!(
        r#"target.'cfg(unix)'.runner = ["sh", "-c", 'case $CARGO_PKG_NAME in {arms} ;; esac', "sh"]"#
    );
    let mut command = workspace.cargo(args);
    command.args(["--workspace", "--config", &runner]).env_remove("USLAB_RSEQ");
    command
}

/// A command that runs beside others; its output is shown when it has ended.
struct Beside {
    line: String,
    child: Child,
    output: File,
}

impl Beside {
    fn start(mut command: Command) -> Result<Beside> {
        let line = workspace::line_of(&command);
        let output = tempfile::tempfile().context("cannot make a temporary file")?;
        command.stdout(output.try_clone()?).stderr(output.try_clone()?).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
        Ok(Beside { line, child, output })
    }

    /// Ends the command and what it started, and shows its output so far.
    fn stop(mut self) -> Result<()> {
        let group = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGTERM);
        self.child.wait()?;
        self.show()
    }

    fn show(&mut self) -> Result<()> {
        println!("$ {}", self.line);
        self.output.rewind()?;
        io::copy(&mut self.output, &mut io::stdout())?;
        Ok(io::stdout().flush()?)
    }

    fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        self.show()?;
        if !status.success() {
            bail!("`{}` failed: {status}", self.line);
        }
        Ok(())
    }
}

/// What depends on the registration of threads, as on glibc before 2.35. The build has a directory
/// of its own: it has other sequences.
pub fn own(workspace: &Workspace) -> Result<()> {
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
    let conformance = ["test", "--workspace", "--test", "conformance", "--", "::rseq"];
    cargo(workspace, &conformance, &[own[0], own[1], ("USLAB_LIB", &library)])
}

/// Loom replaces the atomics, so it has a build directory of its own. Release: it explores many
/// interleavings. Optimising across crates would take longer than it saves.
pub fn loom(workspace: &Workspace) -> Result<()> {
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

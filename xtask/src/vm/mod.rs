//! `cargo xtask vm`: tests that need a machine of their own, in guests.
//!
//! A developer's machine or a container often has no memory limits, pressure files or second node
//! that a test may set. A guest has. Each test boots one: Debian's kernel under QEMU, with the
//! programs under test as its only files.
//!
//! ```text
//!   machine.rs     QEMU, the kernel, the command that boots
//!   initramfs.rs   the guest's files
//!   guest.rs       one guest's life, as seen from its console
//!   cases.rs       the tests
//! ```
//!
//! The programs inside the guests are `tests/vm/guest`. Nothing here needs root or KVM, and nothing
//! is installed.

mod cases;
mod guest;
mod initramfs;
mod machine;

use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, bail};
use cases::{CASES, Case, Host, Options, Sizes};
use machine::{Arch, Machine};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `cargo xtask vm`.
#[derive(clap::Args)]
#[command(
    after_help = "Each test boots a guest of its own: QEMU, with KVM where it works, 8 CPUs on 2 nodes or as many as the test says,
Debian's cloud kernel, a control group with the limits of the test. The command shows the guest's output behind a bar,
then judges the test. Emulated CPUs are slow: expect seconds for a boot, a minute for limits and several for a storm. Ctrl-C ends the
guest.

It needs QEMU for the guests' processor and, the first time, apt-get to download a kernel, which is
kept in target/vm.

Examples:
  cargo xtask vm                       all tests, minutes
  cargo xtask vm boots                 the quickest of them: is the guest what it should be?
  cargo xtask vm limits --minutes 10   the full run of the memory limits
  cargo xtask vm boots --keep          keep the guest's files and show the command that boots it again
  cargo xtask vm --arch aarch64 storm  the many-thread tests on 64-bit Arm

docs/guide/testing-in-guests.md explains what is tested and how to look into a guest that fails."
)]
pub struct Args {
    /// Tests to run; all if none is named.
    #[arg(value_name = "TEST")]
    tests: Vec<String>,
    /// List the tests and stop.
    #[arg(long)]
    list: bool,
    /// How long the tests of memory limits run in the guest.
    #[arg(long, value_name = "MINUTES", default_value_t = 1.0)]
    minutes: f64,
    /// In the test of limits, a loop of the program calls reclaim instead of the library's own
    /// thread.
    #[arg(long)]
    own_loop: bool,
    /// When the guest's kernel backs memory with huge pages; by default as on Debian: always.
    #[arg(long, value_name = "WHEN", value_parser = ["always", "madvise", "never"])]
    huge_pages: Option<String>,
    /// The guests' processor. One that is not the host's is emulated, with static programs.
    #[arg(long, value_enum, default_value_t = Arch::HOST)]
    arch: Arch,
    /// Let QEMU emulate the processor even where KVM works.
    #[arg(long)]
    emulate: bool,
    /// Keep the guests' files, and show the commands that boot them.
    #[arg(long)]
    keep: bool,
    /// Succeed without a test if QEMU or a kernel is missing.
    #[arg(long)]
    skip_if_absent: bool,
}

/// Runs the tests.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.list {
        for case in CASES {
            println!("{:<14} {}", case.name, case.what);
        }
        return Ok(());
    }
    if !(args.minutes > 0.0 && args.minutes <= 600.0) {
        bail!("--minutes {}: more than 0, and 600 at most", args.minutes);
    }
    let cases = chosen(&args.tests)?;
    let dir = machine::dir(workspace);
    let machine = match Machine::find(&dir, args.arch, args.emulate) {
        Ok(machine) => machine,
        Err(error) if args.skip_if_absent => {
            println!("vm: skipped: {error:#}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    println!("vm: guests run by {}", machine.accelerator.name());
    let session = Session { machine, files: Files::build(workspace, &dir, args.arch)?, args };
    session.run(&cases)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Case>> {
    for name in names {
        if CASES.iter().all(|case| case.name != name) {
            bail!("there is no test `{name}`; `cargo xtask vm --list` lists them");
        }
    }
    Ok(CASES.iter().filter(|case| names.is_empty() || names.iter().any(|name| name == case.name)).collect())
}

/// The files that were built for guests.
struct Files {
    initramfs: PathBuf,
    three_caches: PathBuf,
}

impl Files {
    fn build(workspace: &Workspace, dir: &Path, arch: Arch) -> Result<Files> {
        std::fs::create_dir_all(dir)?;
        println!("vm: building the guests' programs");
        let host = workspace.release_dir();
        workspace::check(&mut workspace.cargo(&["build", "-q", "--release", "-p", "uslab-vm-guest"]))?;
        let mut release = host.clone();
        if let Some(target) = arch.target() {
            let mut build = cargo(workspace, &["build", "-q", "--release", "-p", "uslab-vm-guest"], arch);
            workspace::check(&mut build)
                .with_context(|| format!("has rustup the target? rustup target add {target}"))?;
            release = workspace.target.join(target).join("release");
        }
        let mut programs: Vec<(String, PathBuf)> =
            cases::PROGRAMS.iter().map(|name| (name.to_string(), release.join(name))).collect();
        programs.extend(test_binaries(workspace, arch)?);
        // The name has this process's id, so that concurrent runs do not write one file.
        let initramfs = dir.join(format!("initramfs-{}.cpio", std::process::id()));
        initramfs::write(&initramfs, &release.join("vm-init"), &programs)?;
        Ok(Files { initramfs, three_caches: host.join("three-caches") })
    }
}

/// The file of an empty disk. Dropping it removes the file, unless `keep` is set.
struct Disk {
    file: PathBuf,
    keep: bool,
}

/// The disk is used for swapping alone.
const DISK_BYTES: u64 = 256 << 20;

impl Files {
    fn disk(&self, keep: bool) -> Result<Disk> {
        let disk = Disk { file: self.initramfs.with_extension("disk"), keep };
        // The file is one hole, so unwritten parts take no room.
        std::fs::File::create(&disk.file)?.set_len(DISK_BYTES)?;
        Ok(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !self.keep {
            // A file that cannot be removed stays in the build directory.
            let _ = std::fs::remove_file(&self.file);
        }
    }
}

/// A cargo command for the processor of the guests.
fn cargo(workspace: &Workspace, args: &[&str], arch: Arch) -> Command {
    let mut command = workspace.cargo(args);
    if let Some(target) = arch.target() {
        // Rust's own linker links for every processor.
        let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
        command.args(["--target", target]).env(linker, "rust-lld");
    }
    command
}

/// Builds the library's tests that storms run; their names and where they are.
fn test_binaries(workspace: &Workspace, arch: Arch) -> Result<Vec<(String, PathBuf)>> {
    let mut args = vec!["test", "-q", "--release", "--package", "uslab", "--no-run", "--message-format=json"];
    cases::STORMS.iter().for_each(|name| args.extend(["--test", name]));
    let mut command = cargo(workspace, &args, arch);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("`{}` failed: {}", workspace::line_of(&command), output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let built: Vec<serde_json::Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    cases::STORMS
        .iter()
        .map(|&name| {
            let found = built
                .iter()
                .filter(|message| message["target"]["name"] == name)
                .find_map(|message| message["executable"].as_str())
                .with_context(|| format!("cargo built no test {name}"))?;
            Ok((name.to_string(), found.into()))
        })
        .collect()
}

/// A run of the command.
struct Session<'a> {
    machine: Machine,
    files: Files,
    args: &'a Args,
}

impl Session<'_> {
    fn run(&self, cases: &[&Case]) -> Result<()> {
        let host = Host { three_caches: &self.files.three_caches };
        let wanted = host.three_caches(&["--wanted"])?["bytes"].as_u64().context("no size")?;
        let sizes = Sizes::of(wanted);
        let options =
            Options { run: Duration::from_secs_f64(self.args.minutes * 60.0), own_loop: self.args.own_loop };
        let huge_pages = self.args.huge_pages.iter();
        let parameters: Vec<String> = huge_pages.map(|when| format!("transparent_hugepage={when}")).collect();
        let interrupted = guest::interrupts()?;
        let mut failed = Vec::new();
        for (at, case) in cases.iter().enumerate() {
            println!("\n=== {}/{} {}: {}", at + 1, cases.len(), case.name, case.what);
            let (mut words, limit) = (case.plan)(&options, &sizes);
            // The guest's own limit ends it when this process is gone.
            words.insert(0, format!("limit={}", limit.as_secs()));
            let disk = case.has_disk.then(|| self.files.disk(self.args.keep)).transpose()?;
            let disk = disk.as_ref().map(|disk| disk.file.as_path());
            let mut command = self.machine.boot(case.shape, &self.files.initramfs, disk, &parameters, &words);
            if self.args.keep {
                println!("$ {}", workspace::line_of(&command));
            }
            let begin = Instant::now();
            let outcome = guest::run(&mut command, limit + Duration::from_secs(30), &interrupted);
            let seconds = begin.elapsed().as_secs_f64();
            let stop = interrupted.load(std::sync::atomic::Ordering::Relaxed);
            match outcome.and_then(|outcome| judge(case, &outcome, &host)) {
                Ok(told) => println!("ok   {} in {seconds:.1} s: {told}", case.name),
                Err(error) => {
                    println!("FAIL {} after {seconds:.1} s: {error:#}", case.name);
                    failed.push(case.name);
                }
            }
            if stop {
                bail!("interrupted");
            }
        }
        match &failed[..] {
            [] => {
                println!("\nvm: all {} tests passed", cases.len());
                Ok(())
            }
            _ => bail!(
                "{} failed; `cargo xtask vm {} --keep` shows how to boot it again",
                failed.join(", "),
                failed[0]
            ),
        }
    }
}

fn judge(case: &Case, outcome: &guest::Outcome, host: &Host) -> Result<String> {
    if !outcome.off || outcome.steps.is_empty() {
        bail!("the guest did not come to its end; what it wrote is above");
    }
    (case.judge)(outcome, host)
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.args.keep {
            // A file that cannot be removed stays in the build directory.
            let _ = std::fs::remove_file(&self.files.initramfs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_chosen_by_name_in_their_order() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            chosen(&names).map(|cases| cases.iter().map(|case| case.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["limits", "boots"]).unwrap(), ["boots", "limits"]);
        assert_eq!(names(&[]).unwrap().len(), CASES.len());
        assert!(names(&["nothing"]).is_err());
    }
}

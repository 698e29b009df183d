//! Checks a staged or installed release in any place: the command runs programs, manual pages and
//! completions are sound, and C programs build with pkg-config and CMake.
//!
//! `cargo xtask dist --check` checks a copy of the stage, `cargo xtask deb --check` the installed
//! packages. Where a tool that reads pages or completions is missing, the check prints that it was
//! skipped.

use crate::manual;
use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The places of an installation.
pub struct Installed {
    /// The prefix: `/usr`.
    pub prefix: PathBuf,
    /// The folder of libraries.
    pub lib: PathBuf,
    /// The library that the command preloads.
    pub preload: PathBuf,
    /// The folder with zsh's completion.
    pub zsh: PathBuf,
    /// The examples in C.
    pub examples: PathBuf,
    /// Variables that make pkg-config look there.
    pub pkg_config: Vec<(&'static str, PathBuf)>,
}

impl Installed {
    /// A tree laid out as `cargo xtask dist` stages it.
    pub fn at(prefix: &Path) -> Installed {
        Installed {
            prefix: prefix.into(),
            lib: prefix.join("lib"),
            preload: prefix.join("lib/libuslab_malloc.so"),
            zsh: prefix.join("share/zsh/site-functions"),
            examples: prefix.join("share/doc/uslab/crates/uslab-capi/examples"),
            pkg_config: vec![("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))],
        }
    }

    /// Runs all checks.
    pub fn check(&self) -> Result<()> {
        self.command()?;
        self.manual()?;
        self.completions()?;
        self.gdb()?;
        self.pkg_config()?;
        self.cmake()
    }

    /// `uslab` runs a program on the library of its own installation, and only there.
    fn command(&self) -> Result<()> {
        let run = |args: &[&str]| {
            let mut command = Command::new(self.prefix.join("bin/uslab"));
            command.args(args).env_remove("USLAB_LIB").env_remove("LD_PRELOAD");
            output(&mut command)
        };
        ensure!(
            run(&["--version"])?.trim() == concat!("uslab ", env!("CARGO_PKG_VERSION")),
            "another version"
        );
        run(&["run", "--", "/bin/true"])?;
        let preloaded = run(&["run", "--", "sh", "-c", "echo $LD_PRELOAD"])?;
        ensure!(Path::new(preloaded.trim()) == self.preload, "`uslab run` preloads {}", preloaded.trim());
        println!("uslab run: on {}", self.preload.display());
        Ok(())
    }

    /// mandoc and man read the pages without a warning, and the pages' programs run.
    fn manual(&self) -> Result<()> {
        let man = self.prefix.join("share/man");
        let (flags, mut examples) = (self.ask(&["--cflags", "--libs"])?, 0);
        let pages = manual::pages(&man)?;
        ensure!(!pages.is_empty(), "no manual pages in {}", man.display());
        for page in &pages {
            manual::lint(page)?;
            examples += manual::run_examples(page, &flags, &self.lib)?;
        }
        println!("manual: {} pages, {examples} programs in them", pages.len());
        Ok(())
    }

    /// The shells load the completions, and bash completes a command and an option.
    fn completions(&self) -> Result<()> {
        let bash = self.prefix.join("share/bash-completion/completions/uslab");
        let fish = self.prefix.join("share/fish/vendor_completions.d/uslab.fish");
        for (shell, file) in [("bash", &bash), ("zsh", &self.zsh.join("_uslab")), ("fish", &fish)] {
            ensure!(file.is_file(), "no {}", file.display());
            if has(shell) {
                let said = output(Command::new(shell).arg("-n").arg(file))?;
                ensure!(said.is_empty(), "{shell} has something to say to {}: {said}", file.display());
            } else {
                println!("skipped: there is no {shell} to read {}", file.display());
            }
        }
        if has("bash") {
            for (line, expected) in
                [("uslab r", "run"), ("uslab info --j", "--json"), ("uslab run --sta", "--stats")]
            {
                let words = completed(&bash, line)?;
                ensure!(words.iter().any(|word| word == expected), "bash completes `{line}` to {words:?}");
            }
        }
        println!("completions: loaded");
        Ok(())
    }

    /// gdb loads the script, which has its commands then.
    fn gdb(&self) -> Result<()> {
        let script = self.prefix.join("share/gdb/uslab.py");
        ensure!(script.is_file(), "no {}", script.display());
        if !has("gdb") {
            println!("skipped: there is no gdb to load {}", script.display());
            return Ok(());
        }
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-ex"]).arg(format!("source {}", script.display()));
        let said = output(gdb.args(["-ex", "uslab help"]))?;
        ensure!(said.contains("uslab find ADDRESS"), "the script for gdb prints no help: {said}");
        println!("gdb: the script is loaded");
        Ok(())
    }

    /// The output of pkg-config for the library.
    fn ask(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("pkg-config");
        command.args(args).arg("uslab").env_remove("PKG_CONFIG_PATH");
        for (name, value) in &self.pkg_config {
            command.env(name, value);
        }
        output(&mut command)
    }

    fn pkg_config(&self) -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let version = self.ask(&["--modversion"])?;
        ensure!(version.trim() == env!("CARGO_PKG_VERSION"), "pkg-config knows version {version}");
        let flags = self.ask(&["--cflags", "--libs"])?;
        for name in ["packet_pool", "shrinking_cache"] {
            let program = scratch.path().join(name);
            let source = self.examples.join(name).with_extension("c");
            let mut cc = Command::new("cc");
            cc.arg(source).args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
            output(cc.args(flags.split_whitespace()))?;
            self.runs(&program)?;
        }
        println!("pkg-config: programs build and run");
        Ok(())
    }

    fn cmake(&self) -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let build = scratch.path().join("build");
        std::fs::write(scratch.path().join("CMakeLists.txt"), CMAKE_LISTS)?;
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(scratch.path()).arg("-B").arg(&build);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", self.prefix.display()));
        let example = self.examples.join("packet_pool.c");
        output(configure.arg(format!("-DEXAMPLE={}", example.display())))?;
        output(Command::new("cmake").arg("--build").arg(&build))?;
        for name in ["shared", "static"] {
            self.runs(&build.join(name))?;
        }
        println!("CMake: programs build and run");
        Ok(())
    }

    /// The program ends well in both modes.
    fn runs(&self, program: &Path) -> Result<()> {
        for mode in [None, Some("0")] {
            let mut command = Command::new(program);
            command.env("LD_LIBRARY_PATH", &self.lib).env_remove("USLAB_RSEQ");
            command.envs(mode.map(|value| ("USLAB_RSEQ", value)));
            let said = output(&mut command)?;
            ensure!(said.ends_with("ok\n"), "{} did not say that it ended: {said}", program.display());
        }
        Ok(())
    }
}

const CMAKE_LISTS: &str = "\
cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(uslab 0.1 REQUIRED)
add_executable(shared ${EXAMPLE})
target_link_libraries(shared PRIVATE uslab::uslab)
add_executable(static ${EXAMPLE})
target_link_libraries(static PRIVATE uslab::uslab_static)
";

/// A copy of the stage in another place passes all checks, and contains no path of the stage.
pub fn check_moved(stage: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let prefix = scratch.path().canonicalize()?.join("opt/uslab");
    std::fs::create_dir_all(&prefix)?;
    output(Command::new("cp").arg("-a").arg(stage.join(".")).arg(&prefix))?;
    for text in ["lib/pkgconfig/uslab.pc", "lib/cmake/uslab/uslab-config.cmake"] {
        let text = prefix.join(text);
        let names_stage = std::fs::read_to_string(&text)?.contains(&stage.display().to_string());
        ensure!(!names_stage, "{} names the place where it was staged", text.display());
    }
    Installed::at(&prefix).check()
}

/// The words that bash offers at the end of the line.
fn completed(script: &Path, line: &str) -> Result<Vec<String>> {
    let words = line.split_whitespace().count();
    let previous = line.split_whitespace().rev().nth(1).unwrap_or_default();
    let last = line.split_whitespace().next_back().unwrap_or_default();
    let ask = format!(
        "source '{}' && COMP_WORDS=({line}) COMP_CWORD={} && _uslab uslab '{last}' '{previous}' && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        words - 1
    );
    let offered = output(Command::new("bash").args(["--norc", "--noprofile", "-c", &ask]))?;
    Ok(offered.lines().map(|word| word.trim().to_owned()).collect())
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs a command that must succeed; its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let line = workspace::line_of(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("`{line}` failed: {}\n{}", output.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

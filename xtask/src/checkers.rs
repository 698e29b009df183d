//! `cargo xtask checkers`: the library as built for valgrind and AddressSanitizer, under both.
//!
//! A program in C makes one fault a run in memory of a cache. The checker must report it, with the
//! functions that allocated, freed and accessed it; and nothing in a run without a fault.

use crate::capi;
use crate::staged::has;
use crate::workspace::{self, Workspace};
use anyhow::{Result, anyhow, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `cargo xtask checkers`.
#[derive(clap::Args)]
pub struct Args {}

/// The program.
const SOURCE: &str = "tests/capi/checkers.c";

/// A fault, and what the report of it must have.
struct Case {
    fault: &'static str,
    valgrind: &'static [&'static str],
    sanitizer: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        fault: "use-after-free",
        valgrind: &[
            "Invalid read of size 1",
            "3 bytes inside a block of size 61 free'd",
            "read_here",
            "give_here",
            "make_here",
        ],
        sanitizer: &["use-after-poison", "READ of size 1", "read_here"],
    },
    Case {
        fault: "overflow",
        valgrind: &[
            "Invalid write of size 1",
            "0 bytes after a block of size 61 alloc'd",
            "write_here",
            "make_here",
        ],
        sanitizer: &["use-after-poison", "WRITE of size 1", "write_here"],
    },
    Case {
        fault: "underflow",
        valgrind: &[
            "Invalid write of size 1",
            "1 bytes before a block of size 61 alloc'd",
            "write_here",
            "make_here",
        ],
        sanitizer: &["use-after-poison", "WRITE of size 1", "write_here"],
    },
    Case {
        fault: "leak",
        valgrind: &["61 bytes in 1 blocks are definitely lost", "make_here"],
        sanitizer: &[],
    },
    Case {
        fault: "uninitialised",
        valgrind: &["Conditional jump or move depends on uninitialised value", "checkers.c"],
        sanitizer: &[],
    },
    Case {
        fault: "malloc",
        valgrind: &["Invalid read of size 1", "0 bytes inside a block of size 100 free'd", "read_here"],
        sanitizer: &["use-after-poison", "READ of size 1", "read_here"],
    },
    Case {
        fault: "large",
        valgrind: &["Invalid read of size 1", "100,000 bytes inside a block of size 3,145,728 free'd"],
        sanitizer: &["use-after-poison", "READ of size 1", "read_here"],
    },
];

/// Builds the library and the program, and runs all cases.
pub fn run(workspace: &Workspace, _: &Args) -> Result<()> {
    ensure!(has("valgrind"), "there is no valgrind: apt-get install valgrind");
    let target = workspace.target.join("checkers");
    let mut build = workspace.cargo(&["build", "--package", "uslab-capi", "--features", "asan,valgrind"]);
    workspace::check(build.arg("--target-dir").arg(&target))?;
    let archive = target.join("debug/libuslab_capi.a");
    capi::stage(&workspace.root, &archive, &target, env!("CARGO_PKG_VERSION"), &capi::HOST)
        .map_err(|error| anyhow!(error))?;

    let plain = compile(workspace, &target, "plain", &[])?;
    for case in [None].into_iter().chain(CASES.iter().map(Some)) {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite"]).arg(&plain);
        judge(valgrind, case, case.map(|case| case.valgrind))?;
    }
    let sanitized =
        compile(workspace, &target, "sanitized", &["-fsanitize=address", "-fno-omit-frame-pointer"])?;
    for case in [None].into_iter().chain(CASES.iter().map(Some)) {
        let parts = case.map(|case| case.sanitizer);
        if parts.is_none_or(|parts| !parts.is_empty()) {
            judge(Command::new(&sanitized), case, parts)?;
        }
    }
    println!("checkers: valgrind and AddressSanitizer report faults in memory of caches");
    Ok(())
}

/// Compiles the program.
fn compile(workspace: &Workspace, target: &Path, name: &str, flags: &[&str]) -> Result<PathBuf> {
    let program = target.join(name);
    let lib = target.join("lib");
    let mut cc = Command::new("cc");
    cc.current_dir(&workspace.root)
        .args(["-O0", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(flags);
    cc.arg(SOURCE).arg(format!("-I{}", target.join("include").display()));
    cc.arg(format!("-L{}", lib.display())).arg(format!("-Wl,-rpath,{}", lib.display())).arg("-luslab");
    workspace::check(cc.arg("-o").arg(&program))?;
    Ok(program)
}

/// Runs the program for one case: it must end with a report that has all parts, or without one.
fn judge(mut command: Command, case: Option<&Case>, parts: Option<&[&str]>) -> Result<()> {
    let fault = case.map_or("none", |case| case.fault);
    command.arg(fault).env_remove("USLAB_RSEQ").env_remove("ASAN_OPTIONS");
    let line = workspace::line_of(&command);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() == parts.is_none(), "`{line}`: {}\n{said}", output.status);
    for part in parts.unwrap_or_default() {
        ensure!(said.contains(part), "`{line}` does not say `{part}`:\n{said}");
    }
    println!("{line}: {}", if parts.is_none() { "no report" } else { "reported" });
    Ok(())
}

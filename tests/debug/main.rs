//! Debugging: faulty programs on the preloaded library with `USLAB_DEBUG`, each fault with objects
//! of every kind and on every kind of thread.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use uslab_tests::harness::{Mode, Outcome, Program, Scratch, artifacts, tool};

#[macro_use]
extern crate uslab_tests;

mod corpus;
mod gdb;
mod leaks;
#[cfg(target_arch = "x86_64")]
mod plugins;
mod pprof;
mod profile;
mod programs;
mod stderr;
mod variable;

/// The program of `faults.cc`, compiled at the first call. Its exported names stand in reports.
fn faults() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(compile)
}

fn compile() -> PathBuf {
    compiled(("c++", "g++"), "faults.cc", "-w")
}

/// A program of this folder, by a compiler and its package, with one more option.
fn compiled(compiler: (&str, &str), source: &str, option: &str) -> PathBuf {
    let scratch = Scratch::new("debug-compile");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("debug").join(source);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("debug-{source}.out"));
    let built = Program::new(tool(compiler.0, compiler.1))
        .args(["-O1", "-g", "-Wall", "-Wextra", "-fno-builtin", "-pthread", "-rdynamic", option])
        .arg(file)
        .arg("-o")
        .arg(&program)
        .limit_s(120)
        .run_clean(&scratch, Mode::Plain);
    built.expect(built.stderr().is_empty(), "the compiler wrote to standard error");
    program
}

//! Field conditions: unusual machines and unusual programs.
//!
//! One file a subject. Most tests compile one C program from this directory and run it on the
//! preloaded library in both modes; a program prints its findings and ends with the line `ok`. By
//! hand: `cc -pthread FILE.c -ldl`, then run it under `LD_PRELOAD`, or without as a control.

use std::path::{Path, PathBuf};
use uslab_tests::harness::{Mode, Outcome, Program, Scratch, tool};

#[macro_use]
extern crate uslab_tests;

mod figures;
mod free_misuse;
mod guard;
mod hardening;
mod live;
mod memory;
mod process;

/// Compiles `tests/field/SOURCE.c` into the scratch directory, with `flags` after the usual ones.
/// The flags keep the compiler from eliding calls of the malloc family.
fn compile(scratch: &Scratch, source: &str, flags: &[&str]) -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("field").join(format!("{source}.c"));
    let program = scratch.join(source);
    let built = Program::new(tool("cc", "gcc"))
        .args(["-O1", "-g", "-Wall", "-Wextra", "-fno-builtin", "-pthread"])
        .arg(file)
        .arg("-o")
        .arg(&program)
        .arg("-ldl")
        .args(flags)
        .limit_s(120)
        .run_clean(scratch, Mode::Plain);
    built.expect(built.stderr().is_empty(), "the compiler wrote to standard error");
    program
}

/// Compiles `tests/field/SOURCE.c` and runs it on the preloaded library in `mode`. The program must
/// succeed, and end with the line `ok`.
fn run(source: &str, args: &[&str], mode: Mode) -> Outcome {
    let scratch = Scratch::new(source);
    let program = compile(&scratch, source, &[]);
    let outcome = Program::new(program).args(args).limit_s(120).run_clean(&scratch, mode);
    outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not print its last line");
    outcome
}

mod auto;
mod cancel;
mod churn;
mod copies;
mod cpus;
mod environ;
mod environment;
mod knobs;
mod many_caches;
mod membarrier;
mod realtime;
mod recorded;
mod running;
mod scheduling;
mod seen;
mod sigwait;
mod starts;
mod verdicts;

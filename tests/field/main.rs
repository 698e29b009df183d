//! Conditions of the field: what other machines and other people's programs do to an allocator.
//!
//! One file a subject. Most tests compile one C program from this directory and run it on the
//! preloaded library in both modes; a program prints what it found and ends with the line `ok`.
//! By hand: `cc -pthread FILE.c -ldl`, then run it under `LD_PRELOAD`, or without as a control.

use std::path::{Path, PathBuf};
use uslab_tests::harness::{Mode, Outcome, Program, Scratch, tool};

#[macro_use]
extern crate uslab_tests;

mod figures;
mod free_misuse;
mod memory;
mod process;

/// Compiles `tests/field/SOURCE.c` into the scratch directory, with `flags` behind the usual ones.
/// The compiler takes no call of the malloc family for one that it may leave out.
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
    built.expect(built.stderr().is_empty(), "the compiler had something to say");
    program
}

/// Compiles `tests/field/SOURCE.c`, runs it on the preloaded library in `mode`, and asks that it
/// ends well, with the line `ok`.
fn run(source: &str, args: &[&str], mode: Mode) -> Outcome {
    let scratch = Scratch::new(source);
    let program = compile(&scratch, source, &[]);
    let outcome = Program::new(program).args(args).limit_s(120).run_clean(&scratch, mode);
    outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not say that it ended");
    outcome
}

mod cpus;
mod environ;
mod environment;
mod membarrier;
mod realtime;
mod scheduling;
mod starts;

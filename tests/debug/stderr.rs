//! Reports to a standard error without a reader, in a pipe that is full, or under signals.

use super::*;

/// The program of `stderr.c`, compiled at the first call.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| super::compiled(("cc", "gcc"), "stderr.c", "-std=gnu11"))
}

/// Runs a case, in which the process goes on after the report.
fn run(kind: &str, scratch: &Scratch, mode: Mode) -> Outcome {
    let program = Program::new(program()).arg(kind).env("USLAB_ON_MISUSE", "report");
    let outcome = program.limit_s(60).run(scratch, mode);
    outcome.expect(outcome.succeeded(), "the process goes on");
    outcome
}

fn expect_report(kind: &str, mode: Mode) {
    let scratch = Scratch::new(&format!("stderr-{kind}"));
    let outcome = run(kind, &scratch, mode);
    let stdout = outcome.stdout();
    outcome.expect(stdout.starts_with("uslab: double free of 0x"), "the report arrives");
    outcome.expect(stdout.ends_with("\nend\n"), "the report is whole");
}

both_modes! {
    no_reader => |mode| {
        let scratch = Scratch::new("stderr-closed");
        let outcome = run("closed", &scratch, mode);
        outcome.expect(outcome.stdout() == "end\n", "no SIGPIPE is left");
    },
    full_pipe_that_does_not_block => |mode| expect_report("full", mode),
    full_pipe_and_signals => |mode| expect_report("interrupted", mode),
}

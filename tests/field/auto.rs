//! `USLAB_SNAPSHOT` without `uslab run`: the command sees a process that was started plainly, and
//! processes that end at once leave no files.

use super::{compile, run};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use uslab_tests::harness::{Mode, Program, Scratch, artifacts};

both_modes!(
    auto => a_plain_process_is_seen,
    exits => figures_leave_with_the_process,
);

fn figures_leave_with_the_process(mode: Mode) {
    run("exits", &[], mode);
    // No process waits for the figures.
    let scratch = Scratch::new("exits");
    let program = compile(&scratch, "exits", &[]);
    let outcome = Program::new(program).env("USLAB_SNAPSHOT_READER", "").limit_s(60).run(&scratch, mode);
    outcome.expect(outcome.succeeded() && outcome.stdout() == "ok\n", "a file is left");
}

fn a_plain_process_is_seen(mode: Mode) {
    let Some(command) = &artifacts().command else { return };
    let scratch = Scratch::new("auto");
    let mut program = Command::new(compile(&scratch, "live", &[]));
    program.env("LD_PRELOAD", &artifacts().library).env("USLAB_SNAPSHOT", "auto");
    program.env("USLAB_RSEQ", if mode == Mode::Locked { "0" } else { "1" });
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("readable");
    assert_eq!(line, "ready\n");

    let pid = child.id().to_string();
    // The word means the same to the command, in whose environment it may stand as well.
    for value in [None, Some("auto")] {
        let ask = |arguments: &[&str]| {
            let mut uslab = Command::new(command);
            uslab
                .args(arguments)
                .env_remove("USLAB_SNAPSHOT")
                .envs(value.map(|value| ("USLAB_SNAPSHOT", value)));
            let output = uslab.output().expect("started");
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        let figures = ask(&["info", &pid, "--table"]);
        assert!(figures.contains("malloc-64"), "{figures}");
        assert!(ask(&["info"]).lines().any(|line| line.trim_start().starts_with(&pid)), "not listed");
        assert!(ask(&["shrink", &pid]).contains("released"), "no answer");
    }

    // Its input ends, and so does the process, and its file with it.
    drop(child.stdin.take());
    assert!(child.wait().expect("waited").success());
    let output = Command::new(command).args(["info", &pid]).env_remove("USLAB_SNAPSHOT").output();
    assert!(!output.expect("started").status.success(), "a file is left");
}

//! `uslab run --stats` and signals: what reaches the program, how often, and what it starts with.

mod support;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use support::{Running, Sandbox, USLAB, library, outcome};

/// A program that exits with 9 at the named signal.
fn patient(signal: &str) -> String {
    format!("trap 'exit 9' {signal}; echo ready; for i in $(seq 500); do sleep 0.02; done")
}

#[test]
fn a_signal_sent_to_us_is_meant_for_the_program() {
    let sandbox = Sandbox::new();
    for signal in ["TERM", "INT", "HUP", "USR1", "QUIT"] {
        let (mut running, _output) =
            Running::start_ready(&mut sandbox.run_script(&["--stats"], &patient(signal)));
        running.kill(signal);
        let mut err = String::new();
        running.0.stderr.take().expect("a pipe").read_to_string(&mut err).expect("readable");
        assert_eq!(running.0.wait().expect("ended").code(), Some(9), "{signal}");
        assert!(err.starts_with("uslab: sh (pid "), "{signal}: {err}");
    }
}

#[test]
fn a_program_that_dies_of_it_is_reported() {
    let sandbox = Sandbox::new();
    let script = "echo ready; exec sleep 60";
    let (mut running, _output) = Running::start_ready(&mut sandbox.run_script(&["--stats"], script));
    running.kill("TERM");
    assert_eq!(running.0.wait().expect("ended").code(), Some(128 + 15));
}

#[test]
fn a_stopped_program_is_waited_for() {
    let sandbox = Sandbox::new();
    let script = "(sleep 0.2; kill -CONT $$) & kill -STOP $$; wait; exit 3";
    assert_eq!(outcome(&mut sandbox.run_script(&["--stats"], script)).0, 3);
}

#[test]
fn the_program_starts_with_our_mask_and_our_ignored_signals() {
    let sandbox = Sandbox::new();
    let signals_under = |uslab: &str| {
        let script = format!("trap '' HUP PIPE; exec {uslab} grep -E 'Sig(Blk|Ign)' /proc/self/status");
        let mut command = Command::new("sh");
        command.args(["-c", &script, USLAB]);
        command.env("USLAB_LIB", library()).env("USLAB_SNAPSHOT", &sandbox.snapshots);
        outcome(&mut command).1
    };
    let without = signals_under("");
    assert!(without.contains("SigBlk"), "{without}");
    assert!(without.ends_with("1001\n"), "hang-up and SIGPIPE are ignored: {without}");
    assert_eq!(signals_under("\"$0\" run"), without);
    assert_eq!(signals_under("\"$0\" run --stats"), without);
}

#[test]
fn ignoring_the_end_of_children_does_not_lose_it() {
    let sandbox = Sandbox::new();
    let ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = Command::new("python3");
    command.args(["-c", ignore, USLAB, "run", "--stats", "--", "sh", "-c", "exit 7"]);
    command.env("USLAB_LIB", library()).env("USLAB_SNAPSHOT", &sandbox.snapshots);
    if Command::new("python3").arg("--version").output().is_ok() {
        let (code, _, err) = outcome(&mut command);
        assert_eq!(code, 7, "{err}");
    }
}

/// On a terminal Ctrl-C goes to the whole foreground group: a program that counts must count one.
#[test]
fn a_key_at_the_terminal_reaches_the_program_once() {
    let sandbox = Sandbox::new();
    let file = sandbox.root.join("program");
    let program = "n=0; left=500; trap 'echo got; n=1' INT; echo ready\n\
                   while [ $n = 0 ] && [ $left -gt 0 ]; do sleep 0.02; left=$((left-1)); done; sleep 0.3; exit 4\n";
    std::fs::write(&file, program).expect("written");
    // script's shell must not be there any more: Ctrl-C ends it, and its status would be the one
    // that is seen.
    let line = format!("exec {USLAB} run --stats -- sh {}", file.display());
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]).stdin(Stdio::piped());
    command.env("USLAB_LIB", library()).env("USLAB_SNAPSHOT", &sandbox.snapshots).env("SHELL", "/bin/sh");
    let Ok(mut child) = command.stdout(Stdio::piped()).spawn() else {
        eprintln!("not tested: script(1) is not installed");
        return;
    };
    let mut keyboard = child.stdin.take().expect("a pipe");
    let mut screen = child.stdout.take().expect("a pipe");
    let mut running = Running(child);
    let mut shown = Vec::new();
    while !shown.ends_with(b"ready\r\n") {
        let mut byte = [0];
        screen.read_exact(&mut byte).expect("more output");
        shown.push(byte[0]);
    }
    keyboard.write_all(b"\x03").expect("written");
    let mut rest = String::new();
    screen.read_to_string(&mut rest).expect("readable");
    assert_eq!(rest.matches("got").count(), 1, "{rest}");
    assert!(rest.contains("uslab: sh (pid "), "{rest}");
    assert_eq!(running.0.wait().expect("ended").code(), Some(4));
}

//! `uslab validate`, `debug`, `shrink` and `limit`: what is asked of a process, and what is said of
//! its answer.

mod support;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use support::{Running, Sandbox, USLAB, is_root, outcome};

const DONE: (&str, &str) = ("FAKE_ANSWER", "1");

fn ask(sandbox: &Sandbox, running: &Running, command: &str, arguments: &[&str]) -> (i32, String, String) {
    let pid = running.pid();
    outcome(&mut sandbox.uslab(&[&[command, &pid][..], arguments].concat()))
}

#[test]
fn requests_reach_the_process_and_answers_are_safe_to_print() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[DONE]);
    let asks = |command: &str, arguments: &[&str], answer: &str| {
        let (code, out, err) = ask(&sandbox, &running, command, arguments);
        assert_eq!((code, err.as_str()), (0, ""));
        assert_eq!(out, format!("{answer}, in time\n"));
    };
    asks("validate", &[], "valid: \u{fffd}[1mverb 1, values 0 0, text ");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("opened");
    let mut lost = sandbox.uslab(&["validate", &running.pid()]);
    let output = lost.stdout(full).stderr(Stdio::piped()).output().expect("ran");
    assert_eq!(output.status.code(), Some(3), "not a fault that was found: {output:?}");
    asks("debug", &["malloc-64,other*", "FU"], "\u{fffd}[1mverb 2, values 0 0, text FU,malloc-64,other*");
    asks("debug", &["malloc-64", "-"], "\u{fffd}[1mverb 2, values 0 0, text -,malloc-64");
    let (code, _, err) = ask(&sandbox, &running, "debug", &["malloc-64", ""]);
    assert!(code == 2 && err.contains("a value is required for '<LETTERS>'"), "{code} {err}");
    asks("shrink", &[], "\u{fffd}[1mverb 3, values 0 0, text ");
    asks("shrink", &["a cache"], "\u{fffd}[1mverb 3, values 0 0, text a cache");
    asks("limit", &["4K", "1G"], "\u{fffd}[1mverb 4, values 4096 1073741824, text ");
}

#[test]
fn exit_status_tells_refusals_from_faults() {
    let sandbox = Sandbox::new();
    for (result, codes, parts) in
        [("2", [3, 1], ["uslab: refused: ", "uslab: refused: "]), ("3", [1, 0], ["uslab: not valid: ", ""])]
    {
        let running = sandbox.sleeper(&[("FAKE_ANSWER", result)]);
        let asked = [("validate", &[][..]), ("shrink", &[][..])].into_iter().zip(codes).zip(parts);
        for (((command, arguments), expected), part) in asked {
            let (code, _, err) = ask(&sandbox, &running, command, arguments);
            assert!(code == expected && err.contains(part), "{command}: {code} {err}");
        }
    }
}

#[test]
fn a_process_that_does_not_answer_is_named() {
    let sandbox = Sandbox::new();
    let silent = sandbox.sleeper(&[]);
    let (code, out, err) = ask(&sandbox, &silent, "validate", &["--timeout", "0.2"]);
    assert_eq!((code, out.as_str()), (3, ""));
    assert!(err.contains("(sleep) did not answer within 0.2 s: it has no background thread"), "{err}");
    let dying = sandbox.sleeper(&[DONE, ("FAKE_DIES", "1")]);
    let (code, _, err) = ask(&sandbox, &dying, "shrink", &[]);
    assert!(code == 1 && err.contains("ended before it answered"), "{err}");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["debug", "2147483647", "x", "F"]));
    assert!(code == 1 && err.contains("no such process"), "{err}");
}

#[test]
fn a_process_that_executed_another_program_is_not_asked() {
    let sandbox = Sandbox::new();
    let script = "echo ready; read line; exec env -u LD_PRELOAD sleep 1000";
    let mut command = sandbox.run_script(&[], script);
    let (mut running, _out) = Running::start_ready(command.stdin(Stdio::piped()));
    running.become_sleep();
    let (code, _, err) = ask(&sandbox, &running, "shrink", &[]);
    assert!(code == 1 && err.contains("(sleep) has executed another program"), "{err}");
}

#[test]
fn one_command_at_a_time_asks() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[DONE]);
    let file = File::open(sandbox.snapshots.join(running.pid())).expect("a snapshot");
    file.lock().expect("locked");
    let (code, _, err) = ask(&sandbox, &running, "shrink", &["--timeout", "0.1"]);
    assert!(code == 1 && err.contains("another command asks process"), "{err}");
    // It waits for its turn.
    let mut waiting = sandbox.uslab(&["shrink", &running.pid()]).stdout(Stdio::null()).spawn().expect("ran");
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(waiting.try_wait().expect("waited").is_none());
    drop(file);
    assert!(waiting.wait().expect("ended").success());
}

#[test]
fn what_is_no_request_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[DONE]);
    assert_eq!(ask(&sandbox, &running, "limit", &["1.5G", "2G"]).0, 2);
    assert_eq!(ask(&sandbox, &running, "debug", &["malloc-64"]).0, 2);
    let (code, _, err) = ask(&sandbox, &running, "shrink", &[&"x".repeat(256)]);
    assert!(code == 1 && err.contains("longer than 255 bytes"), "{err}");
}

#[test]
fn another_users_process_is_not_asked() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[DONE]);
    let mut command = Command::new(USLAB);
    command.args(["shrink", &running.pid()]).uid(65534).gid(65534).env("USLAB_SNAPSHOT", &sandbox.snapshots);
    // The build directory may be closed to others: then that user cannot run the program.
    if let Ok(output) = command.output() {
        let (code, _, err) = support::texts(output);
        assert!(code == 1 && err.contains("belongs to user 0; ask as that user or as root"), "{err}");
    }
}

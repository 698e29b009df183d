//! Operators' knobs: settings from the program's own string, from the environment and by request,
//! limits, and the report at exit. A wrong value is one line, and the default.

use super::compile;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use uslab_tests::harness::{Mode, Program, Scratch, artifacts};

both_modes! {
    origins => each_setting_names_its_origin,
    limit => a_hard_limit_from_the_environment_holds,
    at_limit => no_object_has_two_owners_where_allocations_fail,
    stats => the_report_at_exit_is_written,
}

/// The program exports its string, as one that links the library does.
fn knobs(scratch: &Scratch) -> std::path::PathBuf {
    compile(scratch, "knobs", &["-rdynamic"])
}

fn each_setting_names_its_origin(mode: Mode) {
    let Some(command) = &artifacts().command else { return };
    let scratch = Scratch::new("knobs");
    let snapshots = scratch.private_dir("snapshots");
    let uslab = |arguments: &[&str]| {
        let mut uslab = Command::new(command);
        uslab.args(arguments).env("USLAB_SNAPSHOT", &snapshots).env("USLAB_LIB", &artifacts().library);
        uslab
    };
    let mut run = uslab(&["run", "--limit", "50%,3G", "--"]);
    run.arg(knobs(&scratch)).env("USLAB_DECAY_MS", "100");
    run.env("USLAB_CONF", "cpu_bytes=65536,secure=maybe");
    if mode == Mode::Locked {
        run.env("USLAB_RSEQ", "0");
    }
    let mut child =
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("readable");
    let pid = child.id().to_string();
    let settings = |pid: &str| {
        let output = uslab(&["info", pid, "--settings"]).output().expect("info");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let before = settings(&pid);
    let asked = uslab(&["limit", &pid, "1G", "2G"]).output().expect("limit");
    let after = settings(&pid);
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("ended");

    let has = |text: &str, name: &str, value: &str, origin: &str| {
        let found = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let words: Vec<&str> = found.split_ascii_whitespace().collect();
        assert_eq!(words, [name, value, origin], "{text}");
    };
    has(&before, "decay_ms", "100", "environment");
    has(&before, "cpu_bytes", "65536", "USLAB_CONF");
    has(&before, "limit", "50%,3G", "environment");
    has(&before, "huge_pages", "auto", "default");
    has(&before, "secure", "0", "default");
    has(&before, "stats", "0", "uslab_conf");
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    has(&after, "limit", "1073741824,2147483648", "request");
    assert!(after.contains("limits: soft 1 GiB, hard 2 GiB; "), "{after}");

    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "uslab: huge_pages in uslab_conf is ignored: it is none of auto, never, always",
        "uslab: uslab_conf: there is no setting `no_such`",
        "uslab: secure in USLAB_CONF is ignored: column 1: none of 1, check, canary, zero, quarantine, order, \
         ranges; nothing is hardened beyond the default",
    ];
    assert_eq!(lines, expected);
}

fn a_hard_limit_from_the_environment_holds(mode: Mode) {
    let scratch = Scratch::new("knobs");
    let program = Program::new(knobs(&scratch)).arg("beyond").env("USLAB_LIMIT", "32M,64M");
    let outcome = program.run_clean(&scratch, mode);
    let got_mib: u64 = outcome.stdout().trim().parse().expect("a number");
    outcome.expect((40..=64).contains(&got_mib), "the limit of 64 MiB does not hold");
}

fn no_object_has_two_owners_where_allocations_fail(mode: Mode) {
    let scratch = Scratch::new("at_limit");
    let program = compile(&scratch, "at_limit", &[]);
    // A profile serves from sheaves of its own, which the limit may refuse.
    let ways: [&[(&str, &str)]; 5] = [
        &[],
        &[("USLAB_PROFILE", "524288")],
        &[("USLAB_PROFILE", "524288"), ("USLAB_REAPER", "0")],
        &[("USLAB_PROFILE", "4096"), ("USLAB_GUARD", "1")],
        &[("USLAB_DEBUG", "F")],
    ];
    for way in ways {
        let program = Program::new(&program).env("USLAB_LIMIT", "40M,60M");
        way.iter().fold(program, |program, (name, value)| program.env(name, value)).run_clean(&scratch, mode);
    }
}

fn the_report_at_exit_is_written(mode: Mode) {
    let scratch = Scratch::new("knobs");
    let outcome =
        Program::new(knobs(&scratch)).arg("beyond").env("USLAB_STATS", "1").run_clean(&scratch, mode);
    let said = outcome.stderr();
    outcome.expect(said.contains("uslab: memory of process "), "no report");
    let row = said
        .lines()
        .find(|line| line.starts_with("uslab: malloc-1024 ") || line.starts_with("uslab: malloc-1k "));
    outcome.expect(row.is_some(), "no row of the cache of 1024 bytes");
    outcome.expect(said.contains("uslab: limits: 2147483648 soft, 0 hard"), "no limits");
}

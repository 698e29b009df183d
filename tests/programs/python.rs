//! Python's own test suite: JSON, threads, forked workers with shared memory, child processes.
//!
//! Only after a failure, the suite runs again without the allocator. A case that fails there too,
//! in the same place, is due to the machine (a sandbox, a superuser): it is printed and ignored. A
//! case that fails only under the allocator fails the test. There is no retry.
//!
//! Python allocates objects of up to 512 bytes from its own arenas. The second check turns those
//! off (`PYTHONMALLOC=malloc`), so that every object comes from uslab.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Outcome, Program, Scratch, tool};

both_modes!(suite => whole_suite, objects => every_object);

const PACKAGE: &str = "python3 libpython3.11-testsuite";

fn whole_suite(mode: Mode) {
    let parts = ["test_json", "test_threading", "test_multiprocessing_fork", "test_subprocess"];
    // The suite ran 1000 to 1300 cases with Python 3.9 to 3.13; far fewer means that it skipped a
    // part.
    run_parts(mode, &parts, &[], 800);
}

fn every_object(mode: Mode) {
    run_parts(
        mode,
        &["test_json", "test_threading", "test_dict", "test_gc"],
        &[("PYTHONMALLOC", "malloc")],
        400,
    );
}

fn run_parts(mode: Mode, parts: &[&str], env: &[(&str, &str)], cases_min: usize) {
    let outcome = run(mode, parts, env);
    let (scratch, outcome) = (&outcome.0, outcome.1.expect_served());
    let cases = cases(scratch);
    outcome.expect(cases.ran >= cases_min, &format!("only {} cases ran, not {cases_min}", cases.ran));
    eprintln!("python {parts:?} {mode:?}: {} cases, {:.0} s", cases.ran, outcome.wall_s());
    if outcome.succeeded() && cases.failed.is_empty() {
        return;
    }
    outcome.expect(!cases.failed.is_empty(), "the suite failed without naming a case");
    let baseline = run(Mode::Plain, parts, env);
    let known = self::cases(&baseline.0).failed;
    for name in cases.failed.intersection(&known) {
        eprintln!("excluded, it fails without the allocator too: {name}");
    }
    let ours: Vec<_> = cases.failed.difference(&known).collect();
    outcome.expect(ours.is_empty(), &format!("cases that fail only under the allocator: {ours:#?}"));
}

/// One run of the suite. `-j4` gives each part a process of its own, started by the suite's runner:
/// the parts sleep for most of their time.
fn run(mode: Mode, parts: &[&str], env: &[(&str, &str)]) -> (Scratch, Outcome) {
    let scratch = Scratch::new("py");
    let mut program = Program::new(interpreter())
        .args(["-m", "test", "-j4", "--timeout", "400", "--junit-xml", "cases.xml", "--tempdir"])
        .arg(scratch.dir("t"))
        .args(parts)
        .limit_s(900);
    for (key, value) in env {
        program = program.env(key, value);
    }
    let outcome = program.run(&scratch, mode);
    (scratch, outcome)
}

/// The contents of the suite's report.
struct Cases {
    ran: usize,
    failed: BTreeSet<String>,
}

/// Reads the JUnit report. Python writes one element a case, on one line or with the failure
/// inside.
fn cases(scratch: &Scratch) -> Cases {
    let text = std::fs::read_to_string(scratch.join("cases.xml")).unwrap_or_default();
    let mut cases = Cases { ran: 0, failed: BTreeSet::new() };
    for element in text.split("<testcase ").skip(1) {
        cases.ran += 1;
        let body = element.split("</testcase>").next().unwrap_or(element);
        if body.contains("<failure") || body.contains("<error") {
            let name = body.split("name=\"").nth(1).and_then(|n| n.split('"').next());
            cases.failed.insert(name.unwrap_or("a case without a name").to_string());
        }
    }
    cases
}

/// A Python with its test suite: the system's, or the one on `PATH`. The latter may be a version
/// manager's shim, so the function asks it for its own path.
fn interpreter() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let script = "import sys, test.test_json, test.test_multiprocessing_fork; print(sys.executable)";
        for candidate in [PathBuf::from("/usr/bin/python3"), tool("python3", PACKAGE)] {
            let Ok(output) = std::process::Command::new(candidate).args(["-c", script]).output() else {
                continue;
            };
            if output.status.success() {
                return String::from_utf8_lossy(&output.stdout).trim().into();
            }
        }
        panic!("no python3 here has the test suite `test`. On Debian: apt-get install {PACKAGE}");
    })
}

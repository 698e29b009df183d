//! Real programs under debugging: none of them gets a report.

use super::*;

/// Runs a shell command with each set of letters. It must end as it does without the library, and
/// no line of the library may appear.
fn expect_no_report(name: &str, command: &str, mode: Mode) {
    let scratch = Scratch::new(&format!("debug-{name}"));
    let sh = |letters: &str| {
        let program = Program::new("/bin/bash").args(["-c", command]).env("USLAB_DEBUG", letters);
        program.dir(env!("CARGO_MANIFEST_DIR"))
    };
    let plain = sh("").run_clean(&scratch, Mode::Plain);
    for letters in if mode == Mode::Locked { &["FZPU"][..] } else { &["F", "FZPU"] } {
        let outcome = sh(letters).run_clean(&scratch, mode);
        outcome.expect(outcome.stdout() == plain.stdout(), "the output differs");
        outcome.expect(!outcome.stderr().contains("uslab"), "a report");
    }
}

both_modes! {
    python => |mode| expect_no_report(
        "python",
        "python3 -c 'import json, re, decimal; print(len(json.dumps([str(i) * 9 for i in range(9999)])))'",
        mode,
    ),
    bash => |mode| expect_no_report(
        "bash",
        "for i in $(seq 300); do x=\"$x$(echo $i)\"; done; echo ${#x}; ls / | sort | head -5",
        mode,
    ),
    git => |mode| expect_no_report(
        "git",
        "d=$(mktemp -d); cd $d && git init -q . && seq 5000 > f && git add f && git hash-object f && git fsck; rm -rf $d",
        mode,
    ),
    compiler => |mode| expect_no_report(
        "compiler",
        "d=$(mktemp -d); g++ -O1 -w -o $d/x debug/faults.cc -pthread && $d/x none 100 thread && echo built; rm -rf $d",
        mode,
    ),
}

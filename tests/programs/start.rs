//! The start of a program: the library is mapped into the program and its children, exit statuses
//! and signals are passed on, and the output is unchanged.

use uslab_tests::harness::{Mode, Program, Scratch, artifacts, tool};

both_modes!(mapped => is_mapped, exit_status => status_passes);

/// `/proc/self/maps` of a program, and of a program that it starts, names the library.
fn is_mapped(mode: Mode) {
    let scratch = Scratch::new("start");
    let name = artifacts().library.file_name().expect("a file name").to_string_lossy().into_owned();
    for script in ["exec cat /proc/self/maps", "cat /proc/self/maps; exit 0"] {
        let sh = Program::new(tool("sh", "dash")).args(["-c", script]);
        let outcome = sh.run_clean(&scratch, mode);
        let maps = outcome.stdout();
        outcome.expect(
            maps.contains("/cat") && maps.contains("[stack]"),
            "this is not a list of cat's mappings",
        );
        outcome.expect(maps.contains(&name), "the library is not mapped");
        outcome.expect(outcome.stderr().is_empty(), "something was written to standard error");
    }
}

/// A status other than 0 reaches the caller unchanged, and so does the fact that a signal ended the
/// program.
fn status_passes(mode: Mode) {
    let scratch = Scratch::new("status");
    let sh = tool("sh", "dash");
    for (script, wanted) in
        [("exit 7", "exit status 7"), ("kill -TERM $$", "15"), ("exit 255", "exit status 255")]
    {
        let outcome = Program::new(&sh).args(["-c", script]).run(&scratch, mode);
        let ended = outcome.ended();
        // Ended by a signal, or by the shell's convention of 128 more: a caller can tell in both
        // cases.
        let passed = ended.contains(wanted) || (wanted == "15" && ended.contains("143"));
        outcome.expect(passed, &format!("`{script}` ended with {ended}"));
        outcome.expect_served();
    }
}

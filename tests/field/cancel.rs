//! Canceled threads: the library has no cancellation points, whatever it opens, reads or writes.

use super::{compile, run};
use uslab_tests::harness::{Mode, Program, Scratch};

both_modes! {
    a_canceled_thread_goes_on_while_it_allocates => grows,
    a_canceled_thread_goes_on_after_a_report => misuses,
    threads_are_canceled_at_random => |mode| run("cancel", &["at random"], mode),
}

fn grows(mode: Mode) {
    let scratch = Scratch::new("cancel");
    let file = compile(&scratch, "cancel", &[]);
    let snapshots = scratch.private_dir("snapshots");
    let snapshots = snapshots.to_str().expect("a path in UTF-8");
    let settings = [
        ("USLAB_CPU_BYTES", ""),
        ("USLAB_DEBUG", "FZPU"),
        ("USLAB_SECURE", "1"),
        ("USLAB_PROFILE", "4096"),
        ("USLAB_SNAPSHOT", snapshots),
    ];
    for (variable, value) in settings {
        for bytes in ["1000", "100000"] {
            let program = Program::new(&file).args(["grows", bytes]).env(variable, value).limit_s(120);
            let outcome = program.run(&scratch, mode);
            let is_whole = outcome.succeeded() && outcome.stdout() == "ok\n";
            outcome.expect(is_whole, &format!("blocks of {bytes} bytes with {variable}={value}"));
        }
    }
}

fn misuses(mode: Mode) {
    let scratch = Scratch::new("cancel-misuse");
    let reports = scratch.join("reports");
    let program = Program::new(compile(&scratch, "cancel", &[])).arg("misuses").limit_s(60);
    let program = program.env("USLAB_ON_MISUSE", "report").env("USLAB_DEBUG", "F");
    let outcome = program.env("USLAB_DEBUG_REPORT", &reports).run(&scratch, mode);
    outcome.expect(outcome.succeeded() && outcome.stdout() == "ok\n", "the thread must come to its end");
    let report = std::fs::read_to_string(reports).unwrap_or_default();
    outcome.expect(report.contains("uslab: "), &format!("no report, but {report:?}"));
}

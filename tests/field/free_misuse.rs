//! Double frees and interior pointers, passed to the preloaded `free` and its relatives. The
//! library reports each at once, with the exact cause. Then the process ends, or continues with
//! every object intact, as the user chose.

use super::compile;
use uslab_tests::harness::{Mode, Outcome, Program, Scratch};

const OWED: &str = "owed: ";

/// Checks that a report follows each line in which the program announces a misuse, and that there
/// are no other reports.
fn expect_reports(outcome: &Outcome) {
    let stderr = outcome.stderr();
    let mut lines = stderr.lines();
    while let Some(line) = lines.next() {
        let Some((free, what)) = line.strip_prefix(OWED).and_then(|owed| owed.split_once(": ")) else {
            outcome.fail(&format!("not owed: {line}"));
        };
        let report = lines.next().unwrap_or_default();
        let is_paid = report.starts_with("uslab: ") && report.contains(&format!("{free}: {what}"));
        outcome.expect(is_paid, &format!("owed {free}: {what}; reported {report:?}"));
    }
    outcome.expect(stderr.contains(OWED), "the program announced no misuse");
}

/// Runs `case` twice. By default the library must report and abort. Under `USLAB_ON_MISUSE=report`
/// it must report each misuse and continue.
fn expect_caught(case: &str, mode: Mode) {
    let scratch = Scratch::new(&format!("free_misuse-{case}"));
    let program = Program::new(compile(&scratch, "free_misuse", &[])).arg(case).limit_s(60);

    let aborted = program.run(&scratch, mode);
    aborted.expect(aborted.ended() == "signal 6", "a misuse must end the process");
    expect_reports(&aborted);

    let told = program.env("USLAB_ON_MISUSE", "report").run(&scratch, mode);
    told.expect(
        told.succeeded() && told.stdout() == "ok\n",
        "the program must continue with all objects intact",
    );
    expect_reports(&told);
}

both_modes! {
    freed_twice => |mode| expect_caught("twice", mode),
    freed_twice_in_every_class => |mode| expect_caught("every-class-twice", mode),
    freed_twice_whatever_the_sheaf_holds => |mode| expect_caught("twice-many", mode),
    inside_of_an_object => |mode| expect_caught("inside", mode),
    inside_of_an_object_of_every_class => |mode| expect_caught("every-class-inside", mode),
    behind_the_last_object_of_a_slab => |mode| expect_caught("behind-the-last", mode),
    inside_of_a_large_object => |mode| expect_caught("large", mode),
    freed_with_a_size => |mode| expect_caught("sized", mode),
    deleted => |mode| expect_caught("delete", mode),
    reallocated => |mode| expect_caught("realloc", mode),
}

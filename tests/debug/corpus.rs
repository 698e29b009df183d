//! The corpus: each fault, with small, odd, large and page-run objects, on the main thread, on
//! another thread and in a fork child. The report must name the kind, the address and the stacks.

use super::*;

/// Sizes of objects: of 16-byte steps, odd, of a large class, runs of a medium class, beyond.
const SIZES: [usize; 5] = [48, 61, 5000, 100_000, 3 << 20];
const PLACES: [&str; 3] = ["main", "thread", "fork"];

/// A fault, and the report that it must cause.
struct Case {
    /// The program's name for it.
    name: &'static str,
    /// The kind, in JSON.
    kind: &'static str,
    /// A function in the stack of the fault; empty where the place of discovery is not that of the
    /// fault.
    at: &'static str,
    /// Functions in the stacks of the object's history; empty where there is none.
    allocated: &'static str,
    freed: &'static str,
}

const fn case(
    name: &'static str,
    kind: &'static str,
    at: &'static str,
    allocated: &'static str,
    freed: &'static str,
) -> Case {
    Case { name, kind, at, allocated, freed }
}

/// Runs `case` with every size, in every place.
fn check(case: &Case, mode: Mode) {
    let scratch = Scratch::new(&format!("debug-{}", case.name));
    // The mode changes nothing but the slots' locks, so one place is enough for the second one.
    let places = if mode == Mode::Locked { &PLACES[1..2] } else { &PLACES[..] };
    for size in SIZES {
        for &place in places {
            let run = Program::new(faults())
                .args([case.name, &size.to_string(), place])
                .env("USLAB_DEBUG", "FZPU")
                .env("USLAB_DEBUG_REPORT", "json:")
                .limit_s(60);
            expect_report(case, &run.run(&scratch, mode), place);
        }
    }
}

fn expect_report(case: &Case, outcome: &Outcome, place: &str) {
    let ended = if place == "fork" { "exit status 134 (signal 6?)" } else { "signal 6" };
    outcome.expect(outcome.ended() == ended, "the fault must end the process");
    let stderr = outcome.stderr();
    let reports: Vec<&str> = stderr.lines().filter(|line| line.starts_with('{')).collect();
    outcome.expect(reports.len() == 1, "there must be one report");
    let report = reports[0];
    let has = |text: &str| report.contains(text);
    outcome.expect(has(&format!("\"fault\":\"{}\"", case.kind)), "the kind is wrong");
    let stdout = outcome.stdout();
    let address = stdout.trim();
    outcome.expect(has(&format!("\"pointer\":\"{address}\"")), "the address is wrong");
    for (key, function) in [("", case.at), ("\"allocated\":", case.allocated), ("\"freed\":", case.freed)] {
        if function.is_empty() {
            continue;
        }
        let Some(at) = report.find(key) else { outcome.fail(&format!("the report has no {key}")) };
        let stack = report[at..].split_once("\"stack\":").map_or("", |(_, stack)| stack);
        let end = stack.find(']').unwrap_or(stack.len());
        let is_named = stack[..end].contains(&format!("({function}+"));
        outcome.expect(is_named, &format!("the stack {key} does not name {function}"));
    }
}

macro_rules! corpus {
    ($($test:ident: $name:literal, $kind:literal, $at:literal, $allocated:literal, $freed:literal;)+) => {
        both_modes! {$(
            $test => |mode| check(&case($name, $kind, $at, $allocated, $freed), mode),
        )+}
    };
}

corpus! {
    overflow: "overflow", "overflow", "give_here", "make_here", "";
    overflow_by_a_word: "overflow-8", "overflow", "give_here", "make_here", "";
    overflow_of_an_aligned_object: "overflow-aligned", "overflow", "give_here", "make_aligned_here", "";
    overflow_after_realloc: "overflow-after-realloc", "overflow", "give_here", "", "";
    underflow: "underflow", "underflow", "give_here", "make_here", "";
    write_after_free: "write-after-free", "write-after-free", "", "make_here", "give_here";
    write_after_free_at_exit: "write-after-free-at-exit", "write-after-free", "", "make_here", "give_here";
    write_to_the_end_after_free: "write-after-free-at-end", "write-after-free", "", "make_here", "give_here";
    double_free: "double-free", "double-free", "give_here", "make_here", "give_here";
    double_free_delayed: "double-free-delayed", "double-free", "give_here", "make_here", "give_here";
    interior_pointer: "interior", "invalid-free", "give_here", "make_here", "";
    misaligned_pointer: "misaligned", "invalid-free", "give_here", "make_here", "";
    foreign_stack: "foreign-stack", "foreign-free", "give_here", "", "";
    foreign_static: "foreign-static", "foreign-free", "give_here", "", "";
    realloc_after_free: "realloc-after-free", "double-free", "", "make_here", "give_here";
    wrong_size: "wrong-size", "wrong-size", "delete_sized_here", "make_new_here", "";
    new_and_free: "new-free", "mismatch", "give_here", "make_new_here", "";
    malloc_and_delete: "malloc-delete", "mismatch", "delete_here", "make_here", "";
    new_array_and_delete: "array-delete", "mismatch", "delete_here", "make_array_here", "";
    new_and_delete_array: "new-delete-array", "mismatch", "delete_array_here", "make_new_here", "";
}

both_modes! {
    // A program without faults gets no report, with all objects.
    no_fault => |mode| {
        let scratch = Scratch::new("debug-none");
            for letters in ["F", "FZ", "FZPU", "P", "U"] {
            for size in SIZES {
                let run = Program::new(faults())
                    .args(["none", &size.to_string(), "thread"])
                    .env("USLAB_DEBUG", letters);
                let outcome = run.run_clean(&scratch, mode);
                outcome.expect(outcome.stderr().is_empty(), "a report without a fault");
            }
        }
    },
    // Without abort the program continues, and its memory is whole.
    faults_that_the_program_survives => |mode| {
        let scratch = Scratch::new("debug-continue");
            for fault in ["overflow", "double-free", "interior", "write-after-free", "wrong-size", "new-free"] {
            for size in SIZES {
                let run = Program::new(faults())
                    .args([fault, &size.to_string(), "main"])
                    .env("USLAB_DEBUG", "FZPU")
                    .env("USLAB_ON_MISUSE", "report");
                let outcome = run.run(&scratch, mode);
                outcome.expect(outcome.succeeded(), "the program must continue");
                outcome.expect(outcome.stderr().matches("uslab: ").count() == 1, "one report");
            }
        }
    },
    // Thousands of faults at random, of records too, break nothing but what they write to.
    storm => |mode| {
        let scratch = Scratch::new("debug-storm");
        for seed in ["1", "2", "3"] {
            let run = Program::new(faults())
                .args(["storm", seed, "thread"])
                .env("USLAB_DEBUG", "FZPU")
                .env("USLAB_ON_MISUSE", "report");
            let outcome = run.run(&scratch, mode);
            outcome.expect(outcome.succeeded(), "the program must reach its end");
            let reports = outcome.stderr().lines().filter(|line| line.starts_with("uslab: ")).count();
            outcome.expect(reports > 300, "each fault is reported");
        }
    },
    // An overflow of an object that is never freed is found at exit, in caches.
    overflow_at_exit => |mode| {
        let scratch = Scratch::new("debug-exit");
            let case = case("overflow-at-exit", "overflow", "", "make_here", "");
        for size in &SIZES[..3] {
            let run = Program::new(faults())
                .args([case.name, &size.to_string(), "main"])
                .env("USLAB_DEBUG", "FZPU")
                .env("USLAB_DEBUG_REPORT", "json:");
            expect_report(&case, &run.run(&scratch, mode), "main");
        }
    },
}

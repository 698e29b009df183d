//! Guard pages: a corpus of faulty programs, generated from a table, under `USLAB_GUARD=all`; the
//! program's own handlers; samples beside threads and forks.
//!
//! A program says on standard error what it owes. The report must begin so, with that address, and
//! name the functions that allocated, freed and misused the object.

use super::compile;
use std::path::PathBuf;
use uslab_tests::harness::{Mode, Outcome, Program, Scratch};

const OWED: &str = "owed: ";

/// How the objects of a case are allocated and freed: the prefix of a fault's name in `guard.c`.
const FAMILIES: [&str; 6] = ["", "calloc-", "realloc-", "aligned-", "new-", "sized-"];
/// Faults that every object can have.
const FAULTS: [&str; 9] =
    ["overread", "overwrite", "slack", "underread", "underwrite", "read", "write", "twice", "inside"];
/// Small, odd, large: both kinds of slots, one page and more.
const SIZES: [usize; 7] = [1, 24, 100, 1024, 1025, 5000, 70_000];
const PLACES: [&str; 3] = ["here", "thread", "fork"];

/// The cases of the table: every fault with every size in every place, and with every family for
/// three sizes.
fn cases() -> impl Iterator<Item = (String, usize, &'static str)> {
    let sizes = SIZES.iter().flat_map(|&size| PLACES.map(|place| ("", size, place)));
    let families =
        FAMILIES[1..].iter().flat_map(|&family| [40, 1000, 3001].map(|size| (family, size, "here")));
    let all: Vec<_> = sizes.chain(families).collect();
    all.into_iter()
        .flat_map(|(family, size, place)| FAULTS.map(|fault| (format!("{family}{fault}"), size, place)))
}

fn program(scratch: &Scratch) -> PathBuf {
    compile(scratch, "guard", &["-rdynamic"])
}

/// The frames below the line of the report that begins with `start`.
fn frames<'a>(report: &'a str, start: &str) -> &'a str {
    let part = report.split_once(start).map_or("", |(_, part)| part);
    let end = part.match_indices("\n  ").find(|(at, _)| !part[at + 3..].starts_with(' '));
    end.map_or(part, |(at, _)| &part[..at])
}

/// Checks that the report pays what the program owes, and names its functions.
fn expect_report(outcome: &Outcome, fault: &str) {
    let stderr = outcome.stderr();
    let mut lines = stderr.lines();
    let owed = lines.next().and_then(|line| line.strip_prefix(OWED));
    let Some(owed) = owed else { outcome.fail("the program owed nothing") };
    let headline = lines.next().and_then(|line| line.strip_prefix("uslab: ")).unwrap_or_default();
    let is_paid =
        headline.starts_with(owed) && !headline[owed.len()..].starts_with(|c: char| c.is_alphanumeric());
    outcome.expect(is_paid, &format!("owed {owed:?}; reported {headline:?}"));
    let found = frames(&stderr, "\n  found ");
    outcome.expect(found.contains("(misuses+") || found.contains("(frees+"), "the stack of the fault");
    outcome.expect(frames(&stderr, "\n  allocated ").contains("(allocates+"), "the stack of the allocation");
    let kind = fault.rsplit('-').next().unwrap_or(fault);
    if ["read", "write", "twice"].contains(&kind) {
        outcome.expect(frames(&stderr, "\n  freed ").contains("(frees+"), "the stack of the free");
    }
}

fn corpus(mode: Mode) {
    let scratch = Scratch::new("guard");
    let file = program(&scratch);
    let mut count = 0;
    for (fault, size, place) in cases() {
        if fault.ends_with("inside") && size == 1 {
            continue;
        }
        // Only an object at the start of its slot has a guard page before it.
        let guard = if fault.ends_with("underread") { "all,left" } else { "all" };
        let program = Program::new(&file).arg(&fault).arg(size.to_string()).arg(place).limit_s(60);
        let outcome = program.env("USLAB_GUARD", guard).run(&scratch, mode);
        let signal = outcome.ended();
        outcome
            .expect(["signal 6", "signal 11"].contains(&signal.as_str()), "the fault must end the process");
        expect_report(&outcome, &fault);
        count += 1;
    }
    assert!(count >= 300, "{count} programs");
}

/// With `USLAB_ON_MISUSE=report` the program goes on after a report.
fn continues(mode: Mode) {
    let scratch = Scratch::new("guard-report");
    let file = program(&scratch);
    for fault in FAULTS {
        for size in [100, 5000] {
            let guard = if fault == "underread" { "all,left" } else { "all" };
            let program = Program::new(&file).arg(fault).arg(size.to_string()).arg("here").limit_s(60);
            let program = program.env("USLAB_GUARD", guard).env("USLAB_ON_MISUSE", "report");
            let outcome = program.run(&scratch, mode);
            outcome.expect(outcome.succeeded() && outcome.stdout() == "ok\n", "the program must go on");
            expect_report(&outcome, fault);
        }
    }
}

/// The program's handler of SIGSEGV works as without the library; a report comes before its call
/// for a guarded object, and for no other fault.
fn handlers(case: &str, mode: Mode) {
    let scratch = Scratch::new(&format!("guard-{case}"));
    let file = compile(&scratch, "guard_handlers", &[]);
    for guard in ["all", "0"] {
        let program = Program::new(&file).arg(case).limit_s(60).env("USLAB_GUARD", guard);
        // Without guard pages a freed object can be read.
        if guard == "0" && ["sigaction", "signal", "ends"].contains(&case) {
            continue;
        }
        let outcome = program.run(&scratch, mode);
        let is_done = outcome.succeeded() && outcome.stdout() == "ok\n";
        outcome.expect(is_done, "the handlers must work");
        let stderr = outcome.stderr();
        let (before, after) = stderr.split_once("guarded\n").unwrap_or((&stderr, ""));
        let reports = |text: &str| text.matches("uslab: ").count();
        let expected = match case {
            "sigaction" | "signal" => (0, 1),
            _ => (0, 0),
        };
        outcome.expect((reports(before), reports(after)) == expected, "one report, of the guarded object");
    }
}

/// A slot that is taken again before the handler of an access to it runs: the access is repeated.
fn reuses(mode: Mode) {
    let scratch = Scratch::new("guard-reuses");
    let file = compile(&scratch, "guard_handlers", &[]);
    let program = Program::new(&file).arg("reuses").limit_s(60).env("USLAB_GUARD", "all");
    let program = program.env("USLAB_ON_MISUSE", "report").env("USLAB_DEBUG_REPORT", "/dev/null");
    let outcome = program.run(&scratch, mode);
    let is_done = outcome.succeeded() && outcome.stdout() == "ok\n";
    outcome.expect(is_done, "the program must go on");
}

/// Reports keep within a small signal stack.
fn little_room(mode: Mode) {
    let scratch = Scratch::new("guard-room");
    let file = compile(&scratch, "guard_handlers", &[]);
    let program = Program::new(&file).arg("has_little_room").limit_s(60).env("USLAB_GUARD", "all");
    let outcome = program.run(&scratch, mode);
    let is_done = outcome.succeeded() && outcome.stdout() == "ok\n";
    outcome.expect(is_done, "a report must not write below the stack");
    let stderr = outcome.stderr();
    outcome.expect(stderr.contains("use after free: read of"), "reports where there is room");
    outcome.expect(stderr.contains("\n  freed "), "whole reports where there is more");
}

/// A value that cannot be heeded gives one line.
fn wrong_values(mode: Mode) {
    let scratch = Scratch::new("guard-values");
    let long = "x".repeat(300);
    for (name, value, line) in [
        (
            "USLAB_GUARD",
            "all,middle",
            "uslab: USLAB_GUARD is ignored: it is neither all nor a number of milliseconds, with left, right or \
             slots=N\n",
        ),
        ("USLAB_GUARD", "off", ""),
        ("USLAB_DEBUG", &long, "uslab: USLAB_DEBUG is ignored: longer than 256 bytes\n"),
        ("USLAB_GUARD", &long, "uslab: USLAB_GUARD is ignored: longer than 256 bytes\n"),
    ] {
        let outcome = Program::new("true").env(name, value).run(&scratch, mode);
        outcome.expect(outcome.succeeded() && outcome.stderr() == line, &format!("{name}={value}"));
    }
}

/// A library behind this one in the loader's order that defines `sigaction` too gets the calls, but
/// for those of SIGSEGV with guard pages.
fn passed_on(mode: Mode) {
    let scratch = Scratch::new("signals");
    let behind = compile(&scratch, "signals_behind", &["-shared", "-fPIC"]);
    let file = compile(&scratch, "signals", &[behind.to_str().expect("a UTF-8 path")]);
    for (guard, passed) in [("0", "1"), ("all", "0")] {
        let program = Program::new(&file).arg(passed).limit_s(60).env("USLAB_GUARD", guard);
        let outcome = program.run(&scratch, mode);
        let is_done = outcome.succeeded() && outcome.stdout() == "ok\n";
        outcome.expect(is_done, "the calls must reach the library behind");
    }
}

/// Threads, forks and all functions of the family, while many allocations are samples.
fn samples(guard: &str, mode: Mode) {
    let scratch = Scratch::new("guard-samples");
    let file = compile(&scratch, "guard_samples", &[]);
    let outcome = Program::new(file).arg("60").env("USLAB_GUARD", guard).limit_s(120).run(&scratch, mode);
    let is_done = outcome.succeeded() && outcome.stdout() == "sampled\nok\n";
    outcome.expect(is_done, "the program must find its objects whole");
    outcome.expect(outcome.stderr().is_empty(), "a false report");
}

both_modes! {
    guard_pages_catch_the_corpus => corpus,
    guard_pages_let_the_program_go_on => continues,
    guard_pages_beside_sigaction => |mode| handlers("sigaction", mode),
    guard_pages_beside_signal => |mode| handlers("signal", mode),
    guard_pages_beside_a_handler_that_serves_once => |mode| handlers("once", mode),
    guard_pages_keep_the_ends_of_programs => |mode| handlers("ends", mode),
    guard_pages_beside_threads_that_change_handlers => |mode| handlers("races", mode),
    guard_pages_beside_a_child_that_shares_the_memory => |mode| handlers("shares", mode),
    guard_pages_beside_forks_while_threads_change_handlers => |mode| handlers("forks", mode),
    guard_pages_of_a_slot_that_is_taken_again => reuses,
    guard_pages_on_a_small_signal_stack => little_room,
    values_that_are_wrong_give_one_line => wrong_values,
    signal_functions_call_the_next_library => passed_on,
    guard_pages_in_a_busy_program => |mode| samples("2,slots=16", mode),
    guard_pages_of_every_allocation_in_a_busy_program => |mode| samples("all,slots=300", mode),
}

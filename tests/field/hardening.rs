//! Faults that reach the allocator, by kind and size: how many the library reports, by default and
//! with `USLAB_SECURE=1`. None may lead to two owners of one object without a report.

use super::compile;
use std::collections::BTreeMap;
use uslab_tests::harness::{Mode, Program, Scratch};

/// Wrong frees.
const FREES: [&str; 15] = [
    "double",
    "delayed",
    "neighbours",
    "other-thread",
    "interior",
    "middle",
    "unaligned",
    "before",
    "stack",
    "static",
    "mapping",
    "wild",
    "smaller",
    "larger",
    "realloc",
];
/// Wrong writes, which only a hardened process can see.
const WRITES: [&str; 4] = ["overflow-1", "overflow-32", "underflow", "use"];
/// Wrong writes to objects that the program neither frees nor gets again: only a check of all
/// objects at exit sees them.
const KEPT: [&str; 3] = ["kept-overflow", "kept-underflow", "kept-use"];
/// Small, odd, of each kind of class, and beyond them.
const SIZES: [usize; 6] = [40, 100, 1000, 5000, 70_000, 2 << 20];

struct Found {
    cases: usize,
    reported: BTreeMap<&'static str, usize>,
}

impl Found {
    fn share(&self) -> f64 {
        self.reported.values().sum::<usize>() as f64 / self.cases as f64
    }
}

/// Commits each fault with each size in a process of its own.
fn commit(faults: &[&'static str], environment: &[(&str, &str)], mode: Mode) -> Found {
    let scratch = Scratch::new("hardening");
    let file = compile(&scratch, "hardening", &["-w"]);
    let mut found = Found { cases: 0, reported: BTreeMap::new() };
    for &fault in faults {
        for size in SIZES {
            let program = Program::new(&file).arg(fault).arg(size.to_string()).limit_s(60);
            let program = environment.iter().fold(program, |program, (name, value)| program.env(name, value));
            let outcome = program.run(&scratch, mode);
            let has_ended = ["signal 6", "signal 11"].contains(&outcome.ended().as_str());
            let is_reported = outcome.stderr().contains("uslab: ") && has_ended;
            outcome.expect(is_reported || outcome.succeeded(), "a report or a clean end");
            let is_silent = !is_reported && outcome.stdout() != "ok\n";
            let is_write = WRITES.contains(&fault) || KEPT.contains(&fault);
            outcome.expect(!is_silent || is_write, "two owners without a report");
            found.cases += 1;
            *found.reported.entry(fault).or_default() += usize::from(is_reported);
        }
    }
    println!("{environment:?}: {:.0} % of {}: {:?}", 100.0 * found.share(), found.cases, found.reported);
    found
}

fn by_default(mode: Mode) {
    let found = commit(&FREES, &[], mode);
    assert!(found.share() >= 0.6, "{:?}", found.reported);
}

fn secure(mode: Mode) {
    let found = commit(&[&FREES[..], &WRITES].concat(), &[("USLAB_SECURE", "1")], mode);
    assert!(found.share() >= 0.9, "{:?}", found.reported);
    assert_eq!(found.reported["overflow-32"], SIZES.len(), "{:?}", found.reported);
}

/// At exit all objects are checked: those in use, those in quarantines, and other free ones.
fn kept(mode: Mode) {
    let found = commit(&KEPT, &[("USLAB_SECURE", "1")], mode);
    assert!(found.reported.values().all(|&count| count == SIZES.len()), "{:?}", found.reported);
}

/// Guard pages report what they can of all sizes but the largest, which no slot holds.
fn guarded(mode: Mode) {
    let found = commit(&[&FREES[..], &WRITES].concat(), &[("USLAB_GUARD", "all")], mode);
    for (fault, &count) in &found.reported {
        // A sized free finds the object's own slot. The second free from another thread is reported
        // by default only when both meet.
        let is_harmless = ["smaller", "larger"].contains(fault);
        assert!(is_harmless || count >= SIZES.len() - 1, "{fault}: {:?}", found.reported);
    }
}

/// A program without a fault has no report, with every mitigation on.
fn faultless(mode: Mode) {
    let scratch = Scratch::new("hardening-none");
    let file = compile(&scratch, "hardening", &["-w"]);
    let variables = [
        ("USLAB_SECURE", "1"),
        ("USLAB_SECURE", "check,canary"),
        ("USLAB_SECURE", "order,ranges"),
        ("USLAB_GUARD", "all"),
        ("USLAB_GUARD", "2"),
    ];
    for (name, value) in variables {
        for size in SIZES {
            let program = Program::new(&file).arg("none").arg(size.to_string()).env(name, value).limit_s(60);
            let outcome = program.run_clean(&scratch, mode);
            outcome.expect(outcome.stdout() == "ok\n" && outcome.stderr().is_empty(), "a false report");
        }
    }
}

both_modes! {
    wrong_frees_by_default => by_default,
    faults_in_a_hardened_process => secure,
    faults_that_show_at_exit => kept,
    faults_between_guard_pages => guarded,
    no_fault_has_no_report => faultless,
}

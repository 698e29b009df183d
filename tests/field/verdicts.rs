//! The verdict of `uslab top` on programs whose memory has a known cause (`staged.c`).
//!
//! Time passes ten times as fast for the verdict as for the machine: eight seconds are 80. All
//! programs run at once. The verdict judges quarters of that time: where a program whose load comes
//! and goes stands still for most of a quarter, it looks as if its load had grown or sunk.

use super::seen::Seen;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use uslab_tests::harness::{Mode, Scratch, artifacts};

both_modes! {
    verdicts => each_cause_is_told,
}

/// The programs, and the cause of each in the words of the verdict.
const PROGRAMS: [(&str, &str); 16] = [
    ("leak_fast", "leak"),
    ("leak_slow", "leak"),
    ("leak_of_large", "leak"),
    ("leak_below_a_load", "leak"),
    ("fragmentation", "fragmentation"),
    ("fragmentation_of_classes", "fragmentation"),
    ("filling", "cache"),
    ("kept", "cache"),
    ("stacks", "elsewhere"),
    ("mappings", "elsewhere"),
    ("mappings_grow", "elsewhere"),
    ("page_cache", "not_known"),
    ("load", "not_known"),
    ("load_of_medium", "not_known"),
    ("sinking", "not_known"),
    ("idle", "not_known"),
];

/// The verdict, and its reasons.
fn told(command: &Path, scratch: &Scratch, mode: Mode, name: &str) -> Option<(String, String)> {
    // A second of decay is too little to see what is kept.
    let environment: &[_] = if name == "kept" { &[("USLAB_DECAY_MS", "never")] } else { &[] };
    let seen = Seen::with(scratch, mode, "staged", &[name], environment)?;
    let mut top = Command::new(command);
    top.args(["top", &seen.pid(), "--json", "-i", "0.2", "-n", "40", "--time-scale", "10"]);
    let output = top.env("USLAB_SNAPSHOT", seen.snapshots()).output().expect("started");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let verdict = &figures["verdict"];
    let reasons = format!("{} of {}", verdict["reasons"], figures["parts"]);
    Some((verdict["cause"].as_str().expect("a cause").to_owned(), reasons))
}

fn each_cause_is_told(mode: Mode) {
    let Some(command) = &artifacts().command else { return };
    let run = |(name, cause): (&'static str, &'static str)| {
        std::thread::spawn(move || {
            // Each compiles the program: the directories of tests are their own.
            let scratch = Scratch::new(&format!("staged-{name}"));
            let (told, reasons) = told(command, &scratch, mode, name)?;
            (told != cause).then(|| format!("{name}: {told}, not {cause}: {reasons}"))
        })
    };
    let running: Vec<_> = PROGRAMS.into_iter().map(run).collect();
    let wrong: Vec<String> =
        running.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! `uslab top` and `uslab info` on programs with 5000 and 10 000 caches: all of them are listed,
//! and their figures add up.
//!
//! The test prints the processor time of an update. The target is 50 ms for 5000 caches: 5 % of a
//! CPU at one update a second. No assertion depends on it, because the machine may be busy: `cargo
//! test -p uslab-tests --test field many_caches -- --nocapture`.

use super::running::Running;
use serde_json::Value;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use uslab_tests::harness::{Mode, Scratch, artifacts};

both_modes! {
    five => top_shows_5000_caches,
    ten => top_shows_10_000_caches,
}

/// Set in the process that has the caches, to their number: this test, started again.
const IN_CHILD: &str = "USLAB_TEST_MANY_CACHES";
const OBJECTS: usize = 20;
const UPDATES: i64 = 20;

/// Makes the caches, and holds objects of each until its input ends.
#[test]
fn program_with_many_caches() {
    let Ok(number) = std::env::var(IN_CHILD) else { return };
    let number: usize = number.parse().expect("a number");
    let make =
        |n: usize| uslab::CacheBuilder::new(&format!("cache {n}")).build_raw(64 + n % 64 * 16).unwrap();
    let caches: Vec<_> = (0..number).map(make).collect();
    let objects: Vec<_> = caches
        .iter()
        .flat_map(|cache| (0..OBJECTS).map(|_| cache.alloc().expect("there is memory")))
        .collect();
    // This counts what the sheaves hold, too.
    let _ = uslab::stats::usage();
    // The harness of tests keeps standard output.
    eprintln!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    assert_eq!(objects.len(), number * OBJECTS);
}

/// Waits for a child, and returns the processor time that it took, in milliseconds.
fn wait_ms(child: &mut Child) -> i64 {
    let (mut status, pid) = (0, child.id().cast_signed());
    // SAFETY: all zero is a valid value of this C structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places live through the call, and the child was not waited for.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert!(waited == pid && status == 0, "uslab top: status {status}");
    let ms = |time: libc::timeval| time.tv_sec * 1000 + time.tv_usec / 1000;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

fn top_shows_5000_caches(mode: Mode) {
    all_are_shown(mode, 5000);
}

fn top_shows_10_000_caches(mode: Mode) {
    all_are_shown(mode, 10_000);
}

/// Runs the command, which must succeed. Returns its output and its processor time.
fn shown(command: &mut Command) -> (String, i64) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    let mut text = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("UTF-8");
    (text, wait_ms(&mut child))
}

/// Asserts that `process` lists the program's caches, each with its objects. Returns false where a
/// cache's objects were on their way from a sheaf to the slabs as the figures were read.
fn are_listed(process: &Value, number: usize) -> bool {
    let caches = process["caches"].as_array().expect("caches");
    let (mut found, mut moving) = (vec![false; number], 0);
    for cache in caches {
        let Some(n) = cache["name"].as_str().and_then(|name| name.strip_prefix("cache ")) else { continue };
        // Also after the background thread moved what the sheaves held to the slabs. It moves those
        // of one cache at a time.
        moving += usize::from(cache["active_objects"] != OBJECTS);
        assert!(moving <= 1, "{cache}");
        assert!(!std::mem::replace(&mut found[n.parse::<usize>().expect("a number")], true), "{cache}");
    }
    assert!(found.iter().all(|&found| found));
    moving == 0
}

/// Asks for JSON that lists the caches until none of them was on the move; returns it, and the
/// processor time of the last question.
fn listed(number: usize, ask: impl Fn() -> (String, i64)) -> (Value, i64) {
    for _ in 0..5 {
        let (text, ms) = ask();
        let process = serde_json::from_str(&text).expect("JSON");
        if are_listed(&process, number) {
            return (process, ms);
        }
    }
    panic!("a cache has other objects each time");
}

fn all_are_shown(mode: Mode, number: usize) {
    let Some(command) = &artifacts().command else { return };
    let scratch = Scratch::new(&format!("many-caches-{number}"));
    let snapshots = scratch.private_dir("snapshots");
    let mut run = Command::new(std::env::current_exe().expect("the path of this test"));
    run.args(["--exact", "many_caches::program_with_many_caches", "--nocapture", "--test-threads=1"]);
    run.env("USLAB_SNAPSHOT", &snapshots).env("USLAB_RSEQ", if mode == Mode::Locked { "0" } else { "1" });
    run.env(IN_CHILD, number.to_string());
    let running = Running::start(&mut run);
    let pid = running.pid();
    let ask =
        |arguments: &[&str]| shown(Command::new(command).args(arguments).env("USLAB_SNAPSHOT", &snapshots));

    let updates = UPDATES.to_string();
    let (process, ms) = listed(number, || ask(&["top", &pid, "--json", "-i", "0.05", "-n", &updates]));
    eprintln!("{number} caches: {UPDATES} updates took {ms} ms of a processor, {} ms each", ms / UPDATES);
    let bytes = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("not a number: {value}"));
    let part = |name: &str| bytes(&process["parts"][format!("{name}_bytes")]);
    let names = ["live", "slack", "cached", "partial", "empty", "other", "dirty", "metadata", "not_ours"];
    let sum: i64 = names.iter().map(|name| part(name)).sum();
    assert_eq!(sum - part("absent"), part("rss"), "{}", process["parts"]);
    // The objects of all caches are in the sum.
    let objects: i64 = process["caches"]
        .as_array()
        .expect("caches")
        .iter()
        .map(|cache| bytes(&cache["active_objects"]) * bytes(&cache["object_bytes"]))
        .sum();
    let large = bytes(&process["large_bytes"]);
    assert_eq!(part("live"), objects + large, "{}", process["parts"]);

    let (text, ms) = ask(&["top", &pid, "--once"]);
    eprintln!("{number} caches: top --once took {ms} ms of a processor");
    assert!(text.contains("cache "), "{text}");
    let (_, ms) = listed(number, || ask(&["info", &pid, "--json"]));
    eprintln!("{number} caches: info --json took {ms} ms of a processor");
    running.end();
}

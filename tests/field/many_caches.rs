//! `uslab top` on a program with 5000 caches: those that the snapshot has room for are listed, and
//! the memory of the others is in the sum.
//!
//! The test prints the processor time of a look. The target is 50 ms: 5 % of a CPU at one look a
//! second. No assertion depends on it, because the machine may be busy:
//! `cargo test -p uslab-tests --test field many_caches -- --nocapture`.

use super::running::Running;
use serde_json::Value;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use uslab_tests::harness::{Mode, Scratch, artifacts};

both_modes! {
    top => top_shows_thousands_of_caches,
}

/// Set in the process that has the caches: this test, started again.
const IN_CHILD: &str = "USLAB_TEST_MANY_CACHES";
const CACHES: usize = 5000;
/// Caches that a snapshot has room for.
const LISTED: usize = 3328;
const OBJECTS: usize = 20;
const LOOKS: i64 = 20;

/// Makes the caches, and holds objects of each until its input ends.
#[test]
fn program_with_many_caches() {
    if std::env::var_os(IN_CHILD).is_none() {
        return;
    }
    let make =
        |n: usize| uslab::CacheBuilder::new(&format!("cache {n}")).build_raw(64 + n % 64 * 16).unwrap();
    let caches: Vec<_> = (0..CACHES).map(make).collect();
    let objects: Vec<_> = caches
        .iter()
        .flat_map(|cache| (0..OBJECTS).map(|_| cache.alloc().expect("there is memory")))
        .collect();
    // This counts what the sheaves hold, too.
    let _ = uslab::stats::usage();
    // The harness of tests keeps standard output.
    eprintln!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    assert_eq!(objects.len(), CACHES * OBJECTS);
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

fn top_shows_thousands_of_caches(mode: Mode) {
    let Some(command) = &artifacts().command else { return };
    let scratch = Scratch::new("many-caches");
    let snapshots = scratch.private_dir("snapshots");
    let mut run = Command::new(std::env::current_exe().expect("the path of this test"));
    run.args(["--exact", "many_caches::program_with_many_caches", "--nocapture", "--test-threads=1"]);
    run.env("USLAB_SNAPSHOT", &snapshots).env("USLAB_RSEQ", if mode == Mode::Locked { "0" } else { "1" });
    run.env(IN_CHILD, "1");
    let running = Running::start(&mut run);

    let looks = LOOKS.to_string();
    let mut top = Command::new(command);
    top.args(["top", &running.pid(), "--json", "-i", "0.05", "-n", &looks]);
    let mut top = top.env("USLAB_SNAPSHOT", &snapshots).stdout(Stdio::piped()).spawn().expect("started");
    let mut shown = String::new();
    top.stdout.take().expect("a pipe").read_to_string(&mut shown).expect("UTF-8");
    let ms = wait_ms(&mut top);
    eprintln!("many caches: {LOOKS} looks took {ms} ms of a processor, {} ms each", ms / LOOKS);

    let process: Value = serde_json::from_str(&shown).expect("JSON");
    let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("not a number: {value}"));
    let caches = process["caches"].as_array().expect("caches");
    let of_program = caches.iter().filter(|cache| cache["name"].as_str().unwrap_or("").starts_with("cache "));
    let mut count = 0;
    for cache in of_program {
        // Also after the background thread moved what the sheaves held to the slabs.
        assert_eq!(cache["active_objects"], OBJECTS, "{cache}");
        count += 1;
    }
    assert!((LISTED - 100..=LISTED).contains(&count), "{count} caches are listed");
    let part = |name: &str| number(&process["parts"][name]);
    let names = ["live", "slack", "cached", "partial", "empty", "other", "dirty", "metadata", "not_ours"];
    let sum: i64 = names.iter().map(|name| part(&format!("{name}_bytes"))).sum();
    assert_eq!(sum - part("absent_bytes"), part("rss_bytes"), "{}", process["parts"]);
    running.end();
}

//! `uslab top` and `uslab metrics` divide the memory of a running process without a rest.

use super::compile;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use uslab_tests::harness::{Mode, Scratch, artifacts};

both_modes! {
    parts => parts_add_up,
    merging => memory_counts_once,
    exec => exec_is_noticed,
}

/// A process that holds the memory of `seen.c` until it is dropped.
pub struct Seen {
    pub child: Child,
    pub snapshots: std::path::PathBuf,
}

impl Seen {
    pub fn start(scratch: &Scratch, mode: Mode, arguments: &[&str]) -> Option<Seen> {
        Self::of(scratch, mode, "seen", arguments)
    }

    /// Starts the program of a source, which prints `ready`.
    pub fn of(scratch: &Scratch, mode: Mode, source: &str, arguments: &[&str]) -> Option<Seen> {
        Self::with(scratch, mode, source, arguments, &[])
    }

    /// [`Seen::of`] with variables in its environment.
    pub fn with(
        scratch: &Scratch,
        mode: Mode,
        source: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Option<Seen> {
        let command = artifacts().command.as_ref()?;
        let program = compile(scratch, source, &[]);
        let snapshots = scratch.private_dir("snapshots");
        let mut run = Command::new(command);
        run.args(["run", "--rseq", if mode == Mode::Locked { "off" } else { "on" }, "--"]);
        run.arg(program).args(arguments).env("USLAB_SNAPSHOT", &snapshots);
        run.env("USLAB_LIB", &artifacts().library).envs(environment.iter().copied());
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("readable");
        let seen = Seen { child, snapshots };
        assert_eq!(line, "ready\n");
        Some(seen)
    }

    pub(super) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub(super) fn snapshots(&self) -> &Path {
        &self.snapshots
    }

    fn ask(&self, command: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new(command);
        command.args(arguments).arg(self.child.id().to_string()).env("USLAB_SNAPSHOT", &self.snapshots);
        let output = command.output().expect("started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The resident bytes of the process, as `uslab metrics` prints them.
    fn resident_bytes(&self, command: &Path) -> i64 {
        let metrics = self.ask(command, &["metrics"]);
        let line = metrics.lines().find(|line| line.starts_with("uslab_process_resident_bytes{"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a value")
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("not a number: {value}"))
}

/// Objects are live, in sheaves and barns, or in slabs; bytes are the arena's, and the arena's and
/// all other bytes are the resident ones.
fn parts_add_up(mode: Mode) {
    let scratch = Scratch::new("seen");
    let (Some(seen), Some(command)) = (Seen::start(&scratch, mode, &[]), &artifacts().command) else {
        return;
    };
    let least_live_bytes = 150_000 * 64 + (64 << 21);
    let ask = || -> Value {
        let shown = seen.ask(command, &["top", "--json", "-i", "0.05"]);
        serde_json::from_str(&shown).expect("JSON")
    };
    // The sheaves of a CPU are counted as of its last slow paths, until the background thread
    // flushes them: the program rests.
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut process = ask();
    while number(&process["parts"]["live_bytes"]) <= least_live_bytes && Instant::now() < deadline {
        process = ask();
    }
    assert!(process["event"].is_null(), "{}", process["event"]);
    let caches = process["caches"].as_array().expect("caches");
    let mut slab_bytes = 0;
    for cache in caches {
        let free = number(&cache["slab_free"]) + number(&cache["sheaf_free"]);
        let live = number(&cache["total_objects"]) - free;
        assert_eq!(number(&cache["active_objects"]), live, "{cache}");
        slab_bytes += number(&cache["slab_bytes"]);
    }
    // Large slabs are charged page by page.
    let used = number(&process["used_bytes"]);
    assert!(slab_bytes + number(&process["large_bytes"]) >= used, "{process}");

    let of_64 = caches.iter().find(|cache| cache["user_bytes"] == 64).expect("a cache of 64 bytes");
    let unsure = 2 * number(&of_64["sheaf_capacity"]) * number(&process["cpus"]) + 2000;
    let live = number(&of_64["active_objects"]);
    assert!((150_000..150_000 + unsure).contains(&(live + unsure / 2)), "{of_64}");

    let part = |name: &str| number(&process["parts"][name]);
    let names = ["live", "slack", "cached", "partial", "empty", "other", "dirty", "metadata", "not_ours"];
    let sum: i64 = names.iter().map(|name| part(&format!("{name}_bytes"))).sum();
    let rss = part("rss_bytes");
    assert_eq!(names[..6].iter().map(|name| part(&format!("{name}_bytes"))).sum::<i64>(), used, "{process}");
    assert_eq!(sum - part("absent_bytes"), rss, "{}", process["parts"]);
    assert_eq!(process["parts"]["is_estimated"], false);
    assert_eq!(part("other_bytes"), 0);
    // All of it was touched: what the figures hold is resident, within 3 %.
    assert!(part("absent_bytes").abs() * 100 < rss * 3, "{}", process["parts"]);
    let is_counted = part("live_bytes") > least_live_bytes && part("partial_bytes") > 1 << 20;
    assert!(is_counted, "{}", process["parts"]);

    let resident = seen.resident_bytes(command);
    assert!((resident - rss).abs() * 100 < rss * 3, "{resident} {rss}");
}

/// Mappings that merge while they are listed count once. One list in ten had memory twice.
fn memory_counts_once(mode: Mode) {
    let scratch = Scratch::new("merging");
    let (Some(seen), Some(command)) = (Seen::of(&scratch, mode, "merging", &[]), &artifacts().command) else {
        return;
    };
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", seen.pid())).expect("it runs");
    let pages: i64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    // SAFETY: no preconditions.
    let rss = pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    for _ in 0..50 {
        let resident = seen.resident_bytes(command);
        assert!((resident - rss).abs() * 100 < rss * 3, "{resident} {rss}");
    }
}

/// The file of a process stays behind when it becomes a program without the library.
fn exec_is_noticed(mode: Mode) {
    let scratch = Scratch::new("exec");
    let seen = Seen::start(&scratch, mode, &["sleep", "60"]);
    let (Some(seen), Some(command)) = (seen, &artifacts().command) else { return };
    let comm = format!("/proc/{}/comm", seen.child.id());
    let start = std::time::Instant::now();
    while std::fs::read_to_string(&comm).is_ok_and(|name| name != "sleep\n") {
        assert!(start.elapsed().as_secs() < 20, "no exec");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let shown = seen.ask(command, &["top", "--json", "-i", "0.05"]);
    let process: Value = serde_json::from_str(&shown).expect("JSON");
    let event = process["event"].as_str().unwrap_or_default();
    assert!(event.contains("now runs sleep, which publishes nothing"), "{event}");
}

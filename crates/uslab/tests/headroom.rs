//! Headroom on fake control groups: limits of all levels, and the events that count their hits.
//!
//! Deadlines are generous, and lower bounds of time use the library's own clock, so that no test
//! depends on the machine's speed.

#[path = "support/again.rs"]
mod again;
#[path = "support/environment.rs"]
#[allow(dead_code, reason = "some tests of sources use only a part of it")]
mod environment;

use environment::{Fake, line};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};
use uslab::internal::CHUNK_BYTES;
use uslab::internal::sources::{Kind, Pressure};
use uslab::reclaim::PressureChoice;

const MIB: u64 = 1 << 20;
/// Far longer than any wait that ends.
const LONG_MS: u64 = 60_000;

fn bytes(bytes: u64) -> Option<Pressure> {
    Some(Pressure { kind: Kind::Cgroup, bytes: bytes as usize })
}

/// A hit limit asks for a part of the memory, and for a chunk at least; this process holds less.
fn hit() -> Option<Pressure> {
    Some(Pressure { kind: Kind::Cgroup, bytes: CHUNK_BYTES })
}

#[test]
fn headroom_is_the_use_beyond_a_margin_below_the_limit() {
    let fake = Fake::new();
    fake.set(0, "current", 900 * MIB);
    let mut sources = fake.detect(PressureChoice::default());
    assert_eq!(sources.headroom(), None);
    assert!(line(&sources, "cgroup").ends_with("/cgroup/outer/own and 2 above, no limit so far"));
    // A margin of 60 MiB: nothing up to 900, beyond that down to 840.
    fake.set(0, "max", 960 * MIB);
    fake.set(0, "high", "max");
    assert_eq!(sources.headroom(), None);
    fake.set(0, "current", 901 * MIB);
    assert_eq!(sources.headroom(), bytes(61 * MIB));
    // The margin of a large limit is 64 MiB.
    fake.set(0, "max", 64 * 1024 * MIB);
    fake.set(0, "current", (64 * 1024 - 63) * MIB);
    assert_eq!(sources.headroom(), bytes(65 * MIB));
    assert!(line(&sources, "cgroup").ends_with(&format!("lowest limit {} bytes", 64 * 1024 * MIB)));
}

#[test]
fn a_limit_lowered_below_use_is_seen() {
    let fake = Fake::new();
    fake.set(0, "current", 500 * MIB);
    fake.set(0, "high", 1000 * MIB);
    let mut sources = fake.detect(PressureChoice::default());
    assert_eq!(sources.headroom(), None);
    fake.set(0, "high", 160 * MIB);
    assert_eq!(sources.wait(LONG_MS), bytes(360 * MIB));
    fake.set(0, "high", 0);
    assert_eq!(sources.headroom(), bytes(500 * MIB));
    fake.set(0, "high", "max");
    assert_eq!(sources.headroom(), None);
}

#[test]
fn the_tightest_of_all_levels_counts() {
    let fake = Fake::new();
    fake.set(0, "current", 100 * MIB);
    fake.set(0, "max", 1000 * MIB);
    fake.set(1, "current", 640 * MIB);
    fake.set(1, "max", 640 * MIB);
    let mut sources = fake.detect(PressureChoice::default());
    assert_eq!(sources.headroom(), bytes(80 * MIB));
    fake.set(0, "high", 16 * MIB);
    assert_eq!(sources.headroom(), bytes(86 * MIB));
    assert!(line(&sources, "cgroup").ends_with(&format!("lowest limit {} bytes", 16 * MIB)));
}

#[test]
fn pages_that_the_kernel_can_drop_are_not_used() {
    let fake = Fake::new();
    fake.set(0, "max", 160 * MIB);
    fake.set(0, "current", 160 * MIB);
    fake.set(
        0,
        "stat",
        format!("anon 1\nfile 2\ninactive_anon 3\ninactive_file {}\nactive_file 4", 100 * MIB),
    );
    let mut sources = fake.detect(PressureChoice::default());
    assert_eq!(sources.headroom(), None);
    fake.set(0, "stat", format!("inactive_file {}", 5 * MIB));
    assert_eq!(sources.headroom(), bytes(15 * MIB));
}

#[test]
fn limits_that_were_hit_since_the_last_look_are_pressure() {
    let fake = Fake::new();
    fake.set(1, "max", 1000 * MIB);
    fake.set(1, "events", "low 0\nhigh 7\nmax 9\noom 0");
    let mut sources = fake.detect(PressureChoice::default());
    assert_eq!(sources.headroom(), None, "events before the start must not count");
    for (events, expected) in [
        ("low 5\nhigh 7\nmax 9\noom 3", None),
        ("low 5\nhigh 8\nmax 9\noom 3", hit()),
        ("low 5\nhigh 8\nmax 9\noom 3", None),
        ("low 5\nhigh 8\nmax 10\noom 3", hit()),
        ("nonsense", None),
        ("low 5\nhigh 8\nmax 10\noom 3", None),
    ] {
        fake.set(1, "events", events);
        assert_eq!(sources.headroom(), expected, "{events}");
    }
    fake.set(1, "events", "low 5\nhigh 8\nmax 11");
    fake.set(1, "current", 2000 * MIB);
    assert_eq!(sources.headroom(), bytes(2000 * MIB - 1000 * MIB + 125 * MIB));
}

#[test]
fn files_without_sense_or_without_files_are_no_limits() {
    let fake = Fake::new();
    fake.set(0, "current", 500 * MIB);
    let mut sources = fake.detect(PressureChoice::default());
    for nonsense in ["", "-1", "12 monkeys", "99999999999999999999999", "maximum", "\u{0}\u{0}"] {
        fake.set(0, "max", nonsense);
        assert_eq!(sources.headroom(), None, "{nonsense}");
    }
    fake.set(0, "max", 100 * MIB);
    assert!(sources.headroom().is_some());
    fs::remove_dir_all(fake.path("cgroup")).unwrap();
    assert_eq!(sources.headroom(), None);
    assert_eq!(sources.wait(0), None);
}

#[test]
fn waiting_ends_when_headroom_is_gone() {
    let fake = Fake::new();
    fake.set(0, "max", 160 * MIB);
    fake.set(0, "current", MIB);
    let mut sources = fake.detect(PressureChoice::default());
    assert_eq!(sources.wait(0), None);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            fake.set(0, "current", 160 * MIB);
        });
        assert_eq!(sources.wait(LONG_MS), bytes(20 * MIB));
    });
}

#[test]
fn lasting_pressure_is_reported_ten_times_a_second_at_most() {
    let fake = Fake::new();
    fake.set(0, "max", 160 * MIB);
    fake.set(0, "current", 160 * MIB);
    let mut sources = fake.detect(PressureChoice::default());
    let started = Instant::now();
    for _ in 0..5 {
        assert_eq!(sources.wait(LONG_MS), bytes(20 * MIB));
    }
    // Four gaps, each minus a tick of the coarse clock.
    assert!(started.elapsed() >= Duration::from_millis(4 * 89));
}

#[test]
fn a_hit_counts_only_if_the_kernel_had_no_pages_to_drop() {
    let fake = Fake::new();
    fake.set(0, "max", 160 * MIB);
    fake.set(0, "current", 160 * MIB);
    fake.set(0, "stat", format!("inactive_file {}", 100 * MIB));
    fake.set(0, "events", "high 0\nmax 0");
    let mut sources = fake.detect(PressureChoice::default());
    // Each page of a file that the program reads hits the limit, and replaces another one.
    fake.set(0, "events", "high 0\nmax 1000");
    assert_eq!(sources.headroom(), None);
    fake.set(0, "events", "high 0\nmax 2000");
    assert_eq!(sources.headroom(), None);
    // Less than two margins, of 10 MiB each, can be dropped.
    fake.set(0, "current", 100 * MIB);
    fake.set(0, "stat", format!("inactive_file {}", 19 * MIB));
    assert_eq!(sources.headroom(), None, "a hit counts in the first read after it");
    fake.set(0, "events", "high 0\nmax 2001");
    assert_eq!(sources.headroom(), hit());
}

#[test]
fn a_hit_of_another_groups_limit_does_not_count() {
    let fake = Fake::new();
    fake.set(1, "max", 1000 * MIB);
    fake.set(1, "events", "high 0\nmax 0");
    fake.set(1, "events.local", "high 0\nmax 0");
    let mut sources = fake.detect(PressureChoice::default());
    // The count of a level includes hits of limits below it, such as a sibling's.
    fake.set(1, "events", "high 7\nmax 7");
    assert_eq!(sources.headroom(), None);
    fake.set(1, "events", "high 7\nmax 8");
    fake.set(1, "events.local", "high 0\nmax 1");
    assert_eq!(sources.headroom(), hit());
}

#[test]
fn reports_stay_apart_without_descriptors_and_sleep() {
    if let Some(output) = again::again("reports_stay_apart_without_descriptors_and_sleep", &[]) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: a limit of this process, which runs this test alone.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let fake = Fake::new();
    fake.set(0, "max", 160 * MIB);
    fake.set(0, "current", 160 * MIB);
    fake.set(0, "events", "high 0\nmax 0");
    let mut sources = fake.detect(PressureChoice::default());
    assert!(!sources.watches_descriptors(), "the library keeps descriptors from number 64 on");
    let (started, mut reports) = (Instant::now(), 0);
    while reports < 5 {
        reports += usize::from(sources.wait(0) == bytes(20 * MIB));
    }
    // Four gaps, each minus a tick of the coarse clock.
    assert!(started.elapsed() >= Duration::from_millis(4 * 89));
}

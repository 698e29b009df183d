//! Swapping, on fake files: a pressure event tells whether memory was swapped out since the last
//! check.
#![cfg(not(loom))]

#[path = "support/environment.rs"]
#[allow(dead_code, reason = "some tests of sources use only a part of it")]
mod environment;

use environment::Fake;
use std::thread::sleep;
use std::time::Duration;
use uslab::internal::sources::Sources;
use uslab::reclaim::PressureChoice;

/// Longer than the gap between two checks, plus the clock's resolution.
const APART: Duration = Duration::from_millis(550);
const MIB: u64 = 1 << 20;

/// Environment in which the limit always asks for memory.
fn short_of_memory() -> Fake {
    let fake = Fake::new();
    fake.set(0, "max", 512 * MIB);
    fake.set(0, "current", 512 * MIB);
    status(&fake, 0);
    fake
}

fn status(fake: &Fake, swap_kib: u64) {
    fake.put("proc/self/status", format!("Name:\tprogram\nVmSwap:\t {swap_kib:8} kB\nThreads:\t1\n"));
}

/// Whether the report asks for twice what is in excess: two margins of 32 MiB.
fn swapped(sources: &mut Sources) -> bool {
    let bytes = sources.headroom().expect("the limit is reached").bytes as u64;
    assert!([64 * MIB, 128 * MIB].contains(&bytes), "{bytes}");
    bytes == 128 * MIB
}

#[test]
fn pages_of_the_process_that_go_to_swap_count_once() {
    let fake = short_of_memory();
    status(&fake, 4000);
    let mut sources = fake.detect(PressureChoice::default());
    assert!(!swapped(&mut sources), "memory swapped out before the start must not count");
    status(&fake, 4096);
    assert!(!swapped(&mut sources), "checks must be half a second apart");
    sleep(APART);
    assert!(swapped(&mut sources));
    sleep(APART);
    assert!(!swapped(&mut sources), "no more memory was swapped out since");
    status(&fake, 12);
    sleep(APART);
    assert!(!swapped(&mut sources), "memory swapped in must not count");
}

#[test]
fn pages_of_the_group_that_go_to_swap_count() {
    let fake = short_of_memory();
    let stat = |pages: u64, compressed: u64| {
        fake.set(
            0,
            "stat",
            format!("anon 1\npswpin 7\npswpout {pages}\nzswpout {compressed}\ninactive_file 0"),
        );
    };
    stat(10, 0);
    let mut sources = fake.detect(PressureChoice::default());
    for (pages, compressed, is_news) in [(11, 0, true), (11, 0, false), (11, 5, true), (11, 5, false)] {
        stat(pages, compressed);
        sleep(APART);
        assert_eq!(swapped(&mut sources), is_news, "{pages} {compressed}");
    }
}

#[test]
fn on_an_older_kernel_the_amount_in_swap_tells() {
    let fake = short_of_memory();
    fake.set(0, "stat", "anon 1\ninactive_file 0");
    fake.set(0, "swap.current", 4096);
    let mut sources = fake.detect(PressureChoice::default());
    for (bytes, is_news) in [(8192, true), (8192, false), (4096, false)] {
        fake.set(0, "swap.current", bytes);
        sleep(APART);
        assert_eq!(swapped(&mut sources), is_news, "{bytes}");
    }
}

#[test]
fn without_the_files_nothing_counts_twice() {
    let fake = short_of_memory();
    std::fs::remove_file(fake.path("proc/self/status")).unwrap();
    let mut sources = fake.detect(PressureChoice::default());
    sleep(APART);
    assert!(!swapped(&mut sources));
    fake.put("proc/self/status", "VmSwap: much\n");
    sleep(APART);
    assert!(!swapped(&mut sources));
}

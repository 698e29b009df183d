//! The feature `tracing`: events of passes and shrinker calls, and none of a pass for which an
//! allocation waits.
//!
//! The test is a process of its own, in both modes. Its global allocator is uslab, so the
//! subscriber allocates there.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use uslab::{Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker, set_limit};

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

static WRITTEN: Mutex<String> = Mutex::new(String::new());

/// Appends the formatted events to [`WRITTEN`].
struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        WRITTEN.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn taken() -> String {
    std::mem::take(&mut WRITTEN.lock().unwrap())
}

/// A cache of a number of entries without memory.
struct Entries(AtomicUsize);

impl Shrinker for Entries {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.0.load(Relaxed)
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        let freed = control.nr_to_scan.min(self.0.load(Relaxed));
        self.0.fetch_sub(freed, Relaxed);
        Scan::Freed(freed)
    }
}

#[test]
fn passes_tell_the_subscriber_unless_an_allocation_waits() {
    in_both_modes(
        "passes_tell_the_subscriber_unless_an_allocation_waits",
        &[("USLAB_PRESSURE", "off")],
        || {
            tracing_subscriber::fmt()
                .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
                .with_ansi(false)
                .without_time()
                .with_writer(|| Writer)
                .init();
            let _sessions =
                register_shrinker("sessions", ShrinkerOptions::default(), Entries(AtomicUsize::new(10)))
                    .unwrap();

            uslab::reclaim(usize::MAX);
            let events = taken();
            let first = events.lines().next().unwrap_or_default();
            let last = events.lines().last().unwrap_or_default();
            assert!(
                first.contains("DEBUG uslab::reclaim: pass begins bytes=18446744073709551615"),
                "{events}"
            );
            assert!(
                events.contains("TRACE uslab::reclaim: shrinker was called shrinker=\"sessions\""),
                "{events}"
            );
            assert!(events.contains(" stopped=false priority="), "{events}");
            assert!(last.contains("uslab::reclaim: pass is done given_bytes="), "{events}");
            assert!(last.contains(" entries=10 ") && last.ends_with("background=false"), "{events}");

            // The hard limit: a pass for an allocation.
            let usage = uslab::stats::usage();
            let held = usage.used_bytes + usage.dirty_bytes;
            set_limit(0, held + (1 << 20)).unwrap();
            let mut vec: Vec<u8> = Vec::new();
            assert!(vec.try_reserve_exact(64 << 20).is_err() && vec.try_reserve_exact(2 << 20).is_err());
            set_limit(0, 0).unwrap();
            assert_eq!(taken(), "", "a pass for an allocation tells no subscriber");

            // The soft limit: a pass of the library's thread.
            set_limit(1 << 20, 0).unwrap();
            let kept: Vec<Box<[u8; 4096]>> = (0..1024).map(|_| Box::new([1; 4096])).collect();
            let end = Instant::now() + Duration::from_secs(20);
            let mut events = String::new();
            while !events.contains("pass is done") && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
                events += &taken();
            }
            set_limit(0, 0).unwrap();
            assert_eq!(kept.len(), 1024);
            assert!(events.contains("background=true"), "{events}");
        },
    );
}

//! What a crowd of threads holds in memory: the threads of mixed.rs, with one contestant, in a process of its own.
//!
//! ```text
//!   baseline ── threads are made ── live sets filled ── random replacement ── all wait: resident ── freed, threads end
//! ```
//!
//! What the threads themselves need (stacks, their records) is above the baseline too; it is the same for everybody,
//! and most of the difference between contestants is what they keep for each thread.
//!
//! Must never: read the resident set while a thread still works.

use super::crew::{self, Job};
use super::mixed::MixedRound;
use crate::contestants::Entry;
use crate::cpu::Cpus;
use crate::measure::Sample;
use serde::{Deserialize, Serialize};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crowd {
    pub threads: usize,
    /// Objects of each thread.
    pub live: usize,
    /// Of a thousand replacements each.
    pub repeats: usize,
}

/// Runs the crowd on `entry`. The value is the resident set above the baseline, with all live sets there.
pub fn run(entry: &Entry, crowd: Crowd) -> Result<Sample, String> {
    let resident = Arc::new(AtomicU64::new(0));
    let (arrived, reading) = (Barrier::new(crowd.threads), Arc::clone(&resident));
    let with_live = move || {
        if arrived.wait().is_leader() {
            reading.store(resident_bytes().unwrap_or(0), Relaxed);
        }
        arrived.wait();
    };
    let round = MixedRound { repeats: crowd.repeats, live: crowd.live, with_live: Some(Box::new(with_live)) };
    let crew_loops = entry.crew;
    let job: Job = Arc::new(move |seat| (crew_loops.mixed)(&round, seat));
    let cpus = Cpus::choose(None)?;
    let before = resident_bytes()?;
    crew::fresh(crowd.threads, cpus, *entry, &job);
    let after = resident_bytes()?;
    let above = |bytes: u64| bytes.saturating_sub(before) as f64;
    match resident.load(Relaxed) {
        0 => Err("cannot read /proc/self/statm".into()),
        bytes => Ok(Sample {
            extra: [("resident_ended_bytes".to_owned(), above(after))].into(),
            ..Sample::of(above(bytes))
        }),
    }
}

fn resident_bytes() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/self/statm")
        .map_err(|error| format!("cannot read /proc/self/statm: {error}"))?;
    // SAFETY: no conditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map(|pages| pages * page as u64).ok_or_else(|| "/proc/self/statm has no resident set".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::crew::tests::all_that_malloc;

    #[test]
    fn a_crowd_tells_what_it_held() {
        for entry in all_that_malloc() {
            let sample = run(&entry, Crowd { threads: 5, live: 100, repeats: 1 }).unwrap();
            assert!(sample.extra.contains_key("resident_ended_bytes"), "{}", entry.name);
        }
    }
}

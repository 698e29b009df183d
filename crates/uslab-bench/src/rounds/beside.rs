//! The cost of a large object's pair beside live objects of its size, in a process of its own.
//!
//! ```text
//!   pairs ── alone ── N objects allocated, none of them written to ── pairs ── beside N
//! ```
//!
//! Both figures come from one process, so their ratio is free of its placement in memory. Twenty
//! thousand objects of 3 MiB are 60 GB of addresses, and hardly any memory, since no byte of them
//! is written here. An allocator with a header in each object touches a page of each.
//!
//! Must never: write to an object; leave huge pages on, which would make 40 GB of those headers.

use super::{Entry, LocalRound, LocalWork};
use crate::clock::Clock;
use crate::measure::{Sample, Work, repeats_for};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    pub object_bytes: usize,
    /// Objects that live while the pairs are timed.
    pub objects: usize,
    pub rounds: usize,
    pub round_us: u64,
}

/// The pair's cost before the objects were allocated, in [`Sample::extra`].
pub const ALONE: &str = "alone_ns";

impl Beside {
    /// Nanoseconds of a pair beside the objects: the least round.
    pub fn run(&self, entry: &Entry) -> Result<Sample, String> {
        refuse_huge_pages();
        (entry.enter_thread)();
        let ns_per_tick = Clock::calibrate().ns_per_tick;
        let round = LocalRound { size: self.object_bytes, ..LocalRound::default() };
        let mut pairs = LocalWork { entry: *entry, live: 1, round }.prepare();
        let alone = self.least_ns(&mut pairs, ns_per_tick);
        for taken in 0..self.objects {
            if (entry.alloc)(self.object_bytes).is_null() {
                let (all, bytes) = (self.objects, self.object_bytes);
                return Err(format!(
                    "it has {taken} of {all} objects of {bytes} bytes, and no more addresses"
                ));
            }
        }
        let sample = Sample::of(self.least_ns(&mut pairs, ns_per_tick));
        Ok(Sample { extra: [(ALONE.to_owned(), alone)].into(), ..sample })
    }

    fn least_ns(&self, pairs: &mut dyn FnMut(usize) -> u64, ns_per_tick: f64) -> f64 {
        let repeats = repeats_for(pairs, self.round_us as f64 * 1e3, ns_per_tick);
        let least = (0..self.rounds.max(1)).map(|_| pairs(repeats)).min().unwrap_or(1);
        least as f64 * ns_per_tick / repeats as f64
    }
}

/// Huge pages off for this process. A kernel that refuses has none, or would back the headers by
/// small pages anyway unless it backs everything by huge ones.
fn refuse_huge_pages() {
    // SAFETY: this option takes a number and sets a flag of the process.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::crew::tests::all_that_malloc;

    #[test]
    fn every_malloc_has_both_figures() {
        let beside = Beside { object_bytes: 3 << 20, objects: 5, rounds: 2, round_us: 0 };
        for entry in all_that_malloc() {
            let sample = beside.run(&entry).unwrap();
            assert!(sample.value > 0.0 && sample.extra[ALONE] > 0.0, "{}", entry.name);
        }
    }

    #[test]
    fn what_has_no_addresses_left_is_one_line() {
        let beside = Beside { object_bytes: 1 << 62, objects: 1, rounds: 1, round_us: 0 };
        let none = Entry { alloc: |_| std::ptr::null_mut(), ..crate::lineup::NOTHING };
        let why = beside.run(&none).unwrap_err();
        assert!(why.contains("0 of 1") && !why.contains('\n'), "{why}");
    }
}

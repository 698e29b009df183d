//! The figures that one CPU's slow paths change, on a line that this CPU alone writes.
//!
//! ```text
//!   CPU 0 ─▶ Tally ─┐
//!   CPU 1 ─▶ Tally ─┼─ fold ─▶ Record, which all CPUs share, and observers read
//! ```
//!
//! A counter that every slow path of every CPU changed would bounce between their caches, as the
//! model shows (`cargo xtask scale`, ADR 0054). So a CPU changes its own line, and folds it into
//! the record after each of its first [`CALLS_TO_FOLD`] slow calls. Later it folds
//!
//! * once in [`CALLS_WITHOUT_THREAD`] slow calls, while the process is too small for a background
//!   thread. The line of a CPU that rests stays unfolded, and observers miss that much;
//! * once in [`CALLS_TO_FOLD`] slow calls where that thread runs, which folds all lines each half
//!   second. A CPU with many calls folds less often: once in a [`PART_TO_FOLD`]th of its calls so
//!   far, at most [`MAX_CALLS_TO_FOLD`];
//! * in any process after a call that leaves [`BYTES_TO_FOLD`] of objects or more in the line
//!   alone.
//!
//! CPUs fold at different calls: otherwise CPUs that work alike would meet at the record. Readers
//! in the process fold all lines first.
//!
//! The additions stay atomic: a thread may be moved to another CPU between reading the CPU's number
//! and the addition.

use super::layout::Record;
use crate::os::facts::{Fact, facts};
use crate::os::sleep;
use core::ops::RangeInclusive;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32,
    Ordering::{AcqRel, Relaxed},
};

/// Slow calls of a CPU after which it folds its line.
const CALLS_TO_FOLD: u32 = 64;
/// The same where no background thread folds the lines of CPUs that rest.
const CALLS_WITHOUT_THREAD: u32 = 16;
/// With the background thread: the part of a CPU's calls that may be missing in the record, where
/// that is more.
const PART_TO_FOLD: u32 = 16;
/// Upper bound on the calls that may be missing.
const MAX_CALLS_TO_FOLD: u32 = 1024;
/// Bytes of objects by which a CPU's line may differ from the record after a call that changed it.
/// A thread that moves to another CPU in a call leaves the sheaf's objects in one line and the
/// slabs' in another, so that live objects seem to come or go.
const BYTES_TO_FOLD: usize = 4 << 20;
/// The same in objects, of any size: small ones mislead by their number, and a few large ones are
/// one call's. To move so many objects takes many times longer than a fold.
const OBJECTS_TO_FOLD: RangeInclusive<usize> = 16..=4096;

/// One CPU's line.
#[repr(C, align(64))]
pub struct Tally {
    /// Objects taken from slabs less those given back, since the cache was made. It may be
    /// negative: another CPU took them.
    pub taken: AtomicI64,
    /// The part of `taken` that the record's count of free objects in slabs contains.
    folded: AtomicI64,
    /// Change of the count of free objects in sheaves that is not folded yet.
    pub sheaf_free: AtomicI64,
    /// Calls that freed objects into slabs, and slabs made with more memory than they needed.
    pub frees: AtomicU32,
    alloc_slow: AtomicU32,
    free_slow: AtomicU32,
    pub refills: AtomicU32,
    pub flushes: AtomicU32,
    /// Objects that left this CPU's slots for another node.
    pub home_objects: AtomicU32,
    /// Whole sheaves of them.
    pub home_sheaves: AtomicU32,
    /// Slow calls; may miss some.
    calls: AtomicU32,
    /// Times the barn served this CPU since the last reason to grow; see `percpu::adapt`.
    pub barn_served: AtomicU8,
    /// Times the spare did.
    pub spare_served: AtomicU8,
    /// Whether there was a miss, or a call that the spare served, since the cache was last asked
    /// for capacity.
    pub is_used: AtomicBool,
    /// Objects by which the line may differ from the record.
    objects_to_fold: u32,
}

/// The counts of objects, for a debugger.
pub(crate) const FACTS: &[Fact] = facts!(Tally { taken });

const _: () = assert!(size_of::<Tally>() == 64);

/// A kind of slow call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SlowCall {
    Alloc,
    Free,
}

impl Tally {
    /// A line without counts, of a cache of objects of `object_bytes`.
    pub fn new(object_bytes: usize) -> Tally {
        let objects = BYTES_TO_FOLD / object_bytes.max(1);
        let objects = objects.clamp(*OBJECTS_TO_FOLD.start(), *OBJECTS_TO_FOLD.end());
        Tally {
            taken: AtomicI64::new(0),
            folded: AtomicI64::new(0),
            sheaf_free: AtomicI64::new(0),
            frees: AtomicU32::new(0),
            alloc_slow: AtomicU32::new(0),
            free_slow: AtomicU32::new(0),
            refills: AtomicU32::new(0),
            flushes: AtomicU32::new(0),
            home_objects: AtomicU32::new(0),
            home_sheaves: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            barn_served: AtomicU8::new(0),
            spare_served: AtomicU8::new(0),
            is_used: AtomicBool::new(false),
            objects_to_fold: objects as u32,
        }
    }

    /// Counts a slow call, at its end. Folds the line now and then.
    #[inline]
    pub fn count(&self, call: SlowCall, record: &Record) {
        let counter = if call == SlowCall::Alloc { &self.alloc_slow } else { &self.free_slow };
        counter.fetch_add(1, Relaxed);
        let calls = self.calls.load(Relaxed).wrapping_add(1);
        self.calls.store(calls, Relaxed);
        if self.is_turn(calls, sleep::has_background_thread()) || self.is_far_behind() {
            self.fold(record);
        }
    }

    /// Whether a CPU that has made so many calls folds its line.
    #[inline]
    fn is_turn(&self, calls: u32, has_thread: bool) -> bool {
        if calls < CALLS_TO_FOLD {
            return true;
        }
        let every = if has_thread {
            ((1 << calls.ilog2()) / PART_TO_FOLD).clamp(CALLS_TO_FOLD, MAX_CALLS_TO_FOLD)
        } else {
            CALLS_WITHOUT_THREAD
        };
        // A power of two, as each of the three is. The lines of CPUs lie side by side.
        let number = (&raw const *self).addr() / size_of::<Tally>();
        calls.wrapping_add(number as u32) & (every - 1) == 0
    }

    /// Whether so many objects are not folded yet that observers would be misled.
    pub fn is_far_behind(&self) -> bool {
        let slabs = self.taken.load(Relaxed) - self.folded.load(Relaxed);
        let sheaves = self.sheaf_free.load(Relaxed);
        slabs.unsigned_abs().max(sheaves.unsigned_abs()) >= u64::from(self.objects_to_fold)
    }

    /// Moves what is not folded yet to `record`. Any thread may call it.
    #[cold]
    pub fn fold(&self, record: &Record) {
        self.fold_taken(record);
        // Loads first: most lines that the background thread folds have not changed.
        if self.sheaf_free.load(Relaxed) != 0 {
            record.sheaf_free.fetch_add(self.sheaf_free.swap(0, Relaxed), Relaxed);
        }
        let events = [
            (&self.alloc_slow, &record.alloc_slow),
            (&self.free_slow, &record.free_slow),
            (&self.refills, &record.refills),
            (&self.flushes, &record.flushes),
            (&self.home_objects, &record.home_objects),
            (&self.home_sheaves, &record.home_sheaves),
        ];
        for (own, shared) in events {
            if own.load(Relaxed) > 0 {
                shared.fetch_add(u64::from(own.swap(0, Relaxed)), Relaxed);
            }
        }
    }

    /// The part of [`Tally::fold`] that concerns slabs.
    pub fn fold_taken(&self, record: &Record) {
        let now = self.taken.load(Relaxed);
        if self.folded.load(Relaxed) != now {
            // Threads that fold at one time each move a difference; their sum is right.
            let before = self.folded.swap(now, AcqRel);
            record.slab_free.fetch_sub(now - before, Relaxed);
        }
    }

    /// Makes `count` lines at `start`, one for each CPU, of a cache of objects of `object_bytes`.
    ///
    /// # Safety
    /// `start` must point to [`Tally::bytes`] bytes, aligned to 64, that live for ever and that no
    /// other code uses.
    pub(crate) unsafe fn lines(start: *mut u8, count: usize, object_bytes: usize) -> &'static [Tally] {
        let lines = start.cast::<Tally>();
        for n in 0..count {
            // SAFETY: the caller's promise.
            unsafe { lines.add(n).write(Tally::new(object_bytes)) };
        }
        // SAFETY: written above.
        unsafe { core::slice::from_raw_parts(lines, count) }
    }

    /// Bytes of `count` lines.
    pub(crate) const fn bytes(count: usize) -> usize {
        count * size_of::<Tally>()
    }

    /// Forgets what the line says of objects in slabs: none is left.
    pub fn reset_taken(&self) {
        self.taken.store(0, Relaxed);
        self.folded.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// How often a CPU folds its line in so many calls, after those that all fold, and the longest
    /// way from one such call to the next.
    fn turns(has_thread: bool, calls: u32) -> (usize, u32) {
        let tally = Tally::new(64);
        let turns: Vec<u32> =
            (CALLS_TO_FOLD..calls).filter(|&call| tally.is_turn(call, has_thread)).collect();
        let longest = turns.windows(2).map(|pair| pair[1] - pair[0]).max();
        (turns.len(), longest.unwrap_or(0))
    }

    #[test]
    fn a_cpu_folds_after_each_of_its_first_calls() {
        let tally = Tally::new(64);
        assert!((1..CALLS_TO_FOLD).all(|call| tally.is_turn(call, true) && tally.is_turn(call, false)));
    }

    #[test]
    fn without_a_background_thread_few_calls_are_missing_however_many_there_were() {
        let (count, longest) = turns(false, 1 << 17);
        assert_eq!(longest, CALLS_WITHOUT_THREAD);
        assert_eq!(count as u32, ((1 << 17) - CALLS_TO_FOLD) / CALLS_WITHOUT_THREAD);
    }

    #[test]
    fn with_a_background_thread_a_part_of_the_calls_may_be_missing() {
        assert_eq!(turns(true, 1 << 10).1, CALLS_TO_FOLD);
        assert_eq!(turns(true, 1 << 17).1, MAX_CALLS_TO_FOLD);
        for calls in [1 << 12, 1 << 13, 1 << 14] {
            assert_eq!(turns(true, calls).1, calls / 2 / PART_TO_FOLD);
        }
    }

    #[test]
    fn a_line_that_lacks_many_bytes_is_folded() {
        for (object_bytes, objects) in
            [(8, 4096_i64), (1024, 4096), (4096, 1024), (64 << 10, 64), (256 << 10, 16), (1 << 20, 16)]
        {
            let tally = Tally::new(object_bytes);
            for change in [objects, -objects] {
                tally.sheaf_free.store(change - change.signum(), Relaxed);
                assert!(!tally.is_far_behind(), "{object_bytes} {change}");
                tally.sheaf_free.store(change, Relaxed);
                assert!(tally.is_far_behind(), "{object_bytes} {change}");
                tally.sheaf_free.store(0, Relaxed);
                tally.taken.store(change, Relaxed);
                assert!(tally.is_far_behind(), "{object_bytes} {change}");
                tally.taken.store(0, Relaxed);
            }
        }
    }

    /// A call that leaves less in its line folds it at its turn, and one that leaves more at once.
    #[test]
    fn a_call_folds_what_misleads() {
        // SAFETY: integers and atomics of integers, of which zero is a value.
        let record: Record = unsafe { core::mem::zeroed() };
        let tally = Tally::new(64 << 10);
        // No turn comes before so many more, without a background thread or with one.
        let number = (&raw const tally).addr() / size_of::<Tally>();
        tally.calls.store((1 << 21) - (number as u32 & ((1 << 20) - 1)), Relaxed);
        for objects in [63, 64] {
            tally.sheaf_free.store(objects, Relaxed);
            tally.count(SlowCall::Alloc, &record);
            let folded = if objects < 64 { 0 } else { objects };
            assert_eq!(record.sheaf_free.load(Relaxed), folded);
        }
        assert_eq!(record.alloc_slow.load(Relaxed), 2);
    }

    #[test]
    fn a_fold_moves_each_count_once() {
        // SAFETY: as above.
        let record: Record = unsafe { core::mem::zeroed() };
        let tally = Tally::new(64);
        tally.home_objects.store(60, Relaxed);
        tally.home_sheaves.store(1, Relaxed);
        tally.sheaf_free.store(-60, Relaxed);
        (0..2).for_each(|_| tally.fold(&record));
        let homes = (record.home_objects.load(Relaxed), record.home_sheaves.load(Relaxed));
        assert_eq!((homes, record.sheaf_free.load(Relaxed)), ((60, 1), -60));
    }
}

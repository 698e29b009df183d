//! The figures that one CPU's slow paths change, on a line that this CPU alone writes.
//!
//! ```text
//!   CPU 0 ─▶ Tally ─┐
//!   CPU 1 ─▶ Tally ─┼─ fold ─▶ Record, which all CPUs share, and observers read
//! ```
//!
//! A counter that every slow path of every CPU changed would bounce between their caches, as the
//! model shows (`cargo xtask scale`, ADR 0054). So a CPU changes its own line, and folds it into
//! the record: after each of its first [`CALLS_TO_FOLD`] slow calls, and then once in so many, or
//! once in [`CALLS_WITHOUT_THREAD`] while the process is too small for a background thread. A CPU
//! with many calls folds once in a [`PART_TO_FOLD`]th of them, up to [`MAX_CALLS_TO_FOLD`]: its
//! figures lag by that part at most. CPUs do so at different calls, because those that work alike
//! would meet at the record. Calls that move whole large sheaves fold sooner, at
//! [`OBJECTS_TO_FOLD`]. Readers in the process fold all lines first. Other processes see figures
//! that lag by so many calls of each CPU, until the background thread's next visit.
//!
//! The additions stay atomic: a thread may be moved to another CPU between reading the CPU's number
//! and the addition.

use super::layout::Record;
use crate::os::facts::{Fact, facts};
use crate::os::sleep;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32,
    Ordering::{AcqRel, Relaxed},
};

/// Slow calls of a CPU after which it folds its line.
const CALLS_TO_FOLD: u32 = 64;
/// The same where no background thread folds the lines of CPUs that rest.
const CALLS_WITHOUT_THREAD: u32 = 16;
/// The part of a CPU's calls that may be missing in the record, where that is more.
const PART_TO_FOLD: u32 = 16;
/// Upper bound on the calls that may be missing.
const MAX_CALLS_TO_FOLD: u32 = 1024;
/// Objects by which a CPU's line may differ from the record after a call that changed it. A thread
/// that moves to another CPU in a call leaves the sheaf's objects in one line and the slabs' in
/// another, so that live objects seem to come or go. To move so many objects takes many times
/// longer than a fold.
const OBJECTS_TO_FOLD: u64 = 4096;

/// One CPU's line. All zero is a valid start.
#[repr(C, align(64))]
#[derive(Default)]
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
    /// Times the barn served this CPU since the last reason to grow; see `percpu::adapt`.
    pub barn_served: AtomicU32,
    /// Times the spare did.
    pub spare_served: AtomicU32,
    /// Slow calls; may miss some.
    calls: AtomicU32,
    /// Whether there was a miss, or a call that the spare served, since the cache was last asked
    /// for capacity.
    pub is_used: AtomicBool,
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
    /// Counts a slow call, at its end. Folds the line now and then.
    #[inline]
    pub fn count(&self, call: SlowCall, record: &Record) {
        let counter = if call == SlowCall::Alloc { &self.alloc_slow } else { &self.free_slow };
        counter.fetch_add(1, Relaxed);
        let calls = self.calls.load(Relaxed).wrapping_add(1);
        self.calls.store(calls, Relaxed);
        if calls < CALLS_TO_FOLD || self.is_turn(calls) || self.is_far_behind() {
            self.fold(record);
        }
    }

    /// Whether a CPU that has made so many calls, [`CALLS_TO_FOLD`] or more, folds its line.
    #[inline]
    fn is_turn(&self, calls: u32) -> bool {
        let least = if sleep::has_background_thread() { CALLS_TO_FOLD } else { CALLS_WITHOUT_THREAD };
        // Powers of two.
        let part = (1 << calls.ilog2()) / PART_TO_FOLD;
        let every = part.clamp(least, MAX_CALLS_TO_FOLD);
        // The lines of CPUs lie side by side.
        let number = (&raw const *self).addr() / size_of::<Tally>();
        calls.wrapping_add(number as u32) & (every - 1) == 0
    }

    /// Whether so many objects are not folded yet that observers would be misled.
    pub fn is_far_behind(&self) -> bool {
        let slabs = self.taken.load(Relaxed) - self.folded.load(Relaxed);
        let sheaves = self.sheaf_free.load(Relaxed);
        slabs.unsigned_abs().max(sheaves.unsigned_abs()) >= OBJECTS_TO_FOLD
    }

    /// Moves what is not folded yet to `record`. Any thread may call it.
    #[cold]
    pub fn fold(&self, record: &Record) {
        self.fold_taken(record);
        let sheaf_free = self.sheaf_free.swap(0, Relaxed);
        if sheaf_free != 0 {
            record.sheaf_free.fetch_add(sheaf_free, Relaxed);
        }
        let events = [
            (&self.alloc_slow, &record.alloc_slow),
            (&self.free_slow, &record.free_slow),
            (&self.refills, &record.refills),
            (&self.flushes, &record.flushes),
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

    /// Makes `count` lines at `start`, one for each CPU.
    ///
    /// # Safety
    /// `start` must point to [`Tally::bytes`] bytes, aligned to 64, that live for ever and that no
    /// other code uses.
    pub(crate) unsafe fn lines(start: *mut u8, count: usize) -> &'static [Tally] {
        let lines = start.cast::<Tally>();
        for n in 0..count {
            // SAFETY: the caller's promise.
            unsafe { lines.add(n).write(Tally::default()) };
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

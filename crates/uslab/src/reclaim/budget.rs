//! The program's own limits: above the soft limit the background reclaims, at the hard limit the
//! allocating thread does.
//!
//! The limits count the memory that the arena holds: pages in use, and free pages with memory
//! behind them. The page layer compares at each allocation of pages.

use super::events::Place;
use super::install;
use super::ladder::{Progress, Until};
use super::{pass, registry};
use crate::cache::{TICK_MS, background, start};
use crate::counters::{Changer, layout, note_change, note_pass};
use crate::{os, pages};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Why [`set_limit`] refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LimitError {
    /// The soft limit is above the hard one.
    SoftAboveHard,
    /// The library could not be set up: there is no address space.
    OutOfMemory,
}

impl LimitError {
    /// The reason in words.
    pub(super) fn reason(self) -> &'static str {
        match self {
            LimitError::SoftAboveHard => "the soft limit is above the hard one",
            LimitError::OutOfMemory => "there is no address space for the allocator",
        }
    }
}

impl core::fmt::Display for LimitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.reason())
    }
}

impl core::error::Error for LimitError {}

/// Limits the memory that the allocator of this process holds, in bytes; 0 means no limit. Takes
/// effect at once. May be called at any time, from any thread.
///
/// * Above `soft_bytes` a thread of the library reclaims ([`crate::reclaim()`]) down to a little
///   less. If there can be no such thread (`USLAB_REAPER=0`, or the system refuses it), allocating
///   threads reclaim; with `USLAB_REAPER=0` once the arena exceeds 16 MiB.
/// * An allocation that would exceed `hard_bytes` first reclaims, on the allocating thread, and
///   runs callbacks of shrinkers, until it succeeds. If shrinkers have nothing left, it fails: null
///   with ENOMEM, `None`, `AllocError`. The limit never ends the process. Rust's `Vec` and other
///   collections do, when an allocation fails. Frees always work, even if the limit is below the
///   memory held.
///
/// The limits count whole pages: those of slabs, those of large objects, and free pages that still
/// have memory. They do not count the allocator's own tables, about 2 %.
///
/// ```
/// uslab::set_limit(768 << 20, 1 << 30).unwrap();
/// assert!(uslab::set_limit(2, 1).is_err());
/// uslab::set_limit(0, 0).unwrap();
/// ```
///
/// # Errors
/// See [`LimitError`]. On an error the limits stay as they were.
pub fn set_limit(soft_bytes: usize, hard_bytes: usize) -> Result<(), LimitError> {
    set_limit_as(soft_bytes, hard_bytes, Changer::Call)
}

/// [`set_limit`], for the program or for another process.
pub(super) fn set_limit_as(soft_bytes: usize, hard_bytes: usize, changer: Changer) -> Result<(), LimitError> {
    if hard_bytes != 0 && soft_bytes > hard_bytes {
        return Err(LimitError::SoftAboveHard);
    }
    if !start::ensure() {
        return Err(LimitError::OutOfMemory);
    }
    install();
    pages::set_limits(soft_bytes, hard_bytes);
    note_change("limit", changer, format_args!("{soft_bytes},{hard_bytes}"));
    if soft_bytes != 0 {
        background::begin();
        os::sleep::wake();
    }
    Ok(())
}

/// If held memory exceeds the soft limit, returns the bytes that may stay held.
pub(super) fn beyond_soft() -> Option<usize> {
    floor(pages::held_bytes(), pages::soft_limit_bytes()?)
}

/// If `held` exceeds `soft`, returns the bytes that may stay held: a sixteenth less than the limit.
/// After a pass that ended at the limit, another one would follow at once.
pub(super) fn floor(held: usize, soft: usize) -> Option<usize> {
    (held > soft).then(|| soft / 16 * 15)
}

/// Whether a pass for the soft limit gave the system less than `bytes`, for which it was asked. If
/// memory is still beyond the limit then, a rest follows.
///
/// The goal may be met all the same, because it counts freed entries by their estimated size. The
/// estimate is far too high for the few small entries of a large process.
pub(super) fn falls_short(progress: &Progress, bytes: usize) -> bool {
    progress.given_bytes < bytes
}

/// A pause between passes in the background, for the soft limit or for pressure.
///
/// It begins after a pass that did not bring enough: another pass would only take what programs
/// inserted since. It ends after half a second, or once a sixteenth more is held (16 MiB at most),
/// which is worth a pass. A rest that follows another one soon lasts twice as long, up to a bound.
pub(super) struct Rest {
    max_ms: u64,
    last_ms: AtomicU64,
    until_ms: AtomicU64,
    below_bytes: AtomicUsize,
}

/// Least growth that ends a rest: of a small heap a sixteenth is a single insertion.
const MIN_GROWTH_BYTES: usize = 1 << 20;
/// Growth that ends any rest: a quarter of the room that is kept below the limit of a large cgroup.
const MAX_GROWTH_BYTES: usize = 16 << 20;

/// The growth that ends a rest after a pass that left `held_bytes`.
pub(super) fn growth_bytes(held_bytes: usize) -> usize {
    (held_bytes / 16).clamp(MIN_GROWTH_BYTES, MAX_GROWTH_BYTES)
}

impl Rest {
    /// No rest so far. A rest will last for `max_ms` at most.
    pub const fn up_to(max_ms: u64) -> Rest {
        Rest {
            max_ms,
            last_ms: AtomicU64::new(0),
            until_ms: AtomicU64::new(0),
            below_bytes: AtomicUsize::new(0),
        }
    }

    /// Begins after a pass that left `held_bytes`.
    pub fn begin(&self, now_ms: u64, held_bytes: usize) {
        self.below_bytes.store(held_bytes.saturating_add(growth_bytes(held_bytes)), Relaxed);
        let (last_ms, until_ms) = (self.last_ms.load(Relaxed), self.until_ms.load(Relaxed));
        let follows = now_ms < until_ms + last_ms;
        let ms = if follows { (2 * last_ms).min(self.max_ms) } else { TICK_MS };
        self.last_ms.store(ms, Relaxed);
        self.until_ms.store(now_ms + ms, Relaxed);
    }

    /// Ends the rest, and makes the next one short.
    pub fn end(&self) {
        self.last_ms.store(0, Relaxed);
        self.until_ms.store(0, Relaxed);
    }

    /// Whether the rest goes on.
    pub fn lasts(&self, now_ms: u64, held_bytes: usize) -> bool {
        now_ms < self.until_ms.load(Relaxed) && held_bytes < self.below_bytes.load(Relaxed)
    }
}

/// Serves an allocation that found no pages for `bytes`: reclaims on the calling thread until
/// `attempt` succeeds. Returns false if it never did, and at once within a callback of a shrinker.
#[cold]
pub fn short(bytes: usize, attempt: &mut dyn FnMut() -> bool) -> bool {
    if registry::live() > 0 && registry::is_inside() {
        return false;
    }
    let mut done = false;
    let mut attempt = || {
        done = attempt();
        done
    };
    let progress = pass::run(Place::Allocation, bytes, &mut Until { bytes, attempt: &mut attempt });
    note_pass(layout::PASS_ALLOCATION, progress.given_bytes);
    done
}

#[cfg(test)]
mod tests {
    use super::{MIN_GROWTH_BYTES, Rest};
    use crate::cache::TICK_MS;

    #[test]
    fn a_rest_ends_with_time_or_growth() {
        let rest = Rest::up_to(TICK_MS);
        assert!(!rest.lasts(0, 0));
        let held = 64 << 20;
        rest.begin(1000, held);
        assert!(rest.lasts(1000, held) && rest.lasts(1000 + TICK_MS - 1, held + held / 16 - 1));
        assert!(!rest.lasts(1000 + TICK_MS, held));
        assert!(!rest.lasts(1000, held + held / 16));
        rest.begin(1000, 4096);
        assert!(rest.lasts(1000, MIN_GROWTH_BYTES) && !rest.lasts(1000, 4096 + MIN_GROWTH_BYTES));
        rest.end();
        assert!(!rest.lasts(1000, 0));
    }

    #[test]
    fn rests_that_follow_each_other_grow() {
        let rest = Rest::up_to(4 * TICK_MS);
        let mut now_ms = 10_000;
        let mut lasts_for = |ms, later_ms| {
            rest.begin(now_ms, 0);
            assert!(rest.lasts(now_ms + ms - 1, 0) && !rest.lasts(now_ms + ms, 0), "{ms}");
            now_ms += later_ms;
        };
        lasts_for(TICK_MS, TICK_MS);
        lasts_for(2 * TICK_MS, 4 * TICK_MS - 1);
        lasts_for(4 * TICK_MS, 4 * TICK_MS);
        lasts_for(4 * TICK_MS, 8 * TICK_MS);
        lasts_for(TICK_MS, 0);
        rest.end();
        rest.begin(now_ms, 0);
        assert!(!rest.lasts(now_ms + TICK_MS, 0), "a pass that brought enough makes rests short");
    }
}

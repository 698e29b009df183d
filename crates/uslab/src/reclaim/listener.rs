//! The background thread once memory can be asked for: it hears pressure and keeps the soft limit.
//!
//! ```text
//!   pressure sources ─▶ Pressure ─▶ Share::of ─┐
//!   soft limit ──────────────────▶ soft_excess ┴─▶ bytes ─▶ uslab-shrink: a thread for one pass
//! ```
//!
//! The core runs the thread ([`crate::cache::background`]) and hands it over by the hook `listen`.
//! Callbacks of shrinkers do not run on it but on a thread that lives for one pass, `uslab-shrink`:
//! one that blocks holds up that pass, while this thread goes on, and starts another pass where the
//! first does not come back.
//!
//! Must never: hold a lock while it sleeps; run code of the program.

use super::ladder::Estimate;
use super::sources::{Choice, Pressure, Sources, Wanted};
use super::{budget, install, pass, registry};
use crate::cache::{Looks, TICK_MS, background, start};
use crate::{cache, os, pages};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

/// Upper bound on one sleep: `poll` cannot be interrupted by a futex wake, nor a futex wait by a
/// descriptor.
const SLICE_MS: u64 = 200;
/// Passes in the background at once, at most: each beyond the first because those before it hang
/// in a callback.
const MAX_PASSES: u32 = 4;
/// A pass that has not come back after this hangs.
const HANGS_MS: u64 = 100;

/// In [`CHOICE`]: the program has not said what it wants watched.
const NOT_CHOSEN: u32 = u32::MAX;
/// What the program wants watched, as [`Choice::bits`].
static CHOICE: AtomicU32 = AtomicU32::new(NOT_CHOSEN);

/// Chooses the pressure sources that are watched, from now on, and starts the background thread
/// that does it. Without this call they are chosen by the environment, or else all are, as soon as
/// a shrinker is registered: before, there is nothing that pressure could ask for.
///
/// ```
/// use uslab::reclaim::{PressureChoice, watch_pressure};
/// watch_pressure(PressureChoice::none().cgroup(true));
/// ```
pub fn watch_pressure(choice: Choice) {
    CHOICE.store(choice.bits(), Relaxed);
    if start::ensure() {
        install();
        background::begin();
    }
    os::sleep::wake();
}

/// Listens on the background thread, between its looks.
pub(super) fn listen(mut looks: Looks) -> ! {
    if start::pressure_is_named() {
        // The program's own choice, if it made one, is as good: the environment goes over it.
        let _ = CHOICE.compare_exchange(NOT_CHOSEN, Choice::default().bits(), Relaxed, Relaxed);
    }
    let mut listener = Listener { sources: Sources::none(), open: NOT_CHOSEN, share: Share::new() };
    loop {
        listener.follow_choice();
        if let Some(bytes) = listener.listen(&looks) {
            pass_in_background(bytes);
        }
        if let Some(bytes) = soft_excess() {
            pass_in_background(bytes);
        }
        looks.look();
    }
}

/// The thread's sleep, and what ends it early.
struct Listener {
    sources: Sources,
    /// The choice that the sources were opened for.
    open: u32,
    share: Share,
}

impl Listener {
    /// Opens the sources once they are worth it, and others when another choice is made.
    fn follow_choice(&mut self) {
        let mut choice = CHOICE.load(Relaxed);
        if choice == NOT_CHOSEN && registry::live() > 0 {
            choice = Choice::default().bits();
        }
        if choice != self.open {
            self.open = choice;
            self.sources = Sources::none();
            if choice != NOT_CHOSEN {
                self.sources = Sources::detect(&Choice::of_bits(choice).under_environment());
            }
        }
    }

    /// Sleeps until the next look, or until the thread is woken or there is pressure; returns the
    /// bytes that pressure wants.
    fn listen(&mut self, looks: &Looks) -> Option<usize> {
        let pressure = if self.sources.watches_descriptors() {
            let slice_ms = looks.left_ms().min(SLICE_MS);
            if pages::has_soft_limit() {
                // A sleep that ends when the limit is exceeded; descriptors are heard after it.
                os::sleep::for_ms(slice_ms);
                self.sources.wait(0)
            } else {
                self.sources.wait(slice_ms)
            }
        } else {
            let ms = looks.left_ms();
            if looks.is_quiet() && self.open == NOT_CHOSEN {
                os::sleep::until_activity(cache::trim_idle);
            }
            os::sleep::for_ms(ms);
            self.sources.headroom()
        };
        pressure.map(|pressure| self.share.of(pressure))
    }
}

/// The bytes that a report of pressure asks for. One of stalls names none: it is taken to ask for a
/// 32nd of the memory, and twice as much each time that another one follows within four seconds,
/// which is two of the kernel's windows. Where memory was swapped out any report counts twice.
pub(super) struct Share {
    shift: u32,
    last_ms: u64,
}

impl Share {
    const MIN_SHIFT: u32 = 5;
    const FOLLOWS_MS: u64 = 4000;

    pub(super) fn new() -> Share {
        Share { shift: Share::MIN_SHIFT, last_ms: 0 }
    }

    fn of(&mut self, pressure: Pressure) -> usize {
        let bytes = match pressure.wanted {
            Wanted::Bytes(bytes) => bytes,
            Wanted::Share => self.of_stall(os::clock::coarse_ms(), pages::held_bytes()),
        };
        if pressure.swapped { bytes.saturating_mul(2) } else { bytes }
    }

    /// A stall at `now_ms` while so much is held.
    pub(super) fn of_stall(&mut self, now_ms: u64, held_bytes: usize) -> usize {
        let follows = now_ms.saturating_sub(self.last_ms) < Share::FOLLOWS_MS;
        self.shift = if follows { self.shift.saturating_sub(1).max(1) } else { Share::MIN_SHIFT };
        self.last_ms = now_ms;
        (held_bytes >> self.shift).max(pages::CHUNK_BYTES)
    }
}

static PASSES: &AtomicU32 = &os::process::THREADS.passes;
static LAST_PASS_MS: AtomicU64 = AtomicU64::new(0);
/// Until then the soft limit asks for nothing: a pass found nothing to give.
static SOFT_RESTS_MS: AtomicU64 = AtomicU64::new(0);

/// Bytes that the soft limit wants reclaimed now. While there is nothing to be done about it the
/// page layer is not asked either, and goes on thinking that this thread knows.
fn soft_excess() -> Option<usize> {
    let now_ms = os::clock::coarse_ms();
    let acts = now_ms >= SOFT_RESTS_MS.load(Relaxed) && has_room(PASSES.load(Relaxed), now_ms);
    acts.then(budget::beyond_soft).flatten()
}

/// Whether another pass may begin beside those `running`: one at a time, as long as none hangs.
fn has_room(running: u32, now_ms: u64) -> bool {
    let hangs = now_ms.saturating_sub(LAST_PASS_MS.load(Relaxed)) >= HANGS_MS;
    running == 0 || (running < MAX_PASSES && hangs)
}

/// Begins a pass, if there is room for one. On success the caller must run [`pass`].
fn admit() -> bool {
    let now_ms = os::clock::coarse_ms();
    let running = PASSES.load(Relaxed);
    let admitted =
        has_room(running, now_ms) && PASSES.compare_exchange(running, running + 1, AcqRel, Relaxed).is_ok();
    if admitted {
        LAST_PASS_MS.store(now_ms, Relaxed);
    }
    admitted
}

/// One pass that was admitted.
fn pass(bytes: usize) {
    let progress = pass::run(bytes, &mut Estimate { bytes });
    if progress.entries == 0 && pages::is_beyond_soft() {
        SOFT_RESTS_MS.store(os::clock::coarse_ms() + TICK_MS, Relaxed);
    }
    // In a child that a callback forked the count began again at 0.
    let _ = PASSES.fetch_update(AcqRel, Relaxed, |passes| passes.checked_sub(1));
}

/// Keeps the soft limit on the calling thread, where there can be no background thread.
pub(super) fn keep_soft() {
    if let Some(bytes) = soft_excess()
        && admit()
    {
        pass(bytes);
    }
}

/// Reclaims `bytes` on a thread of its own; here, if there is no callback to wait for or the system
/// has no thread to give.
fn pass_in_background(bytes: usize) {
    if admit() && (registry::live() == 0 || !os::thread::spawn(one_pass, bytes)) {
        pass(bytes);
    }
}

extern "C" fn one_pass(bytes: *mut c_void) -> *mut c_void {
    os::thread::begin(c"uslab-shrink");
    pass(bytes.addr());
    // To look whether that was enough.
    os::sleep::wake();
    core::ptr::null_mut()
}

/// In a fork child: the passes are not here.
pub(super) fn reset_in_child() {
    PASSES.store(0, Relaxed);
    SOFT_RESTS_MS.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::sources::Kind;

    #[test]
    fn pressure_counts_twice_where_memory_was_swapped_out() {
        let asked =
            |wanted, swapped| Share::new().of(Pressure { kind: Kind::CgroupHeadroom, wanted, swapped });
        assert_eq!(asked(Wanted::Bytes(1000), false), 1000);
        assert_eq!(asked(Wanted::Bytes(1000), true), 2000);
        assert_eq!(asked(Wanted::Bytes(usize::MAX), true), usize::MAX);
        assert!(asked(Wanted::Share, true) >= 2 * pages::CHUNK_BYTES);
    }

    #[test]
    fn a_stall_that_follows_asks_for_twice_as_much() {
        let mut share = Share::new();
        let held = 1 << 30;
        let asked = [10_000, 12_000, 14_000, 18_001].map(|now_ms| share.of_stall(now_ms, held));
        assert_eq!(asked, [held >> 5, held >> 4, held >> 3, held >> 5]);
    }
}

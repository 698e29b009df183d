//! The background thread's second part, which runs once there is something to reclaim: it listens
//! to pressure sources and keeps the soft limit.
//!
//! ```text
//!   pressure sources ─▶ Pressure { bytes } ─┐
//!   soft limit ─▶ soft_excess: the floor ───┴─▶ Target ─▶ uslab-shrink: a thread for one pass
//! ```
//!
//! The core starts the thread ([`crate::cache::background`]) and hands it over by the hook
//! `listen`. Callbacks of shrinkers run on another thread, `uslab-shrink`, which lives for one
//! pass. A callback that blocks delays only its pass: this thread goes on, and starts another pass
//! if the first one hangs.
//!
//! This thread never holds a lock while it sleeps. It runs code of the program only if the system
//! refuses another thread.

use super::budget::{Rest, falls_short};
use super::events::Place;
use super::ladder::{Estimate, Goal};
use super::sources::{Choice, Sources};
use super::{budget, install, pass, registry};
use crate::cache::{TICK_MS, Ticks, background, start};
use crate::counters::{layout, note_pass};
use crate::{cache, os, pages};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

/// Upper bound on one sleep: `poll` cannot be interrupted by a futex wake, nor a futex wait by a
/// descriptor.
const SLICE_MS: u64 = 200;
/// Upper bound on concurrent background passes. Another one starts only if the running ones hang in
/// callbacks.
const MAX_PASSES: u32 = 4;
/// A pass hangs if none of its callbacks has returned for this long.
const HANGS_MS: u64 = 100;
/// Upper bound on a rest from pressure: entries that cannot go now may be able to go by then.
const MAX_PRESSURE_REST_MS: u64 = 4000;

/// The value of [`CHOICE`] before the program has chosen.
const NOT_CHOSEN: u32 = u32::MAX;
/// The program's choice of pressure sources, as [`Choice::bits`].
static CHOICE: AtomicU32 = AtomicU32::new(NOT_CHOSEN);

/// Chooses the pressure sources to watch from now on, and starts the background thread, which
/// watches them. Without this call the environment chooses, or else all sources are watched once a
/// shrinker is registered: before that, there is nothing to reclaim.
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

/// Whether `USLAB_PRESSURE` names sources, which are watched even if there is no shrinker.
pub(super) fn watches_from_start() -> bool {
    start::pressure_is_named() && Choice::none().under_environment().log(false) != Choice::none()
}

/// A shrinker was registered: the next report of pressure asks it.
pub(super) fn note_shrinker() {
    PRESSURE_REST.end();
}

/// The background thread's loop, until the thread must end: listens between its ticks.
pub(super) fn listen(mut ticks: Ticks) {
    // In the child of a raw system call no fork handler has reset these.
    end_rests();
    if start::pressure_is_named() {
        // Any choice will do, even one of the program: `under_environment` overrides it.
        let _ = CHOICE.compare_exchange(NOT_CHOSEN, Choice::default().bits(), Relaxed, Relaxed);
    }
    let mut listener = Listener { sources: Sources::none(), open: NOT_CHOSEN };
    loop {
        listener.follow_choice();
        let pressure = listener.listen(&ticks);
        if os::first::has_ended() {
            return;
        }
        match pressure {
            Some(_) if PRESSURE_REST.lasts(os::clock::coarse_ms(), pages::held_bytes()) => {
                listener.sources.ignore_report();
            }
            Some(bytes) => pass_in_background(Target::Reclaimed(bytes)),
            None => {}
        }
        if let Some(target) = soft_excess() {
            pass_in_background(target);
        }
        cache::serve_request();
        ticks.tick();
    }
}

/// The thread's sleep, and the pressure sources that end it early.
struct Listener {
    sources: Sources,
    /// The choice that the sources were opened for.
    open: u32,
}

impl Listener {
    /// Opens the chosen sources when the choice changes, or when the first shrinker is registered.
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

    /// Sleeps until the next tick, a wake or pressure. Returns the bytes that pressure asks for.
    fn listen(&mut self, ticks: &Ticks) -> Option<usize> {
        let pressure = if self.sources.watches_descriptors() {
            let slice_ms = ticks.left_ms().min(SLICE_MS);
            if pages::has_soft_limit() {
                // An allocation beyond the limit ends this sleep. Poll the descriptors after it.
                os::sleep::for_ms(slice_ms);
                self.sources.wait(0)
            } else {
                self.sources.wait(slice_ms)
            }
        } else {
            let ms = ticks.left_ms();
            if ticks.is_quiet() && !self.sources.has_chosen() {
                os::sleep::until_activity(cache::trim_idle, cache::request_check());
            }
            os::sleep::for_ms(ms);
            // The end of a pass ends this sleep, but `wait` keeps two reports apart even then.
            self.sources.wait(0)
        };
        self.sources.publish(pressure);
        pressure.map(|pressure| pressure.bytes)
    }
}

static PASSES: &AtomicU32 = &os::process::THREADS.passes;
static LAST_PASS_MS: AtomicU64 = AtomicU64::new(0);
/// While it lasts, no pass runs for the soft limit.
static SOFT_REST: Rest = Rest::up_to(TICK_MS);
/// While it lasts, reports of pressure are ignored: it may have causes outside of the process.
static PRESSURE_REST: Rest = Rest::up_to(MAX_PRESSURE_REST_MS);

/// The goal of a background pass, in bytes.
#[derive(Clone, Copy)]
enum Target {
    /// Release this many, under pressure.
    Reclaimed(usize),
    /// Release until at most this many stay held: the soft limit is exceeded.
    Held(usize),
}

/// The target of a pass for the soft limit, if one is needed and may run now. If none may run, this
/// does not ask the page layer, which then does not wake the thread again.
fn soft_excess() -> Option<Target> {
    let now_ms = os::clock::coarse_ms();
    let rests = SOFT_REST.lasts(now_ms, pages::held_bytes());
    let acts = !rests && has_room(PASSES.load(Relaxed), now_ms);
    acts.then(budget::beyond_soft).flatten().map(Target::Held)
}

/// Whether another pass may start beside the `running` ones: only if there are none, or they hang.
fn has_room(running: u32, now_ms: u64) -> bool {
    let progress_ms = LAST_PASS_MS.load(Relaxed).max(pass::last_progress_ms());
    let hangs = now_ms.saturating_sub(progress_ms) >= HANGS_MS;
    running == 0 || (running < MAX_PASSES && hangs)
}

/// Admits a pass, if one may start. On success the caller must run [`pass`].
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

/// Runs one pass that was admitted.
fn pass(target: Target, place: Place) {
    let (bytes, floor_bytes) = match target {
        Target::Reclaimed(bytes) => (bytes, 0),
        Target::Held(floor_bytes) => (pages::held_bytes().saturating_sub(floor_bytes), floor_bytes),
    };
    let above_bytes = || pages::held_bytes().saturating_sub(floor_bytes);
    let mut goal = Estimate { bytes, above_bytes: &above_bytes };
    let progress = pass::run(place, bytes, &mut goal);
    let (cause, rest, rests) = match target {
        Target::Reclaimed(_) => (layout::PASS_PRESSURE, &PRESSURE_REST, !goal.is_met(&progress)),
        Target::Held(_) => {
            (layout::PASS_SOFT, &SOFT_REST, falls_short(&progress, bytes) && pages::is_beyond_soft())
        }
    };
    note_pass(cause, progress.given_bytes);
    if rests {
        rest.begin(os::clock::coarse_ms(), pages::held_bytes());
    } else {
        rest.end();
    }
    // If a callback forked, the count starts again at 0 in the child.
    let _ = PASSES.fetch_update(AcqRel, Relaxed, |passes| passes.checked_sub(1));
}

/// Keeps the soft limit on the calling thread, if there can be no background thread. Does nothing
/// in a callback, where no pass can run.
pub(super) fn keep_soft() {
    if registry::live() > 0 && registry::is_inside() {
        return;
    }
    if let Some(target) = soft_excess()
        && admit()
    {
        pass(target, Place::SoftOnAllocation);
    }
}

/// Runs one pass on a thread of its own, or on this one where no code of the program is to run, or
/// where the system refuses a thread.
fn pass_in_background(target: Target) {
    let spawns = || match target {
        Target::Reclaimed(bytes) => os::thread::spawn(reclaim_on_thread, bytes),
        Target::Held(bytes) => os::thread::spawn(limit_on_thread, bytes),
    };
    // A subscriber of the feature `tracing` is code of the program, as shrinkers are.
    let runs_program = registry::live() > 0 || cfg!(feature = "tracing");
    let run = || pass(target, Place::Background);
    if admit() && (!runs_program || !spawns()) {
        if runs_program { os::signal::with_faults(run) } else { run() }
    }
}

extern "C" fn reclaim_on_thread(bytes: *mut c_void) -> *mut c_void {
    pass_on_thread(Target::Reclaimed(bytes.addr()))
}

extern "C" fn limit_on_thread(bytes: *mut c_void) -> *mut c_void {
    pass_on_thread(Target::Held(bytes.addr()))
}

fn pass_on_thread(target: Target) -> *mut c_void {
    os::thread::begin(c"uslab-shrink");
    os::signal::with_faults(|| pass(target, Place::Background));
    // The background thread checks whether that was enough.
    os::sleep::wake();
    os::first::take_over_signals();
    core::ptr::null_mut()
}

/// Resets the state in a fork child, in which no pass runs.
pub(super) fn reset_in_child() {
    PASSES.store(0, Relaxed);
    end_rests();
}

fn end_rests() {
    SOFT_REST.end();
    PRESSURE_REST.end();
}

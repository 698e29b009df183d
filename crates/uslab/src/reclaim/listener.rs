//! The background thread once memory can be asked for: it hears pressure and keeps the soft limit.
//!
//! ```text
//!   pressure sources ─▶ Pressure { bytes } ─┐
//!   soft limit ─▶ soft_excess: the floor ───┴─▶ Target ─▶ uslab-shrink: a thread for one pass
//! ```
//!
//! The core runs the thread ([`crate::cache::background`]) and hands it over by the hook `listen`.
//! Callbacks of shrinkers do not run on it but on a thread that lives for one pass, `uslab-shrink`:
//! one that blocks holds up that pass, while this thread goes on, and starts another pass where the
//! first does not come back.
//!
//! Must never: hold a lock while it sleeps; run code of the program.

use super::budget::Rest;
use super::ladder::{Estimate, Goal};
use super::sources::{Choice, Sources};
use super::{budget, install, pass, registry};
use crate::cache::{Looks, background, start};
use crate::{cache, os, pages};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

/// Upper bound on one sleep: `poll` cannot be interrupted by a futex wake, nor a futex wait by a
/// descriptor.
const SLICE_MS: u64 = 200;
/// Passes in the background at once, at most: each beyond the first because those before it hang
/// in a callback.
const MAX_PASSES: u32 = 4;
/// A pass of which no callback has returned for this long hangs.
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
    // In the child of a raw system call no handler has forgotten it.
    SOFT_REST.end();
    if start::pressure_is_named() {
        // The program's own choice, if it made one, is as good: the environment goes over it.
        let _ = CHOICE.compare_exchange(NOT_CHOSEN, Choice::default().bits(), Relaxed, Relaxed);
    }
    let mut listener = Listener { sources: Sources::none(), open: NOT_CHOSEN };
    loop {
        listener.follow_choice();
        if let Some(bytes) = listener.listen(&looks) {
            pass_in_background(Target::Reclaimed(bytes));
        }
        if let Some(target) = soft_excess() {
            pass_in_background(target);
        }
        looks.look();
    }
}

/// The thread's sleep, and what ends it early.
struct Listener {
    sources: Sources,
    /// The choice that the sources were opened for.
    open: u32,
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
        pressure.map(|pressure| pressure.bytes)
    }
}

static PASSES: &AtomicU32 = &os::process::THREADS.passes;
static LAST_PASS_MS: AtomicU64 = AtomicU64::new(0);
/// While it lasts the soft limit asks for nothing.
static SOFT_REST: Rest = Rest::none();

/// What a pass in the background aims at, in bytes.
#[derive(Clone, Copy)]
enum Target {
    /// So many go back, under pressure.
    Reclaimed(usize),
    /// No more than this stays held, beyond the soft limit.
    Held(usize),
}

/// What the soft limit asks for now. While there is nothing to be done about it the
/// page layer is not asked either, and goes on thinking that this thread knows.
fn soft_excess() -> Option<Target> {
    let now_ms = os::clock::coarse_ms();
    let rests = SOFT_REST.lasts(now_ms, pages::held_bytes());
    let acts = !rests && has_room(PASSES.load(Relaxed), now_ms);
    acts.then(budget::beyond_soft).flatten().map(Target::Held)
}

/// Whether another pass may begin beside those `running`: one at a time, as long as none hangs.
fn has_room(running: u32, now_ms: u64) -> bool {
    let progress_ms = LAST_PASS_MS.load(Relaxed).max(pass::last_progress_ms());
    let hangs = now_ms.saturating_sub(progress_ms) >= HANGS_MS;
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
fn pass(target: Target) {
    let (bytes, floor_bytes) = match target {
        Target::Reclaimed(bytes) => (bytes, 0),
        Target::Held(floor_bytes) => (pages::held_bytes().saturating_sub(floor_bytes), floor_bytes),
    };
    let above_bytes = || pages::held_bytes().saturating_sub(floor_bytes);
    let mut goal = Estimate { bytes, above_bytes: &above_bytes };
    let progress = pass::run_in_background(bytes, &mut goal);
    if !goal.is_met(&progress) && pages::is_beyond_soft() {
        SOFT_REST.begin(os::clock::coarse_ms(), pages::held_bytes());
    }
    // In a child that a callback forked the count began again at 0.
    let _ = PASSES.fetch_update(AcqRel, Relaxed, |passes| passes.checked_sub(1));
}

/// Keeps the soft limit on the calling thread, where there can be no background thread. Does
/// nothing in a callback, where a pass could not run.
pub(super) fn keep_soft() {
    if registry::live() > 0 && registry::is_inside() {
        return;
    }
    if let Some(target) = soft_excess()
        && admit()
    {
        pass(target);
    }
}

/// One pass on a thread of its own; here, if there is no callback to wait for or the system has no
/// thread to give.
fn pass_in_background(target: Target) {
    let spawns = || match target {
        Target::Reclaimed(bytes) => os::thread::spawn(reclaim_on_thread, bytes),
        Target::Held(bytes) => os::thread::spawn(limit_on_thread, bytes),
    };
    if admit() && (registry::live() == 0 || !spawns()) {
        pass(target);
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
    pass(target);
    // To look whether that was enough.
    os::sleep::wake();
    core::ptr::null_mut()
}

/// In a fork child: the passes are not here.
pub(super) fn reset_in_child() {
    PASSES.store(0, Relaxed);
    SOFT_REST.end();
}

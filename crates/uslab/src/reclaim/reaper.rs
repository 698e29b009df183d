//! The background thread, `uslab-reaper`: flushes what idles, lets go of what is not needed any more, and answers pressure.
//!
//! ```text
//!   tend() ── arena beyond 16 MiB, from a slow path ──▶ thread ──▶ every half second: cache::trim_idle()
//!   set_limit, register_shrinker ──────────────────────▶           pressure, soft limit ──▶ a thread of its own for the pass
//!                                                                  nothing to do and nothing left ──▶ sleeps until memory is used again
//! ```
//!
//! Programs with little memory never get it, and everything works without it: frees purge and release as they go. A fork child starts its own when it
//! grows. `USLAB_REAPER=0` forbids it.
//!
//! Callbacks of shrinkers do not run on it but on a thread that lives for one pass, `uslab-shrink`: one that blocks holds up that pass, while
//! this one goes on, and starts another pass where the first does not come back.
//!
//! Must never: hold a lock while it sleeps; run code of the program.

use super::pass::{self, Goal};
use super::sources::{Choice, Sources};
use super::{budget, registry};
use crate::os::process::Relation;
use crate::{cache, os, pages};
use core::ffi::c_void;
use core::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Between two looks.
const TICK_MS: u64 = 500;
/// Sleeps that wait for descriptors, and therefore cannot be ended, or the other way round, are so long at most.
const SLICE_MS: u64 = 200;
/// After the system refused a thread.
const RETRY_MS: u64 = 1000;
/// Passes in the background at once, at most: each beyond the first because those before it hang in a callback.
const MAX_PASSES: u32 = 4;
/// A pass of which no callback has returned for so long hangs.
const HANGS_MS: u64 = 100;

const NONE: u8 = 0;
const STARTING: u8 = 1;
const RUNNING: u8 = 2;
const FORBIDDEN: u8 = 3;

/// Forgotten in a fork child, as is the number of passes.
static STATE: &AtomicU8 = &os::process::THREADS.reaper;
static NEXT_TRY_MS: AtomicU64 = AtomicU64::new(0);

/// Starts the thread if there is none. Must be called without locks, by the program and not from within the C library.
#[inline]
pub fn begin() {
    if STATE.load(Relaxed) == NONE {
        start();
    }
}

/// The same; where there can be no thread, does here what cannot wait.
#[inline]
pub fn want_thread() {
    if STATE.load(Relaxed) != RUNNING {
        start_or_reclaim();
    }
}

#[cold]
fn start_or_reclaim() {
    begin();
    if STATE.load(Relaxed) == RUNNING || !pages::is_beyond_soft() {
        return;
    }
    let _errno = os::errno::Preserved::new();
    if os::process::relation() == Relation::Sharing {
        return;
    }
    if let Some(target) = soft_excess()
        && admit()
    {
        pass(target);
    }
}

/// Whether the thread is there.
pub fn is_running() -> bool {
    STATE.load(Relaxed) == RUNNING
}

#[cold]
fn start() {
    let _errno = os::errno::Preserved::new();
    match os::process::relation() {
        Relation::This => {}
        // A system call made this process, and no handler ran: the threads are not here.
        Relation::Copied => begin_anew(),
        // A thread of a `vfork` child ends with it, while its parent would take it for its own.
        Relation::Sharing => return,
    }
    let now_ms = os::clock::coarse_ms();
    if now_ms < NEXT_TRY_MS.load(Relaxed) || STATE.compare_exchange(NONE, STARTING, Acquire, Relaxed).is_err()
    {
        return;
    }
    if cache::start::reaper_is_forbidden() {
        STATE.store(FORBIDDEN, Release);
    } else if os::thread::spawn(run, 0) {
        STATE.store(RUNNING, Release);
    } else {
        NEXT_TRY_MS.store(now_ms + RETRY_MS, Relaxed);
        STATE.store(NONE, Release);
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    os::thread::begin(c"uslab-reaper");
    if cache::start::pressure_is_named() {
        // The program's own choice, if it made one, is as good: the environment goes over it.
        let _ = CHOICE.compare_exchange(NOT_CHOSEN, Choice::default().bits(), Relaxed, Relaxed);
    }
    let mut listener = Listener { sources: Sources::none(), open: NOT_CHOSEN };
    os::sleep::begin();
    let mut quiet = false;
    let mut next_look_ms = os::clock::coarse_ms() + TICK_MS;
    loop {
        listener.follow_choice();
        let left_ms = next_look_ms.saturating_sub(os::clock::coarse_ms());
        if let Some(bytes) = listener.listen(left_ms.max(1), quiet) {
            pass_in_background(Target::Reclaimed(bytes));
        }
        if let Some(target) = soft_excess() {
            pass_in_background(target);
        }
        // Looks are half a second apart, however often somebody wakes the thread.
        let now_ms = os::clock::coarse_ms();
        if now_ms < next_look_ms {
            pages::purge_excess();
            quiet = false;
        } else {
            quiet = cache::trim_idle();
            next_look_ms = now_ms + TICK_MS;
        }
    }
}

/// In [`CHOICE`]: the program has not said what it wants watched.
const NOT_CHOSEN: u32 = u32::MAX;
/// What the program wants watched, as [`Choice::bits`].
static CHOICE: AtomicU32 = AtomicU32::new(NOT_CHOSEN);

/// Says which pressure sources are watched, from now on, and starts the background thread that does it. Without this call they are chosen by the
/// environment, or else all are, as soon as a shrinker is registered: before, there is nothing that pressure could ask for.
///
/// ```
/// use uslab::reclaim::{PressureChoice, watch_pressure};
/// watch_pressure(PressureChoice::none().cgroup(true));
/// ```
pub fn watch_pressure(choice: Choice) {
    CHOICE.store(choice.bits(), Relaxed);
    if cache::start::ensure() {
        begin();
    }
    os::sleep::wake();
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

    /// Sleeps for `ms`, or until it is woken or there is pressure; says how many bytes that wants.
    fn listen(&mut self, ms: u64, quiet: bool) -> Option<usize> {
        let pressure = if self.sources.watches_descriptors() {
            let slice_ms = ms.min(SLICE_MS);
            if pages::has_soft_limit() {
                // A sleep that ends when the limit is exceeded; what the descriptors say is heard after it.
                os::sleep::for_ms(slice_ms);
                self.sources.wait(0)
            } else {
                self.sources.wait(slice_ms)
            }
        } else {
            if quiet && self.open == NOT_CHOSEN {
                os::sleep::until_activity(cache::trim_idle);
            }
            os::sleep::for_ms(ms);
            self.sources.headroom()
        };
        pressure.map(|pressure| pressure.bytes)
    }
}

static PASSES: &AtomicU32 = &os::process::THREADS.passes;
/// When a pass began, or a callback of one returned.
static LAST_PROGRESS_MS: AtomicU64 = AtomicU64::new(0);
/// Until then the soft limit asks for nothing: a pass found nothing to give.
static SOFT_RESTS_MS: AtomicU64 = AtomicU64::new(0);

/// What a pass in the background aims at, in bytes.
#[derive(Clone, Copy)]
enum Target {
    /// So many go back, under pressure.
    Reclaimed(usize),
    /// No more than this stays held, beyond the soft limit.
    Held(usize),
}

/// What the soft limit asks for now. While there is nothing to be done about it the page layer is not asked either, and goes on thinking
/// that we were told.
fn soft_excess() -> Option<Target> {
    let now_ms = os::clock::coarse_ms();
    let acts = now_ms >= SOFT_RESTS_MS.load(Relaxed) && has_room(PASSES.load(Relaxed), now_ms);
    acts.then(budget::beyond_soft).flatten().map(Target::Held)
}

/// Whether another pass may begin beside those `running`: one at a time, as long as none hangs.
fn has_room(running: u32, now_ms: u64) -> bool {
    let hangs = now_ms.saturating_sub(LAST_PROGRESS_MS.load(Relaxed)) >= HANGS_MS;
    running == 0 || (running < MAX_PASSES && hangs)
}

/// Begins a pass, if there is room for one. Who is admitted goes on to [`pass`].
fn admit() -> bool {
    let now_ms = os::clock::coarse_ms();
    let running = PASSES.load(Relaxed);
    let admitted =
        has_room(running, now_ms) && PASSES.compare_exchange(running, running + 1, AcqRel, Relaxed).is_ok();
    if admitted {
        LAST_PROGRESS_MS.store(now_ms, Relaxed);
    }
    admitted
}

/// One pass that was admitted.
fn pass(target: Target) {
    let (bytes, floor_bytes) = match target {
        Target::Reclaimed(bytes) => (bytes, 0),
        Target::Held(most) => (pages::held_bytes().saturating_sub(most), most),
    };
    let progress = || LAST_PROGRESS_MS.store(os::clock::coarse_ms(), Relaxed);
    let progress = pass::run(bytes, Goal::Estimate { floor_bytes, progress });
    if progress.entries == 0 && pages::is_beyond_soft() {
        SOFT_RESTS_MS.store(os::clock::coarse_ms() + TICK_MS, Relaxed);
    }
    // In a child that a callback forked the count began again at 0.
    let _ = PASSES.fetch_update(AcqRel, Relaxed, |passes| passes.checked_sub(1));
}

/// One pass on a thread of its own; here, if there is no callback to wait for or no thread to be had.
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

/// In a fork child: none of these threads is here, and what they had open is the parent's.
pub(super) fn reset_in_child() {
    os::process::claim();
    if STATE.load(Relaxed) != FORBIDDEN {
        STATE.store(NONE, Relaxed);
    }
    PASSES.store(0, Relaxed);
    os::sleep::reset_in_child();
    begin_anew();
}

/// What is left to forget where the kernel wiped the state of the threads.
fn begin_anew() {
    os::descriptors::close_in_child();
    SOFT_RESTS_MS.store(0, Relaxed);
}

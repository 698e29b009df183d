//! The background thread, `uslab-reaper`: flushes idle sheaves, and shrinks and purges idle memory.
//!
//! ```text
//!   arena beyond 16 MiB ──┐
//!   soft limit, shrinker ─┼─▶ thread: each half second trim_idle(); sleeps without a timer
//!   request, source ──────┘   when there is nothing to do, and nothing left to do
//!                               └─▶ hooks with `listen` take it over
//! ```
//!
//! Below 16 MiB only a limit, a shrinker, a request or a source starts the thread. Everything works
//! without it: freeing threads purge and shrink. A fork child starts its own thread when it grows,
//! or in its next slow call if the parent had a soft limit, a shrinker or a source.
//! `USLAB_REAPER=0` forbids the thread.
//!
//! The thread never holds a lock while it sleeps. It runs callbacks of the program only if the hook
//! `listen` runs on it and the system refuses the thread `uslab-shrink`. It ends when the first
//! thread of the process does (`os/first.rs`), and no other one is started then.

use super::ticks::Ticks;
use super::{hooks, requests, state, trim};
use crate::os::process::Relation;
use crate::percpu::adapt;
use crate::{os, pages};
use core::ffi::c_void;
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Time until the next attempt after the system refused a thread.
const RETRY_MS: u64 = 1000;

const NONE: u8 = 0;
const STARTING: u8 = 1;
const RUNNING: u8 = 2;
const FORBIDDEN: u8 = 3;

/// The state of the thread. A fork child resets it.
static STATE: &AtomicU8 = &os::process::THREADS.reaper;
static NEXT_TRY_MS: AtomicU64 = AtomicU64::new(0);
/// The layer above needs the thread, however small the process is. Stays set, also over forks.
static IS_NEEDED: AtomicBool = AtomicBool::new(false);

/// Whether the thread runs.
pub fn is_running() -> bool {
    STATE.load(Relaxed) == RUNNING
}

/// Has the program's next slow call start the thread if there is none.
pub(crate) fn need() {
    IS_NEEDED.store(true, Relaxed);
}

/// Starts the thread if there is none; if the system refuses, a later slow call tries again. The
/// caller must be the program and hold no lock: the C library may hold locks that a new thread
/// needs.
pub(crate) fn begin() {
    need();
    start();
}

/// Starts the thread if there is none and the process has enough memory to need it, or has another
/// reason. If there can be no thread and memory exceeds the soft limit, reclaims on the calling
/// thread.
#[inline]
pub(crate) fn begin_if_large() {
    if is_wanted() {
        start_or_reclaim();
    }
}

/// Whether [`begin_if_large`] has something to do.
#[inline]
pub(crate) fn is_wanted() -> bool {
    let state = STATE.load(Relaxed);
    let is_needed = || state == NONE && (IS_NEEDED.load(Relaxed) || pages::is_beyond_soft());
    state != RUNNING && (!pages::is_small() || requests::is_pending() || is_needed())
}

#[cold]
fn start_or_reclaim() {
    start();
    if STATE.load(Relaxed) == RUNNING || !pages::is_beyond_soft() {
        return;
    }
    let _errno = os::errno::Preserved::new();
    if os::process::relation() != Relation::Sharing {
        (hooks::get().beyond_soft)();
    }
}

/// Starts the thread if there is none.
#[cold]
fn start() {
    // First: while the system refuses threads, each slow call comes here.
    let now_ms = os::clock::coarse_ms();
    if STATE.load(Relaxed) != NONE || now_ms < NEXT_TRY_MS.load(Relaxed) {
        return;
    }
    let _errno = os::errno::Preserved::new();
    match os::process::relation() {
        Relation::This => {}
        // The program made this process by a system call, so no fork handler ran. The background
        // thread does not exist here.
        Relation::Copied => os::descriptors::close_in_child(),
        // A `vfork` child shares this memory. A thread that it starts ends with it, while the
        // parent would take the thread for its own.
        Relation::Sharing => return,
    }
    if STATE.compare_exchange(NONE, STARTING, Acquire, Relaxed).is_err() {
        return;
    }
    os::first::watch_if_first();
    if state::reaper_is_forbidden() || os::first::has_ended() {
        STATE.store(FORBIDDEN, Release);
    } else if os::thread::spawn(run, 0) {
        // The thread may have ended already.
        let _ = STATE.compare_exchange(STARTING, RUNNING, Release, Relaxed);
    } else {
        NEXT_TRY_MS.store(now_ms + RETRY_MS, Relaxed);
        STATE.store(NONE, Release);
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    os::thread::begin(c"uslab-reaper");
    os::sleep::begin();
    let mut ticks = Ticks::new();
    loop {
        if let Some(listen) = hooks::get().listen {
            listen(ticks);
            break;
        }
        if ticks.is_quiet() {
            os::sleep::until_activity(trim::trim_idle, requests::pending_check());
        }
        os::sleep::for_ms(ticks.left_ms());
        if os::first::has_ended() {
            break;
        }
        requests::serve();
        // Without a layer above, only the environment sets a limit.
        trim::keep_soft();
        ticks.tick();
    }
    os::sleep::end();
    STATE.store(FORBIDDEN, Release);
    os::first::take_over_signals();
    core::ptr::null_mut()
}

/// Makes the library believe that the thread runs, for models of one thread: a process of many
/// CPUs has this thread. The caller makes those of its visits that the model needs, by
/// [`take_capacity`].
pub fn pretend() {
    STATE.store(RUNNING, Relaxed);
    os::sleep::begin();
}

/// Takes the capacity that growing caches wait for, as the thread does when they wake it.
pub fn take_capacity() {
    adapt::search();
}

/// Resets the state in a fork child: the thread does not exist here, and its descriptors are the
/// parent's.
pub(super) fn reset_in_child() {
    os::process::claim();
    STATE.store(NONE, Relaxed);
    NEXT_TRY_MS.store(0, Relaxed);
    os::sleep::reset_in_child();
    os::descriptors::close_in_child();
}

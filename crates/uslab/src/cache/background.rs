//! The background thread, `uslab-reaper`: flushes what idles, and purges what is not needed.
//!
//! ```text
//!   begin() ── arena beyond 16 MiB, from a slow path ──▶ thread ──▶ each half second: trim_idle()
//!   set_limit, register_shrinker ──────────────────────▶            nothing to do and nothing left
//!                                                                   ──▶ sleeps without a timer
//!                             hooks that listen ────────────────────▶ they take the thread over
//! ```
//!
//! Programs with little memory never get it, and everything works without it: frees purge and
//! shrink as they go. A fork child starts its own when it grows. `USLAB_REAPER=0` forbids it.
//!
//! Must never: hold a lock while it sleeps; run code of the program.

use super::looks::Looks;
use super::{hooks, state, trim};
use crate::os::process::Relation;
use crate::{os, pages};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// After the system refused a thread.
const RETRY_MS: u64 = 1000;

/// Memory from which on a background thread is worth having: what is free of less may as well stay.
const MIN_BYTES: usize = 16 << 20;

const NONE: u8 = 0;
const STARTING: u8 = 1;
const RUNNING: u8 = 2;
const FORBIDDEN: u8 = 3;

/// Forgotten in a fork child.
static STATE: &AtomicU8 = &os::process::THREADS.reaper;
static NEXT_TRY_MS: AtomicU64 = AtomicU64::new(0);

/// Whether the thread is there.
pub fn is_running() -> bool {
    STATE.load(Relaxed) == RUNNING
}

/// Starts the thread if there is none. The caller must be the program and hold no lock: the C
/// library may hold locks that a new thread needs.
#[inline]
pub(crate) fn begin() {
    if STATE.load(Relaxed) == NONE {
        start();
    }
}

/// [`begin`], if there is memory enough to tend. Where there can be no thread, does here what
/// cannot wait.
#[inline]
pub(crate) fn begin_if_large() {
    if pages::arena::committed_bytes() > MIN_BYTES && STATE.load(Relaxed) != RUNNING {
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
    if os::process::relation() != Relation::Sharing {
        (hooks::get().beyond_soft)();
    }
}

#[cold]
fn start() {
    let _errno = os::errno::Preserved::new();
    match os::process::relation() {
        Relation::This => {}
        // A system call made this process, and no handler ran: the threads are not here.
        Relation::Copied => os::descriptors::close_in_child(),
        // A thread of a `vfork` child ends with it, while its parent would take it for its own.
        Relation::Sharing => return,
    }
    let now_ms = os::clock::coarse_ms();
    if now_ms < NEXT_TRY_MS.load(Relaxed) || STATE.compare_exchange(NONE, STARTING, Acquire, Relaxed).is_err()
    {
        return;
    }
    if state::reaper_is_forbidden() {
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
    os::sleep::begin();
    let mut looks = Looks::new();
    loop {
        if let Some(listen) = hooks::get().listen {
            listen(looks);
        }
        if looks.is_quiet() {
            os::sleep::until_activity(trim::trim_idle);
        }
        os::sleep::for_ms(looks.left_ms());
        looks.look();
    }
}

/// In a fork child: the thread is not here, and what it had open is the parent's.
pub(super) fn reset_in_child() {
    os::process::claim();
    if STATE.load(Relaxed) != FORBIDDEN {
        STATE.store(NONE, Relaxed);
    }
    os::sleep::reset_in_child();
    os::descriptors::close_in_child();
}

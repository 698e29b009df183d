//! The background thread, `uslab-reaper`: flushes what idles, lets go of what is not needed any more, and answers pressure.
//!
//! ```text
//!   tend() ── arena beyond 16 MiB, from a slow path ──▶ thread ──▶ every half second: cache::settle()
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

use super::{budget, pass, registry};
use crate::{cache, os};
use core::ffi::c_void;
use core::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

/// Between two looks.
const TICK_MS: u64 = 500;
/// After the system refused a thread.
const RETRY_MS: u64 = 1000;
/// Passes in the background at once, at most: each beyond the first because those before it hang in a callback.
const PASSES_MOST: u32 = 4;
/// A pass that has not come back after this hangs.
const HANGS_MS: u64 = 100;

const NONE: u8 = 0;
const STARTING: u8 = 1;
const RUNNING: u8 = 2;
const FORBIDDEN: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NONE);
static NEXT_TRY_MS: AtomicU64 = AtomicU64::new(0);

/// Starts the thread if there is none. Must be called without locks, by the program and not from within the C library.
#[inline]
pub fn tend() {
    if STATE.load(Relaxed) == NONE {
        start();
    }
}

/// Whether the thread is there.
pub fn is_running() -> bool {
    STATE.load(Relaxed) == RUNNING
}

#[cold]
fn start() {
    let _errno = os::errno::Preserved::new();
    let now_ms = os::clock::coarse_ms();
    if now_ms < NEXT_TRY_MS.load(Relaxed) || STATE.compare_exchange(NONE, STARTING, Acquire, Relaxed).is_err()
    {
        return;
    }
    let [wanted] = os::env::lookup(["USLAB_REAPER"]);
    if wanted.is_some_and(|value| value.as_bytes() == b"0") {
        STATE.store(FORBIDDEN, Release);
    } else if os::thread::spawn(run, 0) {
        STATE.store(RUNNING, Release);
    } else {
        NEXT_TRY_MS.store(now_ms + RETRY_MS, Relaxed);
        STATE.store(NONE, Release);
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    os::thread::set_name(c"uslab-reaper");
    let mut quiet = false;
    loop {
        if quiet {
            os::doze::rest(cache::settle);
        }
        os::doze::nap(TICK_MS);
        if let Some(bytes) = budget::beyond_soft() {
            pass_in_background(bytes);
        }
        quiet = cache::settle();
    }
}

static PASSES: AtomicU32 = AtomicU32::new(0);
static LAST_PASS_MS: AtomicU64 = AtomicU64::new(0);
static WANTED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Reclaims `bytes` on a thread of its own; here, if there is no callback to wait for or no thread to be had.
fn pass_in_background(bytes: usize) {
    if registry::live() == 0 {
        pass::reclaim(bytes);
        return;
    }
    WANTED_BYTES.fetch_max(bytes, Relaxed);
    let now_ms = os::clock::coarse_ms();
    let running = PASSES.load(Relaxed);
    let hangs = now_ms.saturating_sub(LAST_PASS_MS.load(Relaxed)) >= HANGS_MS;
    if running >= PASSES_MOST || (running > 0 && !hangs) {
        return;
    }
    LAST_PASS_MS.store(now_ms, Relaxed);
    PASSES.fetch_add(1, AcqRel);
    if !os::thread::spawn(one_pass, 0) {
        PASSES.fetch_sub(1, AcqRel);
        pass::reclaim(WANTED_BYTES.swap(0, Relaxed));
    }
}

extern "C" fn one_pass(_: *mut c_void) -> *mut c_void {
    os::thread::set_name(c"uslab-shrink");
    pass::reclaim(WANTED_BYTES.swap(0, Relaxed));
    PASSES.fetch_sub(1, AcqRel);
    core::ptr::null_mut()
}

/// In a fork child: none of these threads is here.
pub(super) fn reset_in_child() {
    if STATE.load(Relaxed) != FORBIDDEN {
        STATE.store(NONE, Relaxed);
    }
    PASSES.store(0, Relaxed);
    WANTED_BYTES.store(0, Relaxed);
    os::doze::reset_in_child();
}

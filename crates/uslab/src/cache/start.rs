//! Start-up of the library: once, at the first use, from whichever thread and however early.
//!
//! Nothing here allocates or needs the C library to be initialised: the first call may come from the dynamic loader.

use crate::os::{self, Lock};
use crate::pages;
use crate::percpu::{adapt, sheaf};
use crate::rseq;
use crate::slab;
use crate::stats;
use crate::sync::Rank;
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

const NEW: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(NEW);
static INIT: Lock<()> = Lock::new(Rank::Init, ());
static CPUS: AtomicUsize = AtomicUsize::new(0);
static NODES: AtomicUsize = AtomicUsize::new(0);

/// 0: not tried; 1: being registered or registered.
static FORK_HANDLERS: AtomicU8 = AtomicU8::new(0);

/// Slots that a cache has where the number of CPUs cannot be found out; locked mode shares them.
const SLOTS_IF_UNKNOWN: usize = 64;

/// Slots that a cache has, after start-up: one for each possible CPU, but at most
/// [`rseq::MAX_CPUS`]. Where there are more CPUs, or an unknown number, the process runs locked and
/// its CPUs share slots.
pub fn cpus() -> usize {
    CPUS.load(Relaxed)
}

/// Nodes, after start-up.
pub fn nodes() -> usize {
    NODES.load(Relaxed)
}

/// Whether the library is set up, without setting it up.
pub fn is_ready() -> bool {
    STATE.load(Acquire) == READY
}

/// How this process makes its per-CPU steps safe; decided once, at start-up, which this call brings about if it must.
pub fn mode() -> rseq::Mode {
    ensure();
    rseq::mode()
}

/// What the environment says of the background thread. It is read here and not by that thread,
/// which opens no file unless the program wants pressure watched: a descriptor that comes and goes
/// behind a program's back is taken for its own, where that closes all or fills in certain numbers.
static REAPER_FORBIDDEN: AtomicBool = AtomicBool::new(false);
static PRESSURE_NAMED: AtomicBool = AtomicBool::new(false);

/// Whether `USLAB_REAPER=0`.
pub(crate) fn reaper_is_forbidden() -> bool {
    REAPER_FORBIDDEN.load(Relaxed)
}

/// Whether `USLAB_PRESSURE` says anything.
pub(crate) fn pressure_is_named() -> bool {
    PRESSURE_NAMED.load(Relaxed)
}

/// Sets the library up if it is not; false if the address space has no room for an arena, which is final.
pub fn ensure() -> bool {
    let ready = match STATE.load(Acquire) {
        READY => true,
        FAILED => false,
        _ => {
            let _errno = os::errno::Preserved::new();
            let guard = INIT.lock();
            if STATE.load(Acquire) == NEW {
                STATE.store(if start() { READY } else { FAILED }, Release);
            }
            drop(guard);
            STATE.load(Acquire) == READY
        }
    };
    if ready && FORK_HANDLERS.load(Relaxed) == 0 {
        register_fork_handlers();
    }
    ready
}

/// Outside the lock: the C library may allocate to remember the handlers, which comes back here and must be served.
#[cold]
fn register_fork_handlers() {
    if FORK_HANDLERS.swap(1, Relaxed) == 0 {
        let _errno = os::errno::Preserved::new();
        super::fork::register();
    }
}

fn start() -> bool {
    // Named, and thereby linked: it ran when this object was loaded.
    core::hint::black_box(&os::pin::AT_LOAD);
    let [rseq_off, snapshot, snapshot_reader, misuse, bound, reaper, pressure] = os::env::lookup([
        "USLAB_RSEQ",
        "USLAB_SNAPSHOT",
        "USLAB_SNAPSHOT_READER",
        "USLAB_ON_MISUSE",
        "USLAB_CPU_BYTES",
        "USLAB_REAPER",
        "USLAB_PRESSURE",
    ]);
    os::process::claim();
    REAPER_FORBIDDEN.store(reaper.is_some_and(|value| value.as_bytes() == b"0"), Relaxed);
    PRESSURE_NAMED.store(pressure.is_some(), Relaxed);
    os::scheduling::note_first();
    let possible = os::cpu::possible_cpus();
    CPUS.store(possible.unwrap_or(SLOTS_IF_UNKNOWN).min(rseq::MAX_CPUS), Relaxed);
    NODES.store(os::cpu::init_nodes(), Relaxed);
    rseq::init(rseq_off.is_some_and(|value| value.as_bytes() == b"0"), possible);
    slab::set_abort_on_misuse(misuse.is_none_or(|value| value.as_bytes() != b"report"));
    adapt::init(cpus(), bound.and_then(|value| value.as_number()).map(|bytes| bytes as usize));
    let snapshot_reader = snapshot_reader.and_then(|value| value.as_number());
    stats::init(snapshot.as_ref().map(|value| value.as_bytes()), snapshot_reader, |header| {
        let mode = match rseq::mode() {
            rseq::Mode::Rseq => stats::layout::MODE_RSEQ,
            rseq::Mode::Locked => stats::layout::MODE_LOCKED,
        };
        header.mode.store(mode, Relaxed);
        header.mode_reason.store(rseq::reason() as u32, Relaxed);
        header.cpus.store(possible.unwrap_or(0) as u32, Relaxed);
        header.nodes.store(nodes() as u32, Relaxed);
        header.page_bytes.store(os::memory::page_bytes() as u32, Relaxed);
    });
    if !pages::arena::init() {
        return false;
    }
    pages::init_cpu_lists(cpus());
    sheaf::init(cpus(), nodes())
}

pub(super) fn lock_for_fork() {
    INIT.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { INIT.reset_in_child() } else { INIT.release_after_fork() }
}

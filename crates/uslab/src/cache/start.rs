//! Start-up of the library: once, at the first use, from whichever thread and however early.
//!
//! ```text
//!   load ──▶ pin the object, register fork handlers ┄┄▶ first use ──▶ lock ──▶ set up ──▶ ready
//! ```
//!
//! Nothing here needs the C library to be initialised: the first use may come from the dynamic
//! loader. The set-up does not allocate.
//!
//! The fork handlers come before the first lock. A fork beside a thread that held a lock without
//! them would copy the lock, and the child would wait for it for ever. A constructor registers
//! them, when no other thread can have called the library: not later, because two threads may race
//! for the first use.

use super::state::{CPUS, FAILED, INIT, NEW, NODES, PRESSURE_NAMED, READY, REAPER_FORBIDDEN, STATE};
use crate::counters;
use crate::os;
use crate::pages;
use crate::percpu::{adapt, sheaf};
use crate::rseq;
use crate::slab;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

pub(crate) use super::state::pressure_is_named;
pub use super::state::{cpus, is_ready, nodes};

/// Runs [`at_load`] when the object that contains the library is loaded: before the object's other
/// constructors, and before those of all objects that need it.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    os::pin::pin();
    register_fork_handlers();
}

/// Whether the fork handlers are registered, or being registered.
static FORK_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Slots that a cache has where the number of CPUs cannot be found out; locked mode shares them.
const SLOTS_IF_UNKNOWN: usize = 64;

/// How this process makes its per-CPU steps safe; decided once, at start-up, which this call brings
/// about if it must.
pub fn mode() -> rseq::Mode {
    ensure();
    rseq::mode()
}

/// Sets the library up if it is not; false if the address space has no room for an arena, which is
/// final.
pub fn ensure() -> bool {
    match STATE.load(Acquire) {
        READY => true,
        FAILED => false,
        _ => start_once(),
    }
}

#[cold]
fn start_once() -> bool {
    let _errno = os::errno::Preserved::new();
    // A use before the constructor: the loader allocates, or a constructor that ran earlier does.
    register_fork_handlers();
    let _init = INIT.lock();
    if STATE.load(Acquire) == NEW {
        STATE.store(if start() { READY } else { FAILED }, Release);
    }
    STATE.load(Acquire) == READY
}

/// Must be called with no lock held: the C library may allocate to remember the handlers, which
/// comes back to [`ensure`] and must be served.
fn register_fork_handlers() {
    if !FORK_HANDLERS.swap(true, Relaxed) {
        super::fork::register();
    }
}

fn start() -> bool {
    // The linker drops a member of an archive to which no reference exists.
    core::hint::black_box(&AT_LOAD);
    let config = os::env::config();
    os::process::claim();
    REAPER_FORBIDDEN.store(config.forbids_reaper, Relaxed);
    PRESSURE_NAMED.store(config.names_pressure, Relaxed);
    os::scheduling::note_first();
    let possible = os::cpu::possible_cpus();
    CPUS.store(possible.unwrap_or(SLOTS_IF_UNKNOWN).min(rseq::MAX_CPUS), Relaxed);
    NODES.store(os::cpu::init_nodes(), Relaxed);
    rseq::init(config.forbids_rseq, possible);
    slab::set_abort_on_misuse(config.aborts_on_misuse);
    adapt::init(cpus(), config.cpu_bytes);
    counters::init(
        config.snapshot.as_ref().map(|value| value.as_bytes()),
        config.snapshot_reader,
        |header| {
            let mode = match rseq::mode() {
                rseq::Mode::Rseq => counters::layout::MODE_RSEQ,
                rseq::Mode::Locked => counters::layout::MODE_LOCKED,
            };
            header.mode.store(mode, Relaxed);
            header.mode_reason.store(rseq::reason() as u32, Relaxed);
            header.cpus.store(possible.unwrap_or(0) as u32, Relaxed);
            header.nodes.store(nodes() as u32, Relaxed);
            header.page_bytes.store(os::memory::page_bytes() as u32, Relaxed);
        },
    );
    if !pages::arena::init() {
        return false;
    }
    pages::init_cpu_lists(cpus());
    sheaf::init(cpus(), nodes())
}

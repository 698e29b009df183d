//! Start-up of the library: once, at the first use, from whichever thread and however early.
//!
//! Nothing here allocates or needs the C library to be initialised: the first call may come from
//! the dynamic loader.

use super::state::{CPUS, FAILED, INIT, NEW, NODES, PRESSURE_NAMED, READY, REAPER_FORBIDDEN, STATE};
use crate::counters;
use crate::os;
use crate::pages;
use crate::percpu::{adapt, sheaf};
use crate::rseq;
use crate::slab;
use core::sync::atomic::{AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

pub(crate) use super::state::pressure_is_named;
pub use super::state::{cpus, is_ready, nodes};

/// 0: not tried; 1: being registered or registered.
static FORK_HANDLERS: AtomicU8 = AtomicU8::new(0);

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

/// Outside the lock: the C library may allocate to remember the handlers, which comes back here and
/// must be served.
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
    let config = os::env::config();
    os::process::claim();
    REAPER_FORBIDDEN.store(config.forbids_reaper, Relaxed);
    PRESSURE_NAMED.store(config.names_pressure, Relaxed);
    if let Some(decay_ms) = config.decay_ms {
        pages::decay::set_default_ms(decay_ms);
    }
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

//! Start-up of the library: two steps, each once, on any thread and however early.
//!
//! ```text
//!   load ──▶ pin the object, watch for the end of its thread, register fork handlers
//!   shared libraries at load ──▶ lock ─▶ learn: environment, CPUs, mode ─▶ KNOWN
//!   first use ─▶ lock ─▶ learn, unless KNOWN ─▶ map the first memory ───▶ READY
//! ```
//!
//! A program that never allocates maps nothing. What start-up reads from the system, the shared
//! libraries read at load: the program may forbid such calls later, by a seccomp filter.
//!
//! No step needs the C library to be initialised, because the first call may come from the dynamic
//! loader. The set-up does not allocate.
//!
//! The fork handlers are registered before the first lock is taken. Without them a fork would copy
//! a lock that another thread holds, and the child would wait for that lock for ever. A constructor
//! registers them, while no other thread can have called the library: two threads may race for the
//! first use.

use super::debugged;
use super::gdb;
use super::state::{
    CPUS, GUARD_ALL, GUARD_NAMED, HARD_BYTES, INIT, KNOWN, LEAKS, NEW, NODES, PRESSURE_NAMED, PROFILE_NAMED,
    READY, REAPER_FORBIDDEN, REPORTS_AT_EXIT, SOFT_BYTES, STATE,
};
use crate::counters;
use crate::os;
use crate::os::env::{Ignored, Origin};
use crate::os::hardening::Hardening;
use crate::os::settings::Fault;
use crate::pages;
use crate::percpu::{self, adapt, sheaf};
use crate::report;
use crate::rseq::{self, Wish};
use crate::slab;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

pub use super::state::{cpus, is_ready, nodes};
pub(crate) use super::state::{
    guard_is_named, guards_all, leaks_at_exit, limit_is_named, pressure_is_named, profile_is_named,
    reports_at_exit,
};

/// Runs [`at_load`] when the object that contains the library is loaded: before the object's other
/// constructors, and before those of all objects that need it.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    os::pin::pin();
    os::first::watch();
    register_fork_handlers();
}

/// Whether a thread has begun to register the fork handlers.
static FORK_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Slots of a cache if the number of CPUs is unknown; in locked mode the CPUs share them.
const SLOTS_IF_UNKNOWN: usize = 64;

/// The way in which this process makes its per-CPU steps safe. The first call to the library
/// chooses it, once; that may be this call.
pub fn mode() -> rseq::Mode {
    know();
    rseq::mode()
}

/// Learns from the system what start-up must know, unless that has been done. Maps no memory.
pub fn know() {
    if STATE.load(Acquire) == NEW {
        start_once(false);
    }
}

/// Sets the library up, unless that has been done. Returns false if there is no address space for
/// an arena, or no memory for its first tables; a later call tries again.
pub fn ensure() -> bool {
    STATE.load(Acquire) == READY || start_once(true)
}

#[cold]
fn start_once(maps_memory: bool) -> bool {
    let _errno = os::errno::Preserved::new();
    // The first use may come before the constructor: from the loader, or from another constructor.
    register_fork_handlers();
    let _init = INIT.lock();
    if STATE.load(Acquire) == NEW {
        learn();
        STATE.store(KNOWN, Release);
    }
    if maps_memory && STATE.load(Acquire) == KNOWN && map_memory() {
        STATE.store(READY, Release);
    }
    STATE.load(Acquire) == READY
}

/// Registers the fork handlers. The caller holds no lock: the C library may allocate to remember
/// the handlers, and that allocation calls [`ensure`] again.
fn register_fork_handlers() {
    if !FORK_HANDLERS.swap(true, Relaxed) {
        super::fork::register();
    }
}

#[cold]
fn report_ignored(ignored: Ignored) {
    match ignored {
        Ignored::Wrong(name, fault, origin) => report_wrong(name, &fault, origin),
        Ignored::TooLong(name) => {
            os::report::print(format_args!("{name} is ignored: longer than {} bytes", os::env::VALUE_BYTES));
        }
        Ignored::Unknown(origin, name) => {
            let (string, name) = (origin.string(), name.escape_ascii());
            os::report::print(format_args!("{string}: there is no setting `{name}`"));
        }
    }
}

/// Reports a value without a meaning: its default holds.
#[cold]
fn report_wrong(name: &str, fault: &Fault, origin: Origin) {
    match origin.string() {
        "" => os::report::print(format_args!("{name} is ignored: {fault}")),
        string => {
            // The names in strings are in lower case.
            let mut word = [0; 32];
            let bytes = name.strip_prefix("USLAB_").unwrap_or(name).as_bytes();
            let used = bytes.len().min(word.len());
            word[..used].copy_from_slice(&bytes[..used]);
            word.make_ascii_lowercase();
            let word = word[..used].escape_ascii();
            os::report::print(format_args!("{word} in {string} is ignored: {fault}"));
        }
    }
}

/// Reads the environment and the system, and chooses the mode.
///
/// Not inlined: the values of all variables take 5.5 KiB of stack. The shared libraries learn at
/// load, and the first use may then come on a stack of a few KiB.
#[inline(never)]
fn learn() {
    // Without a reference the linker drops this member of an archive.
    core::hint::black_box((&AT_LOAD, &gdb::TABLE));
    let mut settings = os::env::Settings::UNSET;
    settings.read(&mut report_ignored);
    let config = settings.config();
    os::process::claim();
    os::corruption::set_report(report::corrupted);
    REAPER_FORBIDDEN.store(config.forbids_reaper, Relaxed);
    PRESSURE_NAMED.store(config.names_pressure, Relaxed);
    if os::checkers::IS_ON {
        debugged::for_checker();
    } else if let Some(value) = &config.secure {
        harden(value.as_bytes());
    }
    if let Some(effect) = config.leaks {
        LEAKS.store(effect as u8, Relaxed);
        debugged::record_users();
    }
    if let Some(path) = &config.leak_suppressions {
        report::suppress::set_path(path.as_bytes());
    }
    if let Some(limit) = config.limit {
        let (soft_bytes, hard_bytes) = limit.bytes(os::capacity::memory_bytes);
        SOFT_BYTES.store(soft_bytes, Relaxed);
        HARD_BYTES.store(hard_bytes, Relaxed);
    }
    REPORTS_AT_EXIT.store(config.reports_at_exit, Relaxed);
    if let Some(guard) = config.guard {
        GUARD_NAMED.store(true, Relaxed);
        GUARD_ALL.store(guard.interval_ms == 0, Relaxed);
    }
    PROFILE_NAMED.store(config.profile.is_some(), Relaxed);
    if let Some(decay_ms) = config.decay_ms {
        pages::decay::set_default_ms(decay_ms);
    }
    if let Some(huge_pages) = config.huge_pages {
        pages::huge::set_default_mode(huge_pages);
    }
    os::scheduling::note_first();
    let possible = os::cpu::possible_cpus();
    CPUS.store(possible.unwrap_or(SLOTS_IF_UNKNOWN).min(rseq::MAX_CPUS), Relaxed);
    NODES.store(if config.ignores_nodes { 1 } else { os::cpu::init_nodes() }, Relaxed);
    os::sharing::init(possible.unwrap_or(0), nodes());
    let wish = match (config.forbids_rseq, config.insists_on_rseq) {
        (true, _) => Wish::Locked,
        (_, true) => Wish::Own,
        _ => Wish::Usual,
    };
    rseq::init(wish, possible);
    report::set_abort(config.aborts_on_misuse);
    if let Some(value) = &config.debug_report {
        report::set_sink_from(value.as_bytes());
    }
    if let Some(value) = &config.debug {
        debugged::set_selection(value.as_bytes());
    }
    if debugged::selects_malloc() && !os::checkers::IS_ON {
        percpu::allow_hidden();
    }
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
            counters::note_settings(&settings);
        },
    );
}

/// Hardens all caches as `USLAB_SECURE` asks for; not at all if its text has no meaning.
fn harden(text: &[u8]) {
    let hardening = Hardening::parse(text).unwrap_or(Hardening::NONE);
    if hardening.needs_records() {
        debugged::secure(hardening);
    }
    if hardening.has(Hardening::ORDER) {
        percpu::shuffle_refills();
    }
    if hardening.has(Hardening::RANGES) {
        slab::keep_addresses();
    }
}

/// Chooses the arena's place, and makes the first structures there. A call that failed is repeated
/// whole.
fn map_memory() -> bool {
    if !pages::arena::init() {
        return false;
    }
    pages::init_cpu_lists(cpus());
    if limit_is_named() {
        pages::set_limits(SOFT_BYTES.load(Relaxed), HARD_BYTES.load(Relaxed));
    }
    sheaf::init(cpus(), os::sharing::count(), nodes())
}

//! Which of the two modes the process runs in, decided once, before the first cache exists.

use super::layout::{MAX_CPUS, fill_dummy_slots};
use crate::os;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

/// How per-CPU steps are made safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Restartable sequences.
    Rseq,
    /// A lock in each slot: the fallback, same results.
    Locked,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Rseq => "rseq",
            Mode::Locked => "locked",
        })
    }
}

/// Why a process runs locked; the numbers are those of the snapshot (`stats::layout::REASON_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// It does not.
    None = 0,
    /// `USLAB_RSEQ=0`.
    Forced = 1,
    /// The C library exports no registration.
    NoSymbol = 2,
    /// The C library could not register.
    Unregistered = 3,
    /// `membarrier(2)` cannot restart sequences.
    NoMembarrier = 4,
    /// More possible CPUs than [`MAX_CPUS`].
    TooManyCpus = 5,
    /// Not an architecture or kernel whose sequences are trusted.
    Unsupported = 6,
}

impl Reason {
    fn from_number(number: u8) -> Reason {
        [
            Reason::None,
            Reason::Forced,
            Reason::NoSymbol,
            Reason::Unregistered,
            Reason::NoMembarrier,
            Reason::TooManyCpus,
        ]
        .get(number as usize)
        .copied()
        .unwrap_or(Reason::Unsupported)
    }
}

/// 0: rseq not (yet) in use.
static RSEQ_IN_USE: AtomicU8 = AtomicU8::new(0);
static REASON: AtomicU8 = AtomicU8::new(Reason::None as u8);

/// Distance from the thread pointer to the area that sequences use; until `init`, and in locked mode, the scratch one.
static AREA_OFFSET: AtomicUsize = AtomicUsize::new(super::arch::SCRATCH_OFFSET);

/// See [`AREA_OFFSET`].
#[inline(always)]
pub(super) fn area_offset() -> usize {
    AREA_OFFSET.load(Relaxed)
}

/// Points all sequences at another area; for the fake CPU only.
pub(super) fn set_area_offset(offset: usize) {
    AREA_OFFSET.store(offset, Relaxed);
}

/// Decides the mode. `forced_off` is the user's `USLAB_RSEQ=0`. To be called once, before any slot is made.
pub fn init(forced_off: bool, cpus: usize) {
    super::arch::init();
    fill_dummy_slots(cpus);
    let reason = if forced_off { Reason::Forced } else { probe(cpus) };
    REASON.store(reason as u8, Relaxed);
    if reason == Reason::None {
        AREA_OFFSET.store(super::arch::registered_offset().unwrap_or(super::arch::SCRATCH_OFFSET), Relaxed);
        RSEQ_IN_USE.store(1, Relaxed);
    }
}

fn probe(cpus: usize) -> Reason {
    if !super::arch::SUPPORTED || os::cpu::distrusts_rseq() {
        return Reason::Unsupported;
    }
    match (super::arch::registered_offset(), super::arch::registered_bytes()) {
        (None, _) => return Reason::NoSymbol,
        (Some(_), 0) => return Reason::Unregistered,
        _ => {}
    }
    if cpus > MAX_CPUS {
        return Reason::TooManyCpus;
    }
    if !os::membarrier::register() {
        return Reason::NoMembarrier;
    }
    Reason::None
}

/// The mode of this process. Before the library is set up, [`Mode::Locked`].
#[inline]
pub fn mode() -> Mode {
    if RSEQ_IN_USE.load(Relaxed) != 0 { Mode::Rseq } else { Mode::Locked }
}

/// Why the mode is [`Mode::Locked`].
pub fn reason() -> Reason {
    Reason::from_number(REASON.load(Relaxed))
}

/// The CPU that the thread runs on; stale the moment it is returned. Below `MAX_CPUS` where sequences run.
#[inline]
pub fn current_cpu() -> usize {
    match mode() {
        Mode::Rseq => super::arch::area_cpu() as usize,
        Mode::Locked => super::fake::cpu().unwrap_or_else(os::cpu::current),
    }
}

//! Which of the two modes the process runs in, decided once, before the first cache exists.

use super::layout::{MAX_CPUS, fill_dummy_slots};
use crate::os;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed, Ordering::Release};

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

/// Why a process runs locked; the numbers are those of the snapshot (`counters::layout::REASON_*`).
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
    /// More possible CPUs than [`MAX_CPUS`], or an unknown number.
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
///
/// Slots of a cache go with the area that was decided before the cache was made: on the scratch
/// area all threads are on CPU 0, and nothing restarts them. So a thread must load the slots first.
/// Every place that is read without the program having handed anything on, a `static` cache or the
/// table of a size, is loaded with acquire; nothing after such a load is done before it, and this
/// load follows in the sequences' operands. Elsewhere the caller's own pointer (a handle, an
/// object) brings the order with it.
#[inline(always)]
pub(super) fn area_offset() -> usize {
    AREA_OFFSET.load(Relaxed)
}

/// Points all sequences at another area; for the fake CPU only.
pub(super) fn set_area_offset(offset: usize) {
    AREA_OFFSET.store(offset, Relaxed);
}

/// Decides the mode. `forced_off` is the user's `USLAB_RSEQ=0`; `cpus` is how many the kernel can
/// report, `None` if unknown. To be called once, before any slot is made.
///
/// The area is published last, with release: a thread that reads the number of a CPU from it finds
/// that CPU's dummy slot, because the slot's address comes from the number.
pub fn init(forced_off: bool, cpus: Option<usize>) {
    super::arch::init();
    fill_dummy_slots(cpus.unwrap_or(MAX_CPUS));
    let reason = if forced_off { Reason::Forced } else { probe(cpus) };
    REASON.store(reason as u8, Relaxed);
    if reason == Reason::None {
        RSEQ_IN_USE.store(1, Relaxed);
        AREA_OFFSET.store(super::arch::registered_offset().unwrap_or(super::arch::SCRATCH_OFFSET), Release);
    }
}

fn probe(cpus: Option<usize>) -> Reason {
    if !super::arch::SUPPORTED || os::cpu::distrusts_rseq() {
        return Reason::Unsupported;
    }
    match (super::arch::registered_offset(), super::arch::registered_bytes()) {
        (None, _) => return Reason::NoSymbol,
        (Some(_), 0) => return Reason::Unregistered,
        _ => {}
    }
    let Some(cpus) = cpus.filter(|&cpus| cpus <= MAX_CPUS) else {
        return Reason::TooManyCpus;
    };
    if !os::membarrier::register(cpus) {
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

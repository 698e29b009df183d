//! The choice between the two modes, made once, before the first cache exists.

use super::layout::{DUMMIES, MAX_CPUS, fill_dummy_slots};
use super::own;
use crate::os;
use crate::sync::CachePadded;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed, Ordering::Release};

/// The protection of per-CPU steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Restartable sequences.
    Rseq,
    /// A lock in each slot: the fallback, with the same results.
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

/// The reason why a process runs locked. The numbers are those of the snapshot
/// (`counters::layout::REASON_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// The process does not run locked.
    None = 0,
    /// `USLAB_RSEQ=0`.
    Forced = 1,
    /// The library was built without sequences.
    NotBuilt = 2,
    /// The thread has no area that this library can use. Four causes: the kernel cannot register
    /// threads; the C library was told to register none; another library registered the process's
    /// first thread; or the C library never registers, and this library has no area of its own.
    Unregistered = 3,
    /// `membarrier(2)` cannot restart sequences.
    NoMembarrier = 4,
    /// More possible CPUs than [`MAX_CPUS`], or an unknown number.
    TooManyCpus = 5,
    /// An architecture or kernel whose restartable sequences are not trusted.
    Unsupported = 6,
}

impl Reason {
    fn from_number(number: u8) -> Reason {
        [
            Reason::None,
            Reason::Forced,
            Reason::NotBuilt,
            Reason::Unregistered,
            Reason::NoMembarrier,
            Reason::TooManyCpus,
        ]
        .get(number as usize)
        .copied()
        .unwrap_or(Reason::Unsupported)
    }
}

/// 1 in rseq mode; 0 in locked mode and before [`init`].
static RSEQ_IN_USE: AtomicU8 = AtomicU8::new(0);
static REASON: AtomicU8 = AtomicU8::new(Reason::None as u8);

/// Distance in bytes from the thread pointer to the area that sequences use. Before `init` that is
/// the scratch area, which names CPU 0 (with musl the own area, which names -1). Padded, because
/// every operation reads it, and the locks of start-up and forks would lie beside it.
static AREA_OFFSET: CachePadded<AtomicUsize> = CachePadded(AtomicUsize::new(super::arch::SCRATCH_OFFSET));

/// The value of [`AREA_OFFSET`]. A thread must load a cache's slots, with acquire, before it calls
/// this.
///
/// The slots of a cache belong to the area that was chosen before the cache was made. With them, a
/// thread must not use the older scratch area: there all threads run on CPU 0, and the kernel
/// restarts none of them.
///
/// Where the program has not passed a pointer between threads (a `static` cache, the table of
/// sizes), the load of the slots is an acquire. This load follows it, in the sequences' operands.
/// Elsewhere the caller's own pointer (a handle, an object) brings the order with it.
///
/// With musl it is the library's own area at all times, so the offset is a constant.
#[inline(always)]
pub(super) fn area_offset() -> usize {
    match super::arch::own_offset() {
        Some(offset) if HAS_OWN_AREA_ALONE => offset,
        _ => AREA_OFFSET.0.load(Relaxed),
    }
}

/// Whether every process uses the library's own area: the C library has none.
pub(super) const HAS_OWN_AREA_ALONE: bool = cfg!(target_env = "musl");

/// Makes all sequences use another area; for the fake CPU only.
pub(super) fn set_area_offset(offset: usize) {
    AREA_OFFSET.0.store(offset, Relaxed);
}

/// What the user wishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Sequences, unless the C library was told to register no threads.
    Usual,
    /// No sequences.
    Locked,
    /// Sequences, even if the C library was told to register no threads.
    Own,
}

/// Decides the mode. `cpus` is the number of possible CPUs, `None` if unknown. Must be called once,
/// before any slot is made.
///
/// The area is published last, with release. So a thread that reads a CPU number from it also finds
/// that CPU's dummy slot: the slot's address depends on the number.
pub fn init(wish: Wish, cpus: Option<usize>) {
    // Its address is seen here, so that the optimiser does not cut the padding off.
    core::hint::black_box(&AREA_OFFSET);
    super::arch::init();
    if HAS_OWN_AREA_ALONE {
        // This thread's sequences find these slots as soon as it is registered.
        fill_dummy_slots(cpus.unwrap_or(0));
    }
    let probed = if wish == Wish::Locked { Err(Reason::Forced) } else { probe(wish, cpus) };
    let reason = probed.err().unwrap_or(Reason::None);
    REASON.store(reason as u8, Relaxed);
    fill_dummy_slots(numbers(reason, cpus.unwrap_or(MAX_CPUS)));
    if probed.is_ok() {
        RSEQ_IN_USE.store(1, Relaxed);
    }
    AREA_OFFSET.0.store(probed.unwrap_or_else(|_| locked_offset()), Release);
}

/// The offset of the area of locked mode. An own area may serve: then no thread is registered.
#[inline]
pub(super) fn locked_offset() -> usize {
    super::arch::own_offset().unwrap_or(super::arch::LOCKED_OFFSET)
}

/// The distance in bytes from the thread pointer to the area that the kernel updates, or the reason
/// why there is none.
fn probe(wish: Wish, cpus: Option<usize>) -> Result<usize, Reason> {
    if !super::arch::SUPPORTED {
        return Err(Reason::NotBuilt);
    }
    if os::cpu::distrusts_rseq() {
        return Err(Reason::Unsupported);
    }
    let registered = match (super::arch::registered_offset(), super::arch::registered_bytes()) {
        (Some(_), 0) if wish != Wish::Own => return Err(Reason::Unregistered),
        (offset, 1..) => offset,
        _ => None,
    };
    let cpus = cpus.filter(|&cpus| cpus <= MAX_CPUS).ok_or(Reason::TooManyCpus)?;
    if !os::membarrier::register(cpus) {
        return Err(Reason::NoMembarrier);
    }
    registered.or_else(own::begin).ok_or(Reason::Unregistered)
}

/// The mode of this process. Before the library is set up, [`Mode::Locked`].
#[inline]
pub fn mode() -> Mode {
    if RSEQ_IN_USE.load(Relaxed) != 0 { Mode::Rseq } else { Mode::Locked }
}

/// The numbers that the area may contain in this process, on a machine of `cpus` CPUs: each owner
/// of pages must have as many slots.
pub fn area_numbers(cpus: usize) -> usize {
    numbers(reason(), cpus)
}

/// In locked mode the area contains a hint (`hint`). Its bound is the same for all copies of the
/// library in the process, which may share the area.
fn numbers(reason: Reason, cpus: usize) -> usize {
    if reason == Reason::None { cpus } else { DUMMIES }
}

/// The reason why the mode is [`Mode::Locked`].
pub fn reason() -> Reason {
    Reason::from_number(REASON.load(Relaxed))
}

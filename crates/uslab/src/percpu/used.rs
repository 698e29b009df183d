//! The CPUs on which threads have used a cache: a fork visits the slots of these alone.
//!
//! ```text
//!   slow path on CPU c ── bit of c set? ── yes ─▶ exchange, only if the thread is still on c
//!                              └ no ─▶ lock ─▶ set the bit ─▶ unlock ─┘
//!   fork ── the same lock ─▶ hide the slots whose bit is set ─▶ copy ─▶ show them ─▶ unlock
//! ```
//!
//! **A slot whose bit is not set holds dummies**: a thread sets the bit of a CPU before it may
//! exchange a sheaf of that CPU's slots, or takes their locks. A fork holds the lock under which
//! bits are set until the memory is copied. So no other slot gets a sheaf meanwhile.
//!
//! A thread that finds its bit set takes no lock, and writes nothing. Bits are never cleared, so
//! a cache writes its word at most 64 times.

use super::CpuCache;
use crate::os::Lock;
use crate::rseq::{Cpu, Slot};
use crate::sync::Rank;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A thread that sets a bit holds this lock, and so does a fork.
static MARKS: Lock<()> = Lock::new(Rank::Marks, ());

/// Takes the lock for the duration of a fork.
pub(super) fn lock_for_fork() {
    MARKS.acquire_for_fork();
}

/// Undoes [`lock_for_fork`].
pub(super) fn unlock_after_fork(child: bool) {
    if child { MARKS.reset_in_child() } else { MARKS.release_after_fork() }
}

/// The CPUs on which threads have used the slots of a cache. One bit stands for one CPU on machines
/// of up to 64 CPUs, and for a few neighbours on larger ones.
pub(super) struct UsedCpus {
    bits: AtomicU64,
    cpus: u32,
    /// A bit stands for 2^shift CPUs.
    shift: u32,
}

impl UsedCpus {
    /// No CPU of a machine of `cpus` CPUs.
    pub const fn none(cpus: usize) -> UsedCpus {
        let shift = cpus.div_ceil(u64::BITS as usize).next_power_of_two().trailing_zeros();
        UsedCpus { bits: AtomicU64::new(0), cpus: cpus as u32, shift }
    }

    fn bit(&self, cpu: Cpu) -> u64 {
        // CPUs beyond the slots share them.
        let (cpu, cpus) = (cpu.number(), self.cpus as usize);
        let index = if cpu < cpus { cpu } else { cpu % cpus.max(1) };
        1 << (index >> self.shift)
    }

    /// Whether threads may have used the slots of this CPU.
    #[inline]
    pub fn has(&self, cpu: Cpu) -> bool {
        self.bits.load(Relaxed) & self.bit(cpu) != 0
    }

    /// Adds a CPU. May sleep until a fork has copied the memory.
    #[inline]
    pub fn add(&self, cpu: Cpu) {
        if !self.has(cpu) {
            self.add_first(cpu);
        }
    }

    #[cold]
    fn add_first(&self, cpu: Cpu) {
        let _marks = MARKS.lock();
        self.bits.fetch_or(self.bit(cpu), Relaxed);
    }

    /// The numbers of the CPUs, with those that share a bit.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (mut bits, cpus, shift) = (self.bits.load(Relaxed), self.cpus as usize, self.shift);
        core::iter::from_fn(move || {
            let first = (bits != 0).then(|| (bits.trailing_zeros() as usize) << shift)?;
            bits &= bits - 1;
            Some(first..cpus.min(first + (1 << shift)))
        })
    }
}

impl CpuCache {
    /// The slots of the CPUs on which threads have used the cache, in all rows. Every other slot
    /// holds dummies, and keeps them while the caller holds the lock of [`lock_for_fork`].
    pub(super) fn used_slots(&self) -> impl Iterator<Item = &Slot> {
        self.used_cpus.ranges().flat_map(|cpus| {
            let rows = self.slots().chunks(self.cpus.max(1)).chain([self.counted_slots()]);
            rows.flat_map(move |row| row.get(cpus.clone()).unwrap_or_default())
        })
    }
}

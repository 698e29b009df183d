//! `membarrier(2)`: restarts the sequences that run on other CPUs.
//!
//! That the process could register at its start says nothing of later calls. Seccomp filters come when a
//! program has set itself up, hold for single threads, and may refuse single commands; and the command for
//! all CPUs allocates in the kernel. So each call returns whether there was a barrier, and its caller must
//! have a way to go on without.

use super::{cpu, errno};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const REGISTER_RSEQ: i32 = 1 << 8;
const FENCE_RSEQ: i32 = 1 << 7;
const FLAG_CPU: u32 = 1;

/// Possible CPUs.
static CPUS: AtomicUsize = AtomicUsize::new(0);

fn call(command: i32, flags: u32, cpu: usize) -> bool {
    let _errno = errno::Preserved::new();
    // SAFETY: the call takes integers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu as i32) == 0 }
}

/// Registers the process, on a machine of `cpus` possible CPUs, for [`restart_all`]; false where the kernel
/// is older than 5.10 or refuses.
///
/// The registration belongs to the address space: a fork child keeps it.
pub fn register(cpus: usize) -> bool {
    CPUS.store(cpus, Relaxed);
    call(REGISTER_RSEQ, 0, 0)
}

/// Restarts the sequences of all CPUs. On true every sequence that ran when the call began has been aborted
/// or has committed, and its stores are visible. On false nothing is known.
#[must_use = "a refused barrier is none"]
pub fn restart_all() -> bool {
    call(FENCE_RSEQ, 0, 0) || {
        // One by one the kernel needs no memory. A CPU that is offline runs no sequence: true.
        let cpus = CPUS.load(Relaxed);
        cpus > 0 && (0..cpus).all(restart_cpu)
    }
}

/// The same for one CPU.
fn restart_cpu(cpu: usize) -> bool {
    call(FENCE_RSEQ, FLAG_CPU, cpu)
}

/// Whether this thread may restart sequences now, as far as can be told: restarts those of its own CPU,
/// which interrupts no other.
pub fn is_allowed() -> bool {
    restart_cpu(cpu::current())
}

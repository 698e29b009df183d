//! `membarrier(2)`: restarts the sequences that run on other CPUs.
//!
//! Any call may be refused, even after a successful registration. Programs install seccomp filters
//! after their set-up, for single threads, and filters may refuse single commands. The command for
//! all CPUs also allocates in the kernel. So each call returns whether there was a barrier, and
//! every caller must be able to continue without one.

use super::{cpu, errno};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const REGISTER_RSEQ: i32 = 1 << 8;
const FENCE_RSEQ: i32 = 1 << 7;
const FLAG_CPU: u32 = 1;

/// The number of possible CPUs; 0 before [`register`].
static CPUS: AtomicUsize = AtomicUsize::new(0);

fn call(command: i32, flags: u32, cpu: usize) -> bool {
    let _errno = errno::Preserved::new();
    // SAFETY: the call takes integers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu as i32) == 0 }
}

/// Registers the process for [`restart_all`], on a machine of `cpus` possible CPUs. False where the
/// kernel is older than 5.10 or refuses.
///
/// The registration belongs to the address space: a fork child keeps it.
pub fn register(cpus: usize) -> bool {
    CPUS.store(cpus, Relaxed);
    call(REGISTER_RSEQ, 0, 0)
}

/// Restarts the sequences of all CPUs. On true, every sequence that ran when the call began was
/// aborted or has committed, and its stores are visible. On false, sequences may still run.
#[must_use = "a refused barrier restarts no sequence"]
pub fn restart_all() -> bool {
    #[cfg(test)]
    counted::add();
    call(FENCE_RSEQ, 0, 0) || {
        // For one CPU the kernel needs no memory. For an offline CPU, which runs no sequence, the
        // call succeeds.
        let cpus = CPUS.load(Relaxed);
        cpus > 0 && (0..cpus).all(restart_cpu)
    }
}

/// Restarts the sequences of one CPU; see [`restart_all`].
fn restart_cpu(cpu: usize) -> bool {
    call(FENCE_RSEQ, FLAG_CPU, cpu)
}

/// Whether the calling thread may restart sequences now. Tries it on the thread's own CPU, which
/// interrupts no other CPU; the command for all CPUs may still be refused.
pub fn is_allowed() -> bool {
    restart_cpu(cpu::current())
}

/// Installs a seccomp filter that refuses the call to this thread from now on; for tests.
#[cfg(test)]
pub fn refuse() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let number = core::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, number),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which is as long as it says.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Counts the calls of [`restart_all`] by thread, for tests.
#[cfg(test)]
pub mod counted {
    extern crate std;
    use core::cell::Cell;

    std::thread_local! {
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn add() {
        CALLS.set(CALLS.get() + 1);
    }

    /// Calls of this thread so far.
    pub fn calls() -> usize {
        CALLS.get()
    }
}

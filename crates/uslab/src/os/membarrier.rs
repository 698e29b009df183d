//! `membarrier(2)`: restarts the sequences that run on other CPUs.

const REGISTER_RSEQ: i32 = 1 << 8;
const FENCE_RSEQ: i32 = 1 << 7;
const FLAG_CPU: u32 = 1;

fn call(command: i32, flags: u32, cpu: i32) -> bool {
    // SAFETY: the call takes integers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) == 0 }
}

/// Registers the process for [`restart_cpu`]; false where the kernel is older than 5.10 or refuses.
///
/// The registration belongs to the address space: a fork child keeps it.
pub fn register() -> bool {
    call(REGISTER_RSEQ, 0, 0)
}

/// When this returns, every sequence that ran on `cpu` has been aborted or has committed, and its stores are visible.
pub fn restart_cpu(cpu: usize) {
    // A CPU that is offline runs no sequence: the kernel answers EINVAL or does nothing, both fine.
    call(FENCE_RSEQ, FLAG_CPU, cpu as i32);
}

/// The same for all CPUs at once.
pub fn restart_all() {
    call(FENCE_RSEQ, 0, 0);
}

//! Threads as the kernel knows them.

/// The calling thread's id: not 0, below 2^31, and no other live thread's.
pub fn id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

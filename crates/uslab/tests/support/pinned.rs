//! Pins a thread, for tests of per-CPU state.

/// Pins the calling thread to its CPU.
pub fn stay_on_this_cpu() {
    // SAFETY: a zeroed set is empty; the set is passed with its size.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

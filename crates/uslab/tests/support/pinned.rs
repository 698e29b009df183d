//! A thread that stays where it is, for tests of what CPUs have each.

/// Keeps this thread on the CPU that it is on.
pub fn stay_on_this_cpu() {
    // SAFETY: a zeroed set is empty; the set is filled in and passed with its size.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

//! Parameters of stress tests: duration, number of threads, CPUs.

use std::time::Duration;

/// Duration of each stress test: 3 seconds, or `USLAB_STRESS_SECONDS`.
pub fn run_time() -> Duration {
    let seconds = std::env::var("USLAB_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(3.0))
}

/// The CPUs that the process may run on.
pub fn cpus() -> Vec<usize> {
    // SAFETY: the set is valid memory of the size given, and zero is an empty set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Restricts a thread to `cpus`.
pub fn allow(thread: libc::pid_t, cpus: &[usize]) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// The kernel's id of the calling thread.
pub fn thread_id() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() }
}

/// A number of threads above the number of CPUs.
pub fn crowd() -> usize {
    let cpus = cpus().len();
    (3 * cpus).max(cpus + 4)
}

/// Lets the next CPU run in a guest whose CPUs QEMU emulates in turn, by one thread.
///
/// A turn ends with a `pause`, or after a tenth of a second: an interrupt to 64 busy CPUs would
/// take seconds.
pub fn end_turn() {
    std::hint::spin_loop();
}

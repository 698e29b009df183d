//! The machine under a stress test: how long, on which CPUs, with which random numbers.

use std::time::Duration;

/// How long each stress runs: 3 seconds, or `USLAB_STRESS_SECONDS`.
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

/// Moves a thread to one of `cpus`, all of which it may use then.
pub fn allow(thread: libc::pid_t, cpus: &[usize]) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() }
}

/// More threads than CPUs.
pub fn crowd() -> usize {
    let cpus = cpus().len();
    (3 * cpus).max(cpus + 4)
}

/// Marsaglia's xorshift: a stress wants speed and variety, no more.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u32) -> Random {
        Random(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

//! Chooses the benchmark's CPUs, and pins threads to them.
//!
//! Single-threaded rounds run on one CPU for the whole process: a migration costs more than most
//! rounds. By default the last allowed CPU is used, since the first one serves most interrupts. A
//! second thread gets another CPU, if there is one.
//!
//! Must never: use a CPU that the affinity mask at start did not allow (a container's or taskset's
//! choice).

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::io;
use std::sync::OnceLock;

/// What the system calls name the calling thread.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// The CPUs that rounds run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// Single-threaded rounds, and the producer.
    pub first: usize,
    /// The consumer; `None` on a machine of one CPU.
    pub second: Option<usize>,
    /// The number of CPUs that the process may use.
    pub allowed: usize,
}

impl Cpus {
    /// Picks from the affinity mask; `wanted` must be in it.
    pub fn choose(wanted: Option<usize>) -> Result<Self, String> {
        let allowed = allowed().map_err(|error| format!("cannot read the CPU affinity: {error}"))?;
        Self::choose_from(AT_START.get_or_init(|| allowed), wanted)
    }

    fn choose_from(allowed: &[usize], wanted: Option<usize>) -> Result<Self, String> {
        let first = match wanted {
            Some(cpu) if allowed.contains(&cpu) => cpu,
            Some(cpu) => return Err(format!("CPU {cpu} is not one that this process may use: {allowed:?}")),
            None => *allowed.last().ok_or("the affinity mask is empty")?,
        };
        let second = allowed.iter().copied().rev().find(|&cpu| cpu != first);
        Ok(Self { first, second, allowed: allowed.len() })
    }
}

/// Pins the calling thread to `cpu`. Returns false where a sandbox forbids it; then the scheduler
/// places the rounds.
pub fn pin(cpu: usize) -> bool {
    pin_to(&[cpu])
}

/// Pins the calling thread to `cpus`, which came from an affinity mask.
pub fn pin_to(cpus: &[usize]) -> bool {
    let mut set = CpuSet::new();
    cpus.iter().all(|&cpu| set.set(cpu).is_ok()) && sched_setaffinity(THIS_THREAD, &set).is_ok()
}

/// The affinity mask of the process before any pinning; [`Cpus::choose`] records it.
static AT_START: OnceLock<Vec<usize>> = OnceLock::new();

/// All CPUs that the process had at start; those of this thread if they were not recorded.
pub fn of_start() -> Vec<usize> {
    AT_START.get().cloned().or_else(|| allowed().ok()).unwrap_or_default()
}

/// Calls `start` with this thread unpinned: new threads and processes inherit the mask of the
/// thread that starts them.
pub fn with_cpus_of_start<R>(start: impl FnOnce() -> R) -> R {
    let (Some(all), Ok(now)) = (AT_START.get(), allowed()) else { return start() };
    pin_to(all);
    let started = start();
    pin_to(&now);
    started
}

/// The CPUs that the calling thread may use.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(THIS_THREAD)?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cpu_and_the_one_before_it() {
        let cpus = Cpus::choose_from(&[0, 2, 5], None).unwrap();
        assert_eq!(cpus, Cpus { first: 5, second: Some(2), allowed: 3 });
    }

    #[test]
    fn a_named_cpu_is_taken_or_refused() {
        assert_eq!(Cpus::choose_from(&[0, 1], Some(0)).unwrap().second, Some(1));
        assert!(Cpus::choose_from(&[0, 1], Some(7)).unwrap_err().contains("CPU 7"));
    }

    #[test]
    fn one_cpu_has_no_second() {
        assert_eq!(Cpus::choose_from(&[3], None).unwrap(), Cpus { first: 3, second: None, allowed: 1 });
    }

    #[test]
    fn this_process_may_use_some_cpu() {
        assert!(!allowed().unwrap().is_empty());
    }
}

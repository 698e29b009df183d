//! Disturbances of the sequences (signals, migration, drains), and the counters of the injecting
//! build.

use super::machine;
use super::random::Random;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// The kinds of disturbance that a test uses.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    /// Signals whose handler does nothing, and signals whose handler yields the CPU.
    pub signals: bool,
    /// A thread moves the workers from CPU to CPU.
    pub migration: bool,
    /// Another thread drains the slots continuously.
    pub drains: bool,
}

/// The number of each disturbance.
#[derive(Default)]
pub struct Report {
    signals: AtomicU64,
    migrations: AtomicU64,
    drains: AtomicU64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [signals, moves, drains] =
            [&self.signals, &self.migrations, &self.drains].map(|counter| counter.load(Relaxed));
        write!(f, "{signals} signals, {moves} migrations, {drains} drains")
    }
}

/// A target of signals and migration. The thread must live until [`run`] returns.
#[derive(Clone, Copy)]
pub struct Thread(libc::pid_t);

impl Thread {
    /// The calling thread.
    pub fn this() -> Thread {
        Thread(machine::thread_id())
    }

    fn signal(self, signal: libc::c_int) {
        // SAFETY: the thread is alive, as the type requires, so the id is its own.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.0, signal) };
    }
}

extern "C" fn nothing(_: libc::c_int) {}

extern "C" fn give_way(_: libc::c_int) {
    // SAFETY: no preconditions; a system call that a handler may make.
    unsafe { libc::sched_yield() };
}

fn handle_signals() {
    for (signal, handler) in [(libc::SIGUSR1, nothing as extern "C" fn(_)), (libc::SIGUSR2, give_way)] {
        // SAFETY: the handlers are async-signal-safe, and the action is fully initialised.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// Disturbs `threads` for the duration of a stress test, or until one of them has `failed`.
pub fn run(
    weather: Weather,
    threads: &[Thread],
    drain: impl Fn() + Sync,
    failed: impl Fn() -> bool,
) -> Report {
    let report = Report::default();
    let stop = AtomicBool::new(false);
    handle_signals();
    std::thread::scope(|scope| {
        let (report, stop, drain) = (&report, &stop, &drain);
        if weather.signals {
            scope.spawn(move || {
                let mut random = Random::new(1001);
                while !stop.load(Relaxed) {
                    let signal = [libc::SIGUSR1, libc::SIGUSR2][random.below(2)];
                    threads[random.below(threads.len())].signal(signal);
                    report.signals.fetch_add(1, Relaxed);
                    pause(&mut random, 30);
                }
            });
        }
        if weather.migration {
            scope.spawn(move || {
                let (mut random, cpus) = (Random::new(1002), machine::cpus());
                while !stop.load(Relaxed) {
                    let thread = threads[random.below(threads.len())].0;
                    machine::allow(thread, &[cpus[random.below(cpus.len())]]);
                    report.migrations.fetch_add(1, Relaxed);
                    pause(&mut random, 50);
                }
                threads.iter().for_each(|thread| machine::allow(thread.0, &cpus));
            });
        }
        if weather.drains {
            scope.spawn(move || {
                let mut random = Random::new(1003);
                while !stop.load(Relaxed) {
                    drain();
                    report.drains.fetch_add(1, Relaxed);
                    pause(&mut random, 200);
                }
            });
        }
        let end = Instant::now() + machine::run_time();
        while Instant::now() < end && !failed() {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Relaxed);
    });
    report
}

/// Sleeps for less than `most_us` microseconds plus the timer's slack, or occasionally not at all.
fn pause(random: &mut Random, most_us: usize) {
    match random.below(most_us) {
        0 => {}
        us => std::thread::sleep(Duration::from_micros(us as u64)),
    }
}

/// The number of aborts so far; 0 in builds that do not count.
pub fn aborts() -> u64 {
    #[cfg(all(uslab_inject, target_arch = "x86_64"))]
    return uslab::internal::ABORTS.load(Relaxed);
    #[cfg(not(all(uslab_inject, target_arch = "x86_64")))]
    0
}

/// Sets the loop count of the injection point, in builds that have one.
pub fn stretch_sequences(_turns: u32) {
    #[cfg(all(uslab_inject, target_arch = "x86_64"))]
    uslab::internal::INJECT_TURNS.store(_turns, Relaxed);
}

//! A child process, watched to its end: signals go on to it, and its last moments are seen before
//! it is gone.
//!
//! Signals. The signals that someone may send to "the job" are blocked here and read from a
//! signalfd(2), so one loop sees them and the child's end in order, and no handler runs. What a
//! *process* sent (`kill PID`, a service manager) was meant for the program and is passed on. What
//! the *kernel* sent came from the terminal (Ctrl-C, hang-up, a new window size) and went to the
//! whole foreground group, in which the child is: passing it on would deliver it twice, and many
//! programs take the second Ctrl-C for impatience. A signal that we were started with ignored
//! (nohup(1)) stays ignored in the program, and is not passed on.
//!
//! The end. The child is first seen to have ended and only then waited for. In between it is a
//! zombie: its pid cannot be used again and counts as alive, so no other `uslab` sweeps away the
//! snapshot that is read here.

#![allow(unsafe_code, reason = "a hook between fork and exec, and one signal disposition")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::process::ignored_signals;

/// Signals whose sender means the program that runs.
const FORWARDED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
];

/// Starts the command, passes signals on until it has ended, calls `at_end` with its pid while that
/// is still its own, and returns how it ended. An error means that the program was not started.
pub fn run(command: &mut Command, at_end: impl FnOnce(i32)) -> io::Result<ExitStatus> {
    let ignores_children = ignored_signals() >> (Signal::SIGCHLD as i32 - 1) & 1 != 0;
    let signals = signals_to_watch();
    let before = signals.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let signal_fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    // The program must start with the mask that we were started with. SAFETY: between fork and exec
    // only async-signal-safe calls are allowed: these are pthread_sigmask(3) on a copied set, and
    // signal(2) with no handler. They neither allocate nor lock.
    unsafe {
        command.pre_exec(move || {
            if ignores_children {
                signal(Signal::SIGCHLD, SigHandler::SigIgn)?;
            }
            Ok(before.thread_set_mask()?)
        });
    }
    let mut child = command.spawn()?;
    let pid = Pid::from_raw(child.id() as i32);
    watch(&signal_fd, pid);
    at_end(pid.as_raw());
    child.wait()
}

/// Whether this process was started with SIGPIPE ignored. Rust ignores it before `main`.
static IGNORES_PIPES: AtomicBool = AtomicBool::new(false);

/// The loader calls it before Rust's own start.
extern "C" fn look_at_pipes() {
    // SAFETY: a null action asks for the present one, for which there is a place. All zeroes are a
    // valid action.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut now);
        IGNORES_PIPES.store(now.sa_sigaction == libc::SIG_IGN, Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_PIPES: extern "C" fn() = look_at_pipes;

/// Starts the command with SIGPIPE ignored if this process was started so, as services of systemd
/// are. Rust would start it with the default.
pub fn keep_ignored_pipes(command: &mut Command) {
    if IGNORES_PIPES.load(Relaxed) {
        // SAFETY: signal(2) with no handler, which neither allocates nor locks.
        unsafe {
            command.pre_exec(|| {
                signal(Signal::SIGPIPE, SigHandler::SigIgn)?;
                Ok(())
            });
        }
    }
}

fn signals_to_watch() -> SigSet {
    let ignored = ignored_signals();
    let is_ignored = |signal: Signal| ignored >> (signal as i32 - 1) & 1 != 0;
    if is_ignored(Signal::SIGCHLD) {
        // SAFETY: installs no handler. With SIGCHLD ignored the kernel would drop the child's exit
        // status.
        let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    }
    let mut signals: SigSet = FORWARDED.into_iter().filter(|&signal| !is_ignored(signal)).collect();
    signals.add(Signal::SIGCHLD);
    signals
}

/// Returns when the child has ended; it is then still to be waited for.
fn watch(signal_fd: &SignalFd, child: Pid) {
    loop {
        let Ok(Some(info)) = signal_fd.read_signal() else { continue };
        let Ok(number) = Signal::try_from(info.ssi_signo as i32) else { continue };
        if number == Signal::SIGCHLD {
            // SIGCHLD also says "stopped" and "continued", and several may have merged into one:
            // ask.
            match waitid(Id::Pid(child), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {}
                _ => return,
            }
        } else if was_sent_by_a_process(info.ssi_code) && info.ssi_pid as i32 != child.as_raw() {
            // A child that signals its own group has had its signal.
            let _ = kill(child, number);
        }
    }
}

/// sigaction(2): codes of kill, sigqueue and tgkill are not positive, those of the kernel are.
fn was_sent_by_a_process(code: i32) -> bool {
    code <= 0
}

//! The signals that the screen heeds.
//!
//! ```text
//!   SIGINT, SIGTERM, SIGQUIT ──▶ End    the terminal is restored, and the command ends
//!   SIGTSTP, Ctrl-Z          ──▶ Stop   the terminal is restored, and the process stops
//!   SIGHUP                   ──▶ the process ends, on a thread of its own
//! ```
//!
//! All are blocked: the loop reads the first four between two samples.

use std::io;

use nix::sys::signal::{SigSet, Signal, killpg, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::getpgrp;
use signal_hook::iterator::Signals as Handled;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    End,
    Stop,
}

/// The blocked signals.
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks the signals in this thread and those that it starts.
    pub fn block() -> io::Result<Signals> {
        let mut blocked = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT, Signal::SIGTSTP] {
            blocked.add(signal);
        }
        blocked.thread_block()?;
        end_with_the_terminal()?;
        let fd = SignalFd::with_flags(&blocked, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Signals { fd })
    }

    /// The next signal that has come, if any.
    pub fn next(&self) -> io::Result<Option<Asked>> {
        let signal = self.fd.read_signal()?;
        let stop = Signal::SIGTSTP as u32;
        Ok(signal.map(|signal| if signal.ssi_signo == stop { Asked::Stop } else { Asked::End }))
    }

    /// Stops the process until a SIGCONT. The kernel does not stop a process that no shell could
    /// let go on, so this may return at once.
    pub fn stop(&self) -> io::Result<()> {
        let stop = SigSet::from(Signal::SIGTSTP);
        raise(Signal::SIGTSTP)?;
        stop.thread_unblock()?;
        stop.thread_block()?;
        Ok(())
    }
}

/// Sends SIGTSTP to all processes of the job, as a terminal does for Ctrl-Z.
pub fn stop_job() -> io::Result<()> {
    Ok(killpg(getpgrp(), Signal::SIGTSTP)?)
}

/// Ends this process where its terminal goes away. crossterm reads the end of such a terminal's
/// input again and again, and never returns, so a thread of its own waits for the signal.
fn end_with_the_terminal() -> io::Result<()> {
    let mut signals = Handled::new([Signal::SIGHUP as i32])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Fails where there is no terminal any more.
            let _ = ratatui::try_restore();
            std::process::exit(0);
        }
    });
    Ok(())
}

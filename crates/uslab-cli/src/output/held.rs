//! Signals that end a command, held off while a temporary file exists.

use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::cell::Cell;

use crate::process::ignored_signals;

/// Signals that end a command unless it catches them.
const HELD: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Holds these signals off in the calling thread. The first one that came takes effect at the end.
pub struct Held {
    /// The thread's mask before, and the descriptor that reads the signals.
    held: Option<(SigSet, SignalFd)>,
    seen: Cell<Option<Signal>>,
}

impl Held {
    pub fn new() -> Held {
        Held { held: hold().ok(), seen: Cell::new(None) }
    }

    /// Whether a signal came.
    pub fn has_signal(&self) -> bool {
        if self.seen.get().is_none()
            && let Some((_, arrived)) = &self.held
            && let Ok(Some(info)) = arrived.read_signal()
        {
            self.seen.set(Signal::try_from(info.ssi_signo as i32).ok());
        }
        self.seen.get().is_some()
    }

    /// Forgets the signal that came.
    #[cfg(test)]
    pub fn forget(&self) {
        self.seen.set(None);
    }
}

fn hold() -> nix::Result<(SigSet, SignalFd)> {
    let before = SigSet::thread_get_mask()?;
    let ignored = ignored_signals();
    let ends = |&signal: &Signal| ignored >> (signal as i32 - 1) & 1 == 0 && !before.contains(signal);
    let signals: SigSet = HELD.into_iter().filter(ends).collect();
    let arrived = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok((before, arrived))
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((before, _)) = &self.held {
            let _ = before.thread_set_mask();
            // One that was not read is delivered by the mask.
            if let Some(signal) = self.seen.get() {
                let _ = raise(signal);
            }
        }
    }
}

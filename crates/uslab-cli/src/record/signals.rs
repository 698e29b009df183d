//! Signals that end a command's work, and not the command at once.
//!
//! ```text
//!   SIGINT, SIGTERM, SIGHUP ──▶ thread ──▶ wait() returns    the command ends its work
//!   SIGINT again            ──▶ thread ──▶ the command ends at once: its end may hang
//! ```
//!
//! When the work has ended, the signals act as they did before.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, signal};
use signal_hook::iterator::{Handle, Signals as Handled};
use signal_hook::low_level::emulate_default_handler;

use crate::process::ignored_signals;

const CAUGHT: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// A second Ctrl-C within this time is the first one, passed on by another program.
const SAME: Duration = Duration::from_millis(500);

/// Catches the signals, as long as it lives.
pub struct Signals {
    arrived: Receiver<()>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    /// A mask of the signals that were ignored before.
    ignored: u64,
}

impl Signals {
    /// Catches the signals from now on.
    pub fn watch() -> io::Result<Signals> {
        let ignored = ignored_signals();
        let mut handled = Handled::new(CAUGHT.map(|signal| signal as i32))?;
        let handle = handled.handle();
        let (sender, arrived) = channel();
        let thread = Builder::new().name("signals".to_owned()).spawn(move || {
            let mut first = None;
            for signal in handled.forever() {
                let _ = sender.send(());
                let first: &Instant = first.get_or_insert_with(Instant::now);
                if signal == Signal::SIGINT as i32 && first.elapsed() > SAME {
                    let _ = emulate_default_handler(signal);
                }
            }
        })?;
        Ok(Signals { arrived, handle, thread: Some(thread), ignored })
    }

    /// Waits for a signal; returns whether one came in time.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.arrived.recv_timeout(timeout).is_ok()
    }

    // SAFETY: the only block of the function tells why it is sound.
    #[allow(unsafe_code, reason = "no crate in use takes a handler away")]
    fn restore(&self) {
        for caught in CAUGHT {
            let is_ignored = self.ignored >> (caught as i32 - 1) & 1 != 0;
            let before = if is_ignored { SigHandler::SigIgn } else { SigHandler::SigDfl };
            // SAFETY: neither is a function.
            let _ = unsafe { signal(caught, before) };
        }
    }
}

/// The thread ends too: it would take signals that another part holds off in the thread that works.
impl Drop for Signals {
    fn drop(&mut self) {
        self.restore();
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

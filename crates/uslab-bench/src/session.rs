//! The running benchmark as its user meets it: a bar on standard error while it runs, and Ctrl-C, which ends
//! it with what is done.
//!
//! The bar is drawn between rounds only and by this thread: a ticker of its own would run beside the rounds.
//! Where standard error is no terminal, nothing is drawn. Ctrl-C stops after the round at hand, that is
//! within a millisecond or so; more of them change nothing, since a shell and `timeout` may well send two at
//! once. Ctrl-\ ends the process without results.
//!
//! Must never: write to standard output, which may be JSON.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub struct Session {
    bar: ProgressBar,
    interrupted: Arc<AtomicBool>,
}

impl Session {
    /// Takes over Ctrl-C. `rows` is how many there will be.
    pub fn start(rows: usize) -> io::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        flag::register(SIGINT, Arc::clone(&interrupted))?;
        let bar = ProgressBar::with_draw_target(Some(rows as u64), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} rows, {eta} left · {wide_msg}");
        bar.set_style(style.expect("the template is a constant"));
        Ok(Self { bar, interrupted })
    }

    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Relaxed)
    }

    pub fn row_starts(&self, title: &str) {
        self.bar.set_message(title.to_owned());
    }

    pub fn row_ends(&self) {
        self.bar.inc(1);
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

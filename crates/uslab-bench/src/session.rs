//! The progress bar on standard error. This thread draws it, between rounds only: a ticker thread
//! would run beside the rounds. Where standard error is no terminal, nothing is drawn.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub struct Session(ProgressBar);

impl Session {
    /// `rows` is the number of rows to come.
    pub fn start(rows: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(rows as u64), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} rows, {eta} left · {wide_msg}");
        bar.set_style(style.expect("the template is a constant"));
        Self(bar)
    }

    pub fn row_starts(&self, title: &str) {
        self.0.set_message(title.to_owned());
    }

    pub fn row_ends(&self) {
        self.0.inc(1);
    }

    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

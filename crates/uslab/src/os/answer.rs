//! A fact that the library asks the system for once, and then keeps.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The answer to a question of yes or no, unknown at first.
pub(super) struct Answer(AtomicU8);

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl Answer {
    pub const fn unknown() -> Answer {
        Answer(AtomicU8::new(UNKNOWN))
    }

    /// Asks, unless the answer is known. Two threads may both ask.
    pub fn learn(&self, ask: impl FnOnce() -> bool) {
        if self.0.load(Relaxed) == UNKNOWN {
            self.0.store(if ask() { YES } else { NO }, Relaxed);
        }
    }

    /// Whether the answer is yes; false before [`Answer::learn`].
    pub fn is_yes(&self) -> bool {
        self.0.load(Relaxed) == YES
    }
}

//! Events of passes and of shrinker calls: static probes, and with the feature `tracing` events of
//! that crate.
//!
//! ```text
//!   event ─▶ probe                           always there; a tool attaches from outside
//!        └─▶ subscriber of the program       feature `tracing`, and no allocation waits for the pass
//! ```
//!
//! A subscriber is code of the program: it allocates and takes locks, perhaps one that the calling
//! thread holds. So it gets events only of passes that the program asked for, and of those on a
//! thread of the library. A pass for an allocation, or for the soft limit on an allocating thread,
//! only fires probes.

use super::ladder::Progress;
use crate::os::probe;

/// Where a pass runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the thread that called `reclaim`.
    Caller,
    /// On a thread whose allocation waits.
    Allocation,
    /// For pressure or the soft limit, on a thread of the library.
    Background,
    /// For the soft limit, on an allocating thread.
    SoftOnAllocation,
}

impl Place {
    /// Whether the pass runs for pressure or the soft limit: not for a call of `reclaim`, and not
    /// for an allocation that failed.
    pub fn is_in_background(self) -> bool {
        matches!(self, Place::Background | Place::SoftOnAllocation)
    }

    #[cfg(feature = "tracing")]
    fn tells_subscriber(self) -> bool {
        matches!(self, Place::Caller | Place::Background)
    }
}

/// A pass for `bytes` begins.
pub fn begin(place: Place, bytes: usize) {
    probe::pass_begin(|| [bytes, usize::from(place.is_in_background())]);
    #[cfg(feature = "tracing")]
    if place.tells_subscriber() {
        tracing::debug!(target: "uslab::reclaim", bytes, background = place.is_in_background(), "pass begins");
    }
}

/// A pass is done.
pub fn done(place: Place, done: &Progress) {
    let Progress { given_bytes, entries, rounds, .. } = *done;
    let is_in_background = place.is_in_background();
    probe::pass_done(|| [given_bytes, entries, rounds as usize, usize::from(is_in_background)]);
    #[cfg(feature = "tracing")]
    if place.tells_subscriber() {
        tracing::debug!(
            target: "uslab::reclaim", given_bytes, entries, rounds, background = is_in_background, "pass is done"
        );
    }
}

/// A shrinker was asked for `asked` entries and freed some; `None` if it stopped.
pub fn shrinker_call(place: Place, shrinker: &str, asked: usize, freed: Option<usize>, priority: u32) {
    probe::shrinker_call(|| (shrinker, [asked, freed.unwrap_or(usize::MAX), priority as usize]));
    #[cfg(not(feature = "tracing"))]
    let _ = place;
    #[cfg(feature = "tracing")]
    if place.tells_subscriber() {
        let (stopped, freed) = (freed.is_none(), freed.unwrap_or(0));
        tracing::trace!(target: "uslab::reclaim", shrinker, asked, freed, stopped, priority, "shrinker was called");
    }
}

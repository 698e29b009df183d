//! The word of a cache that tells whether the heap profile follows it.
//!
//! ```text
//!   │ allocations are counted: 1 bit │ samples in use: 31 bits │        0: not followed
//! ```
//!
//! Both stand in one word, so that a profile that stops and an allocation that becomes a sample
//! meet at one atomic. Either the allocation finds that the profile has stopped, or the profile
//! finds the sample. [`super::profiled`] uses this word.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// The bit that tells that allocations are counted.
const COUNTING: u32 = 1 << 31;

/// What a cache knows of the heap profile.
pub struct Followed {
    state: AtomicU32,
    /// A word of the profile's.
    label: AtomicU32,
}

impl Followed {
    /// A cache that is not followed.
    pub const fn not() -> Followed {
        Followed { state: AtomicU32::new(0), label: AtomicU32::new(0) }
    }

    /// Whether slow paths are to call the profile.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.state.load(Relaxed) != 0
    }

    /// [`Followed::is_on`], in the order of all changes.
    pub fn is_on_now(&self) -> bool {
        self.state.load(SeqCst) != 0
    }

    /// Whether a sample is in use.
    pub fn has_samples(&self) -> bool {
        self.state.load(Relaxed) & !COUNTING != 0
    }

    /// Whether allocations are counted.
    pub fn is_counting(&self) -> bool {
        self.state.load(SeqCst) & COUNTING != 0
    }

    /// Counts allocations from now on.
    pub fn begin_counting(&self) {
        self.state.fetch_or(COUNTING, SeqCst);
    }

    /// Counts none any more. Returns whether the cache is not followed from now on.
    pub fn end_counting(&self) -> bool {
        self.state.fetch_and(!COUNTING, SeqCst) == COUNTING
    }

    /// Notes a sample in use; false if allocations are not counted any more.
    pub fn add_sample(&self) -> bool {
        let more = |state: u32| (state & COUNTING != 0).then_some(state + 1);
        self.state.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Notes that a sample is not in use any more. Returns whether the cache is not followed from
    /// now on.
    pub fn remove_sample(&self) -> bool {
        self.state.fetch_sub(1, SeqCst) == 1
    }

    /// The profile's word; 0 at first.
    pub fn label(&self) -> u32 {
        self.label.load(Relaxed)
    }

    /// Sets the profile's word.
    pub fn set_label(&self, label: u32) {
        self.label.store(label, Relaxed);
    }
}

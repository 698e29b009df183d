//! Memory in flight: a thread has taken it out of one place, and not yet put it into the next.
//!
//! ```text
//!   drain    slots ──▶ in flight ──barrier──▶ slabs      Search::begin() … nothing free … search.missed()
//!   purge    maps  ──▶ in flight ──madvise──▶ maps       true: memory was in flight meanwhile, or still is
//! ```
//!
//! A thread that finds no memory fails its allocation. So it must know whether any was in flight
//! while it searched.

use super::CachePadded;
use core::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence};

/// How many times memory took off, and landed.
struct Counts {
    taken: AtomicUsize,
    landed: AtomicUsize,
}

static COUNTS: CachePadded<Counts> =
    CachePadded(Counts { taken: AtomicUsize::new(0), landed: AtomicUsize::new(0) });

/// While it lives, its owner has memory in flight.
pub struct InFlight(());

impl InFlight {
    /// Must be called before the memory is taken.
    pub fn begin() -> InFlight {
        COUNTS.taken.fetch_add(1, SeqCst);
        // A thread that sees the memory gone sees the count.
        fence(SeqCst);
        InFlight(())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let landed = COUNTS.landed.fetch_add(1, SeqCst);
        debug_assert!(
            COUNTS.taken.load(SeqCst).wrapping_sub(landed) as isize >= 1,
            "more memory landed than was taken"
        );
    }
}

/// Whether a thread has memory in flight.
pub fn is_any() -> bool {
    Search::begin().missed()
}

/// A search for free memory.
pub struct Search(usize);

impl Search {
    /// Must be called before the search.
    pub fn begin() -> Search {
        Search(COUNTS.landed.load(Acquire))
    }

    /// Must be called after a search that found nothing: whether it may have missed memory that was
    /// in flight.
    pub fn missed(self) -> bool {
        fence(Acquire);
        COUNTS.taken.load(Relaxed) != self.0
    }
}

/// In a fork child: threads that had memory in flight are not here.
pub fn reset_in_child() {
    COUNTS.landed.store(COUNTS.taken.load(Relaxed), Relaxed);
}

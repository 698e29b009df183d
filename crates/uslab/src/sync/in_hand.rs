//! Memory in somebody's hand: taken from where others would find it, and on its way to where they will.
//!
//! ```text
//!   drain    slots ──▶ hand ──barrier──▶ slabs           Look::begin() … nothing free … look.missed()
//!   purge    maps  ──▶ hand ──madvise──▶ maps            true: something was in a hand meanwhile, or is
//! ```
//!
//! A thread that finds no memory fails its allocation. It must know whether it looked while there was some on its way.

use super::CachePadded;
use core::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence};

/// How often something was taken in hand, and put down.
struct Counts {
    taken: AtomicUsize,
    put_down: AtomicUsize,
}

static COUNTS: CachePadded<Counts> =
    CachePadded(Counts { taken: AtomicUsize::new(0), put_down: AtomicUsize::new(0) });

/// As long as it lives, its owner has memory in hand.
pub struct InHand(());

impl InHand {
    /// To be called before the memory is taken.
    pub fn begin() -> InHand {
        COUNTS.taken.fetch_add(1, SeqCst);
        // Who sees that the memory is gone sees the count.
        fence(SeqCst);
        InHand(())
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        COUNTS.put_down.fetch_add(1, SeqCst);
    }
}

/// Whether anybody has memory in hand.
pub fn is_any_in_hand() -> bool {
    Look::begin().missed()
}

/// A search for free memory.
pub struct Look(usize);

impl Look {
    /// To be called before it.
    pub fn begin() -> Look {
        Look(COUNTS.put_down.load(Acquire))
    }

    /// To be called after a search that found nothing: whether it may have passed something by.
    pub fn missed(self) -> bool {
        fence(Acquire);
        COUNTS.taken.load(Relaxed) != self.0
    }
}

/// In a fork child: the threads that had something in hand are not here.
pub fn reset_in_child() {
    COUNTS.put_down.store(COUNTS.taken.load(Relaxed), Relaxed);
}

//! Objects that change threads: from a producer to a consumer, and round a ring of threads.
//!
//! ```text
//!   pair:  producer ── fills a batch of 64 ──► way of 16 batches ──► frees the batch ── consumer
//!              ▲                                                                          │
//!              └──────── waits while the way is full; at most 1024 objects on it ─────────┘
//!
//!   ring:  ┌────► thread 1 ── 16 batches of 64 ──► thread 2 ──┐     every thread allocates as much
//!          │                                                  ▼     as it frees, and frees nothing
//!       thread 0 ◄──────────────── thread 3 ◄─────────────────┘     that it allocated
//! ```
//!
//! The hand-over is in batches, for bulk calls and single ones alike. So its own cost, a few cache
//! lines for 64 objects, is small and the same for every contestant. It is measured as a lane of
//! its own, with a contestant that allocates nothing.
//!
//! In the ring a thread fills the way to its successor while there is room, frees its predecessor's
//! batches, and sleeps when it can do neither. A neighbour that made room or sent a batch wakes it.
//! No thread waits for ever. The thread behind a full way has batches to free. Where all ways are
//! empty, a thread with batches left can send.
//!
//! Must never: let a thread of the ring spin for another that needs its CPU; free a batch in the
//! thread that allocated it, unless the ring is one thread.

use super::crew::{SPINS, Seat};
use super::objects::{empty, fill};
use crate::asm::opaque_size;
use crate::contestants::Contestant;
use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};
use std::sync::atomic::{Ordering::Release, Ordering::SeqCst, fence};
use std::thread::{self, Thread};

/// Objects that change hands at once.
pub const BATCH: usize = 64;

/// Batches on the way at most.
const RING: usize = 16;

/// Objects that were allocated and not yet freed, at most.
pub const MAX_LIVE: usize = RING * BATCH;

/// Its own cache lines: two, because processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// A batch as it lies in the ring.
struct Batch(UnsafeCell<[*mut u8; BATCH]>);

// SAFETY: a batch belongs to the producer until it is published in `filled`, then to the consumer
// until it is published in `emptied`; both publications are release stores that the other side
// acquires.
unsafe impl Sync for Batch {}
// SAFETY: the pointers are to objects that may be freed on any thread.
unsafe impl Send for Batch {}

/// The way from one producer to one consumer. Counters only grow; a batch's place is its number
/// modulo the ring.
struct Way {
    filled: Apart<AtomicUsize>,
    emptied: Apart<AtomicUsize>,
    batches: [Apart<Batch>; RING],
}

impl Way {
    fn new() -> Self {
        let empty = |_| Apart(Batch(UnsafeCell::new([std::ptr::null_mut(); BATCH])));
        Self { filled: Apart::default(), emptied: Apart::default(), batches: std::array::from_fn(empty) }
    }

    /// Batches that the producer has published.
    #[inline(always)]
    fn filled(&self) -> usize {
        self.filled.0.load(Acquire)
    }

    /// Batches that the consumer has given back.
    #[inline(always)]
    fn emptied(&self) -> usize {
        self.emptied.0.load(Acquire)
    }

    #[inline(always)]
    fn publish_filled(&self, count: usize) {
        self.filled.0.store(count, Release);
    }

    #[inline(always)]
    fn publish_emptied(&self, count: usize) {
        self.emptied.0.store(count, Release);
    }

    /// # Safety
    /// The caller is the producer, which has not published `number` and saw it within a ring of
    /// `emptied`; or the consumer, which saw `filled` past it and has not given it back. The borrow
    /// ends with that publication.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "a batch has one owner at a time, as the promise says")]
    unsafe fn batch(&self, number: usize) -> &mut [*mut u8; BATCH] {
        // SAFETY: by the caller's promise no other thread has this place until it is published.
        unsafe { &mut *self.batches[number % RING].0.0.get() }
    }
}

/// Spins for the thread on the other CPU; after a while yields, in case there is one CPU only.
#[inline(always)]
fn wait_until(condition: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !condition() {
        std::hint::spin_loop();
        spins += 1;
        if spins > 20_000 {
            thread::yield_now();
        }
    }
}

/// A producer and a consumer, in the seats 0 and 1.
pub struct PairRound {
    way: Way,
    size: usize,
    bulk: bool,
    batches: usize,
}

impl PairRound {
    pub fn new(size: usize, bulk: bool, batches: usize) -> Self {
        Self { way: Way::new(), size, bulk, batches }
    }
}

pub fn run_pair<C: Contestant>(round: &PairRound, seat: &Seat) {
    seat.start();
    match (seat.index, round.bulk) {
        (0, false) => produce::<C, false>(round),
        (0, true) => produce::<C, true>(round),
        (_, false) => consume::<C, false>(round),
        (_, true) => consume::<C, true>(round),
    }
    seat.stop();
}

#[inline(never)]
fn produce<C: Contestant, const BULK: bool>(round: &PairRound) {
    let size = opaque_size(round.size);
    for number in 0..round.batches {
        wait_until(|| number - round.way.emptied() < RING);
        // SAFETY: this is the producer, and there is room for the batch.
        fill::<C, BULK, false>(size, unsafe { round.way.batch(number) });
        round.way.publish_filled(number + 1);
    }
}

#[inline(never)]
fn consume<C: Contestant, const BULK: bool>(round: &PairRound) {
    let size = opaque_size(round.size);
    for number in 0..round.batches {
        wait_until(|| round.way.filled() > number);
        // SAFETY: this is the consumer, and the batch is filled: the producer allocated its objects
        // with the same contestant, and only this thread frees them.
        unsafe { empty::<C, BULK>(size, round.way.batch(number)) };
        round.way.publish_emptied(number + 1);
    }
}

/// A ring of threads, in all seats.
pub struct RingRound {
    size: usize,
    bulk: bool,
    /// Batches that each thread sends, and frees.
    batches: usize,
    /// The way to each thread from the one before it.
    ways: Vec<Way>,
    sleepers: Vec<Sleeper>,
}

impl RingRound {
    pub fn new(threads: usize, size: usize, bulk: bool, batches: usize) -> Self {
        let each = |_| Sleeper::default();
        let (ways, sleepers) = ((0..threads).map(|_| Way::new()).collect(), (0..threads).map(each).collect());
        Self { size, bulk, batches, ways, sleepers }
    }
}

/// A thread that may be asleep.
#[derive(Default)]
#[repr(align(128))]
struct Sleeper {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Sleeper {
    /// Sleeps unless `ready`; may return before it is.
    fn sleep_unless(&self, ready: impl Fn() -> bool) {
        self.asleep.store(true, Relaxed);
        // Either this thread sees below what a neighbour has published, or the neighbour, behind
        // its own fence, sees that this thread sleeps.
        fence(SeqCst);
        if !ready() {
            thread::park();
        }
        self.asleep.store(false, Relaxed);
    }

    /// After something was published for this thread.
    #[inline(always)]
    fn wake(&self) {
        fence(SeqCst);
        if self.asleep.load(Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

pub fn run_ring<C: Contestant>(round: &RingRound, seat: &Seat) {
    // Each thread has its own place, once a round.
    let _ = round.sleepers[seat.index].thread.set(thread::current());
    seat.start();
    if round.bulk {
        turn_round::<C, true>(round, seat);
    } else {
        turn_round::<C, false>(round, seat);
    }
    seat.stop();
}

#[inline(never)]
fn turn_round<C: Contestant, const BULK: bool>(round: &RingRound, seat: &Seat) {
    let size = opaque_size(round.size);
    let (me, threads) = (seat.index, round.ways.len());
    let (next, before) = ((me + 1) % threads, (me + threads - 1) % threads);
    let (outbox, inbox) = (&round.ways[next], &round.ways[me]);
    let (mut sent, mut freed) = (0, 0);
    let can_send = |sent: usize| sent < round.batches && sent - outbox.emptied() < RING;
    let can_free = |freed: usize| inbox.filled() > freed;
    while sent < round.batches || freed < round.batches {
        let (sent_before, freed_before) = (sent, freed);
        while can_send(sent) {
            // SAFETY: there is room for batch `sent`, and only this thread sends here.
            let batch = unsafe { outbox.batch(sent) };
            fill::<C, BULK, false>(size, batch);
            sent += 1;
            outbox.publish_filled(sent);
            round.sleepers[next].wake();
        }
        while can_free(freed) {
            // SAFETY: batch `freed` was filled, and only this thread empties here.
            let batch = unsafe { inbox.batch(freed) };
            // SAFETY: the predecessor allocated these with the same contestant; no other code frees
            // them.
            unsafe { empty::<C, BULK>(size, batch) };
            freed += 1;
            inbox.publish_emptied(freed);
            round.sleepers[before].wake();
        }
        if (sent, freed) == (sent_before, freed_before) {
            let ready = || can_send(sent) || can_free(freed);
            let spins = if seat.has_room() { SPINS } else { 0 };
            if !(0..spins).any(|_| {
                std::hint::spin_loop();
                ready()
            }) {
                round.sleepers[me].sleep_unless(ready);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineup::{NOTHING, cache};
    use crate::rounds::crew::tests::{all_that_malloc, in_crew};
    use std::sync::Arc;

    #[test]
    fn what_is_sent_is_freed_by_any_number_of_threads() {
        for entry in all_that_malloc().chain([cache(64), NOTHING]) {
            for (threads, bulk) in [(1, false), (2, true), (5, false)] {
                let round = Arc::new(RingRound::new(threads, 64, bulk, 3 * RING + 1));
                let same = Arc::clone(&round);
                in_crew(threads, move |seat| (entry.ring)(&same, seat));
                assert!(round.ways.iter().all(|way| way.filled() == way.emptied()));
                assert!(round.ways.iter().all(|way| way.filled() == round.batches));
            }
            for bulk in [false, true] {
                let round = Arc::new(PairRound::new(256, bulk, 2 * RING + 1));
                let same = Arc::clone(&round);
                in_crew(2, move |seat| (entry.pair)(&same, seat));
                assert_eq!((round.way.filled(), round.way.emptied()), (2 * RING + 1, 2 * RING + 1));
            }
        }
    }
}

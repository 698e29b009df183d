//! A ring of threads: each allocates batches and hands them to the next, which frees them.
//!
//! ```text
//!        ┌────────► thread 1 ── 16 batches of 64 ──► thread 2 ──┐        every thread allocates as much as it frees,
//!        │                                                     ▼        and frees nothing that it allocated
//!     thread 0 ◄────────── thread 3 ◄───────────────────────────┘
//! ```
//!
//! A thread fills the way to its successor as far as there is room, frees what its predecessor has sent, and
//! sleeps when it can do neither; a neighbour that made room or sent something wakes it. Nobody can wait for ever:
//! if a way is full, the thread behind it has something to free; if all are empty, whoever has batches left to
//! send has room for them.
//!
//! Must never: let a thread spin for another that needs its CPU; free a batch in the thread that allocated it,
//! unless the ring is one thread.

use super::crew::{SPINS, Seat};
use super::out_of_memory;
use super::remote::{BATCH, RING, Way};
use crate::asm::opaque_size;
use crate::contestants::Contestant;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::thread::{self, Thread};

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
        // Either this thread sees below what a neighbour has published, or the neighbour, behind its own fence,
        // sees that this thread sleeps.
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

pub fn run<C: Contestant>(round: &RingRound, seat: &Seat) {
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
            fill::<C, BULK>(size, batch);
            sent += 1;
            outbox.publish_filled(sent);
            round.sleepers[next].wake();
        }
        while can_free(freed) {
            // SAFETY: batch `freed` was filled, and only this thread empties here.
            let batch = unsafe { inbox.batch(freed) };
            // SAFETY: the predecessor allocated these with the same contestant; nobody else frees them.
            unsafe { empty::<C, BULK>(size, batch) };
            freed += 1;
            inbox.publish_emptied(freed);
            round.sleepers[before].wake();
        }
        if (sent, freed) == (sent_before, freed_before) {
            let ready = || can_send(sent) || can_free(freed);
            let spins = if seat.with_room() { SPINS } else { 0 };
            if !(0..spins).any(|_| {
                std::hint::spin_loop();
                ready()
            }) {
                round.sleepers[me].sleep_unless(ready);
            }
        }
    }
}

#[inline(always)]
fn fill<C: Contestant, const BULK: bool>(size: usize, batch: &mut [*mut u8; BATCH]) {
    if BULK {
        if !C::alloc_bulk(size, batch) {
            out_of_memory(C::NAME);
        }
        return;
    }
    for object in batch.iter_mut() {
        *object = C::alloc(size);
        if object.is_null() {
            out_of_memory(C::NAME);
        }
    }
}

/// # Safety
/// The objects are live, from `fill::<C, _>(size)`, and nobody else frees them.
#[inline(always)]
unsafe fn empty<C: Contestant, const BULK: bool>(size: usize, batch: &[*mut u8; BATCH]) {
    if BULK {
        // SAFETY: the caller's promise is the same.
        unsafe { C::free_bulk(size, batch) };
        return;
    }
    for &object in batch {
        // SAFETY: the caller's promise holds for each.
        unsafe { C::free(object, size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::{Entry, none::NoAllocator, uslab_cache};
    use crate::rounds::crew::tests::{all_that_malloc, in_crew};
    use std::sync::Arc;

    #[test]
    fn whatever_is_sent_is_freed_by_any_number_of_threads() {
        let [cache, _] = uslab_cache::entries(64).unwrap();
        for entry in all_that_malloc().chain([cache, Entry::of::<NoAllocator>()]) {
            for (threads, bulk) in [(1, false), (2, true), (5, false)] {
                let round = Arc::new(RingRound::new(threads, 64, bulk, 3 * RING + 1));
                let same = Arc::clone(&round);
                in_crew(threads, move |seat| (entry.crew.ring)(&same, seat));
                assert!(round.ways.iter().all(|way| way.filled() == way.emptied()));
                assert!(round.ways.iter().all(|way| way.filled() == round.batches));
            }
        }
    }
}

//! A producer and a consumer: one thread allocates, another frees, on two CPUs.
//!
//! ```text
//!   producer ── fills a batch of 64 ──►  ring of 16 batches  ──► frees the batch ── consumer
//!      ▲                                                                              │
//!      └────────────── waits while the ring is full; at most 1024 objects on the way ─┘
//! ```
//!
//! The hand-over is in batches, for bulk calls and single ones alike, so that its own cost (a few cache lines
//! that change CPU for 64 objects) is small and the same for everybody. It is measured as a lane of its own,
//! with a contestant that allocates nothing. The clock starts when both threads stand ready, and stops when
//! the last object is freed.
//!
//! Must never: let one thread outrun the other by more than the ring; spin between rounds, where other lanes
//! run.

use super::{Work, out_of_memory};
use crate::asm::{opaque_size, ticks};
use crate::contestants::{Contestant, Entry, InThread};
use crate::cpu::Cpus;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

/// Objects that change hands at once.
pub const BATCH: usize = 64;

/// Batches on the way at most.
pub(super) const RING: usize = 16;

/// Objects that were allocated and not yet freed, at most.
pub const MOST_LIVE: usize = RING * BATCH;

/// Its own cache lines: two, because processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// A batch as it lies in the ring.
struct Batch(UnsafeCell<[*mut u8; BATCH]>);

// SAFETY: a batch belongs to the producer until it is published in `filled`, then to the consumer until it is
// published in `emptied`; both publications are release stores that the other side acquires.
unsafe impl Sync for Batch {}
// SAFETY: the pointers are to objects that may be freed on any thread.
unsafe impl Send for Batch {}

/// The way from one producer to one consumer. Counters only grow; a batch's place is its number modulo the
/// ring.
pub(super) struct Way {
    filled: Apart<AtomicUsize>,
    emptied: Apart<AtomicUsize>,
    batches: [Apart<Batch>; RING],
}

impl Way {
    pub(super) fn new() -> Self {
        let empty = |_| Apart(Batch(UnsafeCell::new([std::ptr::null_mut(); BATCH])));
        Self { filled: Apart::default(), emptied: Apart::default(), batches: std::array::from_fn(empty) }
    }

    /// Batches that the producer has published.
    #[inline(always)]
    pub(super) fn filled(&self) -> usize {
        self.filled.0.load(Acquire)
    }

    /// Batches that the consumer has given back.
    #[inline(always)]
    pub(super) fn emptied(&self) -> usize {
        self.emptied.0.load(Acquire)
    }

    #[inline(always)]
    pub(super) fn publish_filled(&self, count: usize) {
        self.filled.0.store(count, Release);
    }

    #[inline(always)]
    pub(super) fn publish_emptied(&self, count: usize) {
        self.emptied.0.store(count, Release);
    }

    /// # Safety
    /// The caller is the producer, which has not published `number` and saw it within a ring of `emptied`; or the
    /// consumer, which saw `filled` past it and has not given it back. The borrow ends with that publication.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "a batch has one owner at a time, as the promise says")]
    pub(super) unsafe fn batch(&self, number: usize) -> &mut [*mut u8; BATCH] {
        // SAFETY: by the caller's promise nobody else has this place until it is published.
        unsafe { &mut *self.batches[number % RING].0.0.get() }
    }
}

/// One round, as both threads see it.
pub struct RemoteRound {
    ring: Way,
    /// The round's first batch, and the one after its last.
    first: AtomicUsize,
    end: AtomicUsize,
    size: usize,
    bulk: bool,
    ready: Apart<AtomicUsize>,
    go: Apart<AtomicUsize>,
    done: Apart<AtomicUsize>,
}

impl RemoteRound {
    fn new(size: usize, bulk: bool) -> Self {
        Self {
            ring: Way::new(),
            first: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            size,
            bulk,
            ready: Apart::default(),
            go: Apart::default(),
            done: Apart::default(),
        }
    }
}

/// Waits on the other CPU; gives this one up after a while, for the day when there is only one.
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

/// The producer's part of a round.
#[inline(never)]
pub fn produce<C: Contestant>(round: &RemoteRound) {
    let size = opaque_size(round.size);
    let ring = &round.ring;
    for number in round.first.load(Relaxed)..round.end.load(Relaxed) {
        wait_until(|| number - ring.emptied() < RING);
        // SAFETY: this is the producer, and there is room for the batch.
        let batch = unsafe { ring.batch(number) };
        if round.bulk {
            if !C::alloc_bulk(size, batch) {
                out_of_memory(C::NAME);
            }
        } else {
            for object in batch.iter_mut() {
                *object = C::alloc(size);
                if object.is_null() {
                    out_of_memory(C::NAME);
                }
            }
        }
        ring.publish_filled(number + 1);
    }
}

/// The consumer's part of a round.
#[inline(never)]
pub fn consume<C: Contestant>(round: &RemoteRound) {
    let size = opaque_size(round.size);
    let ring = &round.ring;
    for number in round.first.load(Relaxed)..round.end.load(Relaxed) {
        wait_until(|| ring.filled() > number);
        // SAFETY: this is the consumer, and the batch is filled.
        let batch: &[*mut u8; BATCH] = unsafe { ring.batch(number) };
        if round.bulk {
            // SAFETY: the producer allocated them with the same contestant; nobody else frees them.
            unsafe { C::free_bulk(size, batch) };
        } else {
            for &object in batch {
                // SAFETY: as above.
                unsafe { C::free(object, size) };
            }
        }
        ring.publish_emptied(number + 1);
    }
}

/// What the consumer thread is sent: its loop, and the round to run it on.
type Job = (fn(&RemoteRound), Arc<RemoteRound>);

/// The consumer thread: started by the first round, asleep between rounds, gone when this is dropped.
pub struct Consumer {
    cpus: Cpus,
    running: OnceLock<Running>,
}

struct Running {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    /// It will run on the CPU that is not the producer's.
    pub fn new(cpus: Cpus) -> Self {
        Self { cpus, running: OnceLock::new() }
    }

    fn start(&self) -> Running {
        let (jobs, inbox) = channel::<Job>();
        let cpu = self.cpus.second;
        let thread = thread::spawn(move || {
            if let Some(cpu) = cpu {
                crate::cpu::pin(cpu);
            }
            let _in_thread = InThread::enter();
            for (consume, round) in inbox {
                let turn = round.ready.0.fetch_add(1, Release) + 1;
                wait_until(|| round.go.0.load(Acquire) == turn);
                consume(&round);
                round.done.0.store(turn, Release);
            }
        });
        Running { jobs: Some(jobs), thread: Some(thread) }
    }

    /// One round of `entry`: `batches` batches; returns its ticks.
    fn run(&self, entry: &Entry, round: &Arc<RemoteRound>, batches: usize) -> u64 {
        let first = round.end.load(Relaxed);
        round.first.store(first, Relaxed);
        round.end.store(first + batches, Relaxed);
        let turn = round.ready.0.load(Relaxed) + 1;
        let running = self.running.get_or_init(|| self.start());
        let jobs = running.jobs.as_ref().expect("jobs are sent only before the drop");
        jobs.send((entry.consume, Arc::clone(round))).expect("the consumer runs until the drop");
        wait_until(|| round.ready.0.load(Acquire) == turn);
        let start = ticks();
        round.go.0.store(turn, Release);
        (entry.produce)(round);
        wait_until(|| round.done.0.load(Acquire) == turn);
        ticks() - start
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A consumer that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// A producer and a consumer of one contestant, as a lane of a row.
pub struct RemoteWork {
    pub entry: Entry,
    pub size: usize,
    pub bulk: bool,
    pub consumer: Arc<Consumer>,
}

impl Work for RemoteWork {
    fn objects_per_repeat(&self) -> usize {
        BATCH
    }

    /// Filling the ring at the start and emptying it at the end must weigh the same, and little, for
    /// everybody.
    fn fixed_repeats(&self) -> Option<usize> {
        Some(16 * RING)
    }

    fn prepare(&self) -> Box<dyn FnMut(usize) -> u64> {
        let round = Arc::new(RemoteRound::new(self.size, self.bulk));
        let (entry, consumer) = (self.entry, Arc::clone(&self.consumer));
        Box::new(move |repeats| consumer.run(&entry, &round, repeats))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::{self, none::NoAllocator};

    #[test]
    fn every_peer_hands_over_and_the_ring_ends_empty() {
        let _in_thread = InThread::enter();
        let consumer = Consumer::new(Cpus { first: 0, second: None, allowed: 1 });
        let nobody = Entry::of::<NoAllocator>();
        for entry in contestants::peers().iter().chain([&nobody]) {
            for bulk in [false, true] {
                let round = Arc::new(RemoteRound::new(256, bulk));
                for _ in 0..3 {
                    consumer.run(entry, &round, 2 * RING + 1);
                }
                assert_eq!(
                    (round.ring.filled(), round.ring.emptied()),
                    (3 * (2 * RING + 1), 3 * (2 * RING + 1))
                );
            }
        }
    }
}

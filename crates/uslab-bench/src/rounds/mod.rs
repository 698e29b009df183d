//! The timed loops, generic over the contestant.
//!
//! ```text
//!   objects.rs   objects taken and given back inside all loops
//!   batch.rs     one thread: a batch of thousands, its allocations, frees and flush timed apart
//!   local.rs     one thread: allocate a live set, free it, again and again
//!   latency.rs   one thread, every single call timed
//!   memory.rs    in a process of its own: a load, a part of it freed, idleness; resident memory
//!   orders.rs    in a process of its own: a cache of one slab order, in time and resident memory
//!   beside.rs    in a process of its own: a pair of a large size beside many live objects of it
//!   heaps.rs     in a process of its own: private heaps, made, used and destroyed
//!   crew.rs      any number of threads that start and stop together, parked or made anew
//!     handover.rs, mixed.rs, larson.rs, xmalloc.rs: what they do
//! ```
//!
//! [`Entry`] is a contestant as a value: its loops, compiled for it. A new kind of work is a file
//! here with its loops, a field of it, and a type that implements [`Work`](crate::measure::Work).

pub mod batch;
pub mod beside;
pub mod crew;
pub mod handover;
pub mod heaps;
pub mod larson;
pub mod latency;
pub mod local;
pub mod memory;
pub mod mixed;
pub mod objects;
pub mod orders;
pub mod random;
pub mod xmalloc;

pub use batch::{BatchRound, BatchWork, Shape};
pub use local::{LocalRound, LocalWork};

use crate::contestants::{About, Contestant};
use crew::Seat;

/// A contestant as a value, so that suites can hold a list of them.
#[derive(Clone, Copy)]
pub struct Entry {
    pub name: &'static str,
    pub about: fn() -> About,
    pub enter_thread: fn(),
    pub leave_thread: fn(),
    /// For what is not timed.
    pub alloc: fn(usize) -> *mut u8,
    /// [`Contestant::free`], under the same conditions.
    pub free: unsafe fn(*mut u8, usize),
    pub latency: fn(&mut latency::Course),
    pub local: fn(&LocalRound, &mut [*mut u8]) -> u64,
    pub batch: fn(&BatchRound, usize, &mut [*mut u8]) -> batch::Parts,
    pub pair: fn(&handover::PairRound, &Seat),
    pub ring: fn(&handover::RingRound, &Seat),
    pub mixed: fn(&mixed::MixedRound, &Seat),
    pub larson: fn(&larson::LarsonRound, &Seat),
    pub xmalloc: fn(&xmalloc::XmallocRound, &Seat),
}

impl Entry {
    pub const fn of<C: Contestant>() -> Self {
        Self {
            name: C::NAME,
            about: C::about,
            enter_thread: C::enter_thread,
            leave_thread: C::leave_thread,
            alloc: C::alloc,
            free: C::free,
            latency: latency::run::<C>,
            local: local::run::<C>,
            batch: batch::run::<C>,
            pair: handover::run_pair::<C>,
            ring: handover::run_ring::<C>,
            mixed: mixed::run::<C>,
            larson: larson::run::<C>,
            xmalloc: xmalloc::run::<C>,
        }
    }
}

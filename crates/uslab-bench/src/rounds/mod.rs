//! What a round does: the loops that are timed, generic over the contestant, and the work that a lane of a
//! row repeats.
//!
//! ```text
//!   batch.rs    one thread: a batch of thousands, its allocations, frees and flush timed apart
//!   local.rs    one thread: allocate a live set, free it, again and again
//!   remote.rs   two threads: one allocates, one frees, batches go over a bounded ring
//!   latency.rs  one thread, every single call timed
//!   memory.rs   in a process of its own: a load, a part of it freed, idleness; resident memory
//!   crew.rs     any number of threads that start and stop together, parked or made anew
//!     ring.rs, mixed.rs, larson.rs, xmalloc.rs, cache_scratch.rs, mstress.rs: what such threads do
//!   crowd.rs    in a process of its own: what many threads hold in memory
//! ```
//!
//! A new kind of work (latency, fragmentation) is a file here with its loops and a type that implements [`Work`].

pub mod batch;
pub mod cache_scratch;
pub mod crew;
pub mod crowd;
pub mod larson;
pub mod latency;
pub mod local;
pub mod memory;
pub mod mixed;
pub mod mstress;
pub mod random;
pub mod remote;
pub mod ring;
pub mod xmalloc;

pub use batch::{BatchRound, BatchWork, Shape};
pub use local::{LocalRound, LocalWork, Order};
pub use remote::{RemoteRound, RemoteWork};

/// Work that can be made ready and then repeated as often as fits a round.
pub trait Work {
    /// Objects allocated and freed by one repetition: what the time is divided by.
    fn objects_per_repeat(&self) -> usize;

    /// Repetitions of a round, where all contestants must have the same; otherwise as many as fill the
    /// round's time.
    fn fixed_repeats(&self) -> Option<usize> {
        None
    }

    /// No more rounds than this, where a round is long by its nature; of several lanes the least counts.
    fn most_rounds(&self) -> usize {
        usize::MAX
    }

    /// What the last round's ticks were made of, by name ("alloc", "free"); the least round's are reported.
    fn parts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Whether the contestant can take part. The error, one line, takes it out of the row.
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    /// Makes everything that is not to be timed. The result runs so many repetitions and returns the ticks
    /// they took.
    fn prepare(&self) -> Box<dyn FnMut(usize) -> u64>;
}

#[cold]
#[inline(never)]
pub(crate) fn out_of_memory(name: &str) -> ! {
    eprintln!("uslab-bench: {name} returned no memory in a round; free some, or lower the live set");
    std::process::exit(1);
}

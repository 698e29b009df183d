//! Property tests: random programs over every public operation, judged by a naive oracle.
//!
//! The oracle (`oracle.rs`) knows nothing of slabs: it keeps the live ranges in an ordered map and what each was filled
//! with. A program is a list of steps; after each the oracle is told what was given out or taken back, and objects to
//! an overlap, a lost alignment, a byte that changed, a byte that should be zero. At its end everything is freed and
//! caches must go away without a remnant, so that nothing was lost either.
//!
//! ```text
//!   caches.rs    RawCache and Cache<T>, with random options
//!   malloc.rs    the malloc family
//!   heaps.rs     Heap, GlobalAlloc on Uslab, allocator-api2
//!   threads.rs   all of these from more threads than CPUs, freed elsewhere
//! ```
//!
//! The mode is the process's: run it as it is and once more with `USLAB_RSEQ=0`.

mod caches;
mod heaps;
mod malloc;
mod oracle;
mod threads;

/// Settings of every property: the number of cases is the test's, and a failing case is printed, not written to a file.
fn cases(count: u32) -> proptest::prelude::ProptestConfig {
    proptest::prelude::ProptestConfig { cases: count, failure_persistence: None, ..Default::default() }
}

//! Property tests: random programs over every public operation, checked by a naive oracle.
//!
//! The oracle (`oracle.rs`) knows nothing of slabs: it keeps the live ranges in an ordered map,
//! with the pattern of each. A program is a list of steps. At each allocation and free the oracle
//! checks for an overlap, a wrong alignment, a changed byte, and a nonzero byte in zeroed memory.
//! At the end the program frees everything and destroys its caches, which fails if an object was
//! lost.
//!
//! ```text
//!   caches.rs    RawCache and Cache<T>, with random options
//!   malloc.rs    the malloc family
//!   heaps.rs     Heap, GlobalAlloc on Uslab, allocator-api2
//!   threads.rs   all of these from more threads than CPUs, freed by other threads
//! ```
//!
//! The mode belongs to the process: run the tests once without and once with `USLAB_RSEQ=0`.

mod caches;
mod heaps;
mod malloc;
mod oracle;
mod threads;

/// Settings of every property: the test chooses the number of cases, and a failing case is printed
/// instead of written to a file.
fn cases(count: u32) -> proptest::prelude::ProptestConfig {
    proptest::prelude::ProptestConfig { cases: count, failure_persistence: None, ..Default::default() }
}

//! Private heaps of a few objects each, made, used and destroyed, in a process of its own.
//!
//! ```text
//!   beside:  live memory of the same allocator, in objects of 16 KiB that no one writes to
//!   one:     a heap is made, gets an object of 16, 32 … 1024 bytes each, is destroyed; again
//!   many:    thousands of such heaps are made; then all are destroyed
//! ```
//!
//! Every object is written to. Many heaps meet fresh memory, so page faults are part of their cost.
//! The live memory shows an allocator that searches more than the heap that it destroys.
//!
//! Must never: free an object by itself; keep a heap beyond its round.

use crate::contestants::heaps::Heaps;
use crate::contestants::{Contestant, out_of_memory};
use crate::measure::Sample;
use serde::{Deserialize, Serialize};
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapLoad {
    /// Heaps that live at once.
    pub heaps: usize,
    /// Live memory beside them.
    pub beside_bytes: usize,
}

/// Names of the figures in [`Sample::extra`]: one heap with its objects, made and destroyed, where
/// no other lives; and one of many that live at once, with its parts.
pub const ONE: &str = "one_ns";
pub const MANY: &str = "many_ns";
pub const MADE: &str = "made_ns";
pub const DESTROYED: &str = "destroyed_ns";

/// The objects of a heap.
pub const SIZES: [usize; 7] = [16, 32, 64, 128, 256, 512, 1024];

/// The size of the objects beside.
const BESIDE_BYTES: usize = 16 << 10;

/// Heaps of a round of [`ONE`], one after the other, and rounds, of which the least counts.
const HEAPS_OF_ONE: usize = 50;
const ROUNDS_OF_ONE: usize = 100;

/// An allocator with heaps, as a value.
#[derive(Clone, Copy)]
pub struct HeapEntry {
    pub name: &'static str,
    pub run: fn(&HeapLoad) -> Sample,
}

impl HeapEntry {
    pub const fn of<H: Heaps>() -> Self {
        Self { name: H::NAME, run: run::<H> }
    }
}

/// Runs the load. The value is that of [`MANY`].
fn run<H: Heaps>(load: &HeapLoad) -> Sample {
    H::Malloc::enter_thread();
    for _ in 0..load.beside_bytes / BESIDE_BYTES {
        if H::Malloc::alloc(BESIDE_BYTES).is_null() {
            out_of_memory(H::NAME);
        }
    }
    let one = || {
        let start = Instant::now();
        for _ in 0..HEAPS_OF_ONE {
            destroy::<H>(made::<H>());
        }
        start.elapsed().as_nanos() as f64 / HEAPS_OF_ONE as f64
    };
    let one = (0..ROUNDS_OF_ONE).map(|_| one()).fold(f64::INFINITY, f64::min);
    let [made, destroyed] = many::<H>(load.heaps);
    let many = made + destroyed;
    let extra = [(ONE, one), (MANY, many), (MADE, made), (DESTROYED, destroyed)];
    Sample { extra: extra.map(|(name, value)| (name.to_owned(), value)).into(), ..Sample::of(many) }
}

/// Nanoseconds a heap: to make all, and to destroy all.
fn many<H: Heaps>(count: usize) -> [f64; 2] {
    let mut heaps = Vec::with_capacity(count);
    let start = Instant::now();
    heaps.extend((0..count).map(|_| made::<H>()));
    let made = start.elapsed();
    heaps.into_iter().for_each(destroy::<H>);
    [made, start.elapsed() - made].map(|time| time.as_nanos() as f64 / count as f64)
}

/// A heap with its objects.
fn made<H: Heaps>() -> H::Heap {
    let Some(heap) = H::create() else { out_of_memory(H::NAME) };
    for size in SIZES {
        let object = H::alloc(&heap, size);
        if object.is_null() {
            out_of_memory(H::NAME);
        }
        // SAFETY: fresh memory of 16 bytes at least, aligned to 8 at least.
        unsafe { object.cast::<usize>().write(size) };
    }
    heap
}

fn destroy<H: Heaps>(heap: H::Heap) {
    // SAFETY: `made` kept no address of the heap's objects.
    unsafe { H::destroy(heap) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineup::WITH_HEAPS;
    use std::collections::HashSet;

    #[test]
    fn every_allocator_with_heaps_has_every_figure() {
        for entry in WITH_HEAPS {
            let sample = (entry.run)(&HeapLoad { heaps: 20, beside_bytes: 1 << 20 });
            for name in [ONE, MANY, MADE, DESTROYED] {
                assert!(sample.extra[name] > 0.0, "{}: no {name}", entry.name);
            }
            assert_eq!(sample.value, sample.extra[MANY]);
        }
    }

    #[test]
    fn objects_of_a_heap_do_not_overlap() {
        fn check<H: Heaps>() {
            let heap = H::create().unwrap();
            let objects: HashSet<usize> = SIZES.map(|size| H::alloc(&heap, size).addr()).into();
            assert!(objects.len() == SIZES.len() && objects.iter().all(|at| *at != 0 && at % 16 == 0));
            destroy::<H>(heap);
        }
        check::<crate::contestants::heaps::UslabHeaps>();
        check::<crate::contestants::heaps::MimallocHeaps>();
    }
}

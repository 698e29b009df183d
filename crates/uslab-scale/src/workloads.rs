//! The workloads: what a CPU does in one operation.
//!
//! Each is a piece of work of the kind that limits allocators on many CPUs. An operation of a
//! workload is the same on every CPU, but for the memory that it holds.

use std::collections::VecDeque;
use std::ptr::NonNull;
use uslab::internal::{entry, rehearse_fork};
use uslab::{CacheBuilder, RawCache};

/// The names, in the order of the report.
pub const NAMES: [&str; 11] = [
    "pairs",
    "malloc",
    "bursts",
    "overflow",
    "handoff",
    "scattered",
    "growth",
    "large",
    "caches",
    "reclaim",
    "fork",
];

/// A running workload.
pub struct Workload {
    name: &'static str,
    cpus: usize,
    caches: Vec<RawCache>,
    /// What CPU `n` has handed to the next CPU, or holds.
    held: Vec<VecDeque<Vec<NonNull<u8>>>>,
    turns: Vec<usize>,
    scratch: Vec<Vec<NonNull<u8>>>,
}

/// Objects of a burst: several times what the sheaves of a CPU hold at the start.
const BURST: usize = 400;
/// Objects of a burst that sheaves of a fixed capacity do not absorb, and that capacity.
const OVERFLOW: usize = 200;
const OVERFLOW_CAPACITY: usize = 30;
/// Objects that `scattered` holds, and those of them that it replaces at a time.
const KEPT: usize = 4096;
const REPLACED: usize = 600;
/// Objects that a producer hands over at a time, one by one allocated and freed.
const HANDED: usize = 64;
/// Objects that `growth` allocates before it frees them all.
const GROWN: usize = 64;
const GROWTHS: usize = 32;
const CACHES: usize = 400;
const LARGE_BYTES: usize = 256 << 10;

/// Objects that one operation of a workload allocates and frees, under uslab and under each design
/// of `peers` alike.
pub fn objects_of(name: &str) -> usize {
    match name {
        "bursts" | "reclaim" | "fork" => BURST,
        "overflow" => OVERFLOW,
        "scattered" => REPLACED,
        "handoff" => HANDED,
        "growth" => GROWN,
        "caches" => 100,
        _ => 1,
    }
}

impl Workload {
    pub fn new(name: &str, cpus: usize) -> Workload {
        let name = *NAMES.iter().find(|&&known| known == name).expect("a workload of NAMES");
        let count = if name == "caches" { CACHES } else { 1 };
        // 0: the cache chooses, and adapts.
        let capacity = if matches!(name, "overflow" | "scattered") { OVERFLOW_CAPACITY } else { 0 };
        let build = || CacheBuilder::new("model").sheaf_capacity(capacity).build_raw(64);
        let cache = |_| build().expect("memory for a cache");
        Workload {
            name,
            cpus,
            caches: (0..count).map(cache).collect(),
            held: (0..cpus).map(|_| VecDeque::new()).collect(),
            turns: vec![0; cpus],
            scratch: (0..cpus).map(|_| Vec::with_capacity(KEPT)).collect(),
        }
    }

    /// Objects that one operation allocates and frees.
    pub fn objects(&self) -> usize {
        objects_of(self.name)
    }

    fn burst(&self) -> usize {
        match self.name {
            "caches" => 100,
            "overflow" => OVERFLOW,
            _ => BURST,
        }
    }

    /// Operations of each CPU before the measurement, and in it.
    pub fn counts(&self) -> (usize, usize) {
        match self.name {
            // Enough for a clock that is read before and after.
            "pairs" | "malloc" if self.cpus == 1 => (1200, 1024),
            // Where pairs take the slow path now and then, until CPUs seldom add up their counts.
            "pairs" | "malloc" => (1 << 16, 64),
            "large" => (1200, 64),
            "growth" => (4 * GROWTHS, GROWTHS),
            "caches" => (512, 2),
            "overflow" => (64, 4),
            "scattered" => (32, 4),
            "bursts" | "fork" => (1 << 11, 4),
            // Until the sheaves of the CPUs that free have their largest size, and are full.
            "handoff" => (1024, 16),
            _ => (64, 4),
        }
    }

    /// Operations of each CPU before the measurement that the model sees. On several nodes one pair
    /// in 62 takes the slow path, whose lines the model should know by then.
    pub fn seen(&self) -> usize {
        if matches!(self.name, "pairs" | "malloc" | "large") { 64 } else { 2 }
    }

    /// Whether CPU `cpu` must wait for its neighbour: for objects to free, or until those it handed
    /// over are freed.
    pub fn is_waiting(&self, cpu: usize) -> bool {
        const MAX_HANDED: usize = 4;
        self.name == "handoff"
            && match cpu % 2 {
                0 => self.held[(cpu + 1) % self.cpus].len() >= MAX_HANDED,
                _ => self.held[cpu].is_empty(),
            }
    }

    fn alloc(cache: &RawCache) -> NonNull<u8> {
        cache.alloc().expect("memory for an object")
    }

    /// One operation on `cpu`.
    pub fn step(&mut self, cpu: usize) {
        let (turn, count) = (self.turns[cpu], self.burst());
        self.turns[cpu] += 1;
        let objects = &mut self.scratch[cpu];
        let cache = &self.caches[(cpu * 7 + turn) % self.caches.len()];
        match self.name {
            // SAFETY: each object was just allocated and is freed once, here and below.
            "pairs" => unsafe { cache.free(Self::alloc(cache)) },
            // SAFETY: as above.
            "malloc" => unsafe { entry::free(entry::malloc(64)) },
            // SAFETY: as above.
            "large" => unsafe { entry::free(entry::malloc(LARGE_BYTES)) },
            "growth" => {
                objects.extend((0..GROWN).map(|_| Self::alloc(cache)));
                if objects.len() == GROWN * GROWTHS {
                    // SAFETY: as above.
                    objects.drain(..).for_each(|object| unsafe { cache.free(object) });
                }
            }
            // Objects of many slabs, so that frees and refills go to slabs with few free objects.
            "scattered" => {
                if objects.is_empty() {
                    objects.extend((0..KEPT).map(|_| Self::alloc(cache)));
                }
                for n in 0..REPLACED {
                    const ODD: usize = 0x9e37_79b9_7f4a_7c15;
                    let at = (turn * REPLACED + n).wrapping_mul(ODD) >> 40;
                    let object = objects.swap_remove(at % objects.len());
                    // SAFETY: as above.
                    unsafe { cache.free(object) };
                }
                objects.extend((0..REPLACED).map(|_| Self::alloc(cache)));
            }
            "handoff" if cpu.is_multiple_of(2) => {
                let batch = (0..HANDED).map(|_| Self::alloc(cache)).collect();
                self.held[(cpu + 1) % self.cpus].push_back(batch);
            }
            "handoff" => {
                let batch = self.held[cpu].pop_front().unwrap_or_default();
                // SAFETY: the CPU before this one allocated them, and has handed them over.
                batch.into_iter().for_each(|object| unsafe { cache.free(object) });
            }
            "reclaim" if cpu == 0 => {
                uslab::trim(0);
            }
            // Seldom before the measurement, so that the other CPUs' sheaves grow as in `bursts`.
            "fork" if cpu == 0 => {
                if turn >= self.counts().0 - self.seen() {
                    rehearse_fork();
                }
            }
            _ => {
                objects.extend((0..count).map(|_| Self::alloc(cache)));
                // SAFETY: as above.
                objects.drain(..).for_each(|object| unsafe { cache.free(object) });
            }
        }
    }
}

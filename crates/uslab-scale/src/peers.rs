//! Other allocators, as models of their published designs: what they touch, not their code.
//!
//! | design | published for |
//! |---|---|
//! | one lock around one free list | dlmalloc, and glibc before its arenas |
//! | an arena a CPU, each with a lock; a free goes to the object's arena | jemalloc (Evans, BSDCan 2006) |
//! | caches of CPUs, filled in batches from one transfer cache | TCMalloc's design page |
//!
//! Each gets what flatters it: the shortest code, no growth, no misses but those of its design.

use crate::model::{LINE_BYTES, Machine};
use crate::trace::{Access, Kind, Trace};

/// The names, as arguments.
pub const NAMES: [&str; 3] = ["one-lock", "arenas", "transfer"];

/// Instructions of an allocation or a free, with the lock and without.
const LOCKED: u32 = 40;
const UNLOCKED: u32 = 20;
/// Objects that a CPU's cache holds, and that move at a time.
const CACHED: usize = 128;
const BATCH: usize = 32;

/// A running model of one design.
pub struct Peer {
    name: &'static str,
    cached: Vec<usize>,
}

impl Peer {
    pub fn new(name: &str, cpus: usize) -> Option<Peer> {
        let name = *NAMES.iter().find(|&&known| known == name)?;
        Some(Peer { name, cached: vec![CACHED / 2; cpus] })
    }

    /// Allocates (`is_alloc`) or frees `count` objects on `cpu`, which belong to the arena of
    /// `home`.
    pub fn step(&mut self, machine: &mut Machine, cpu: usize, home: usize, count: usize, is_alloc: bool) {
        for _ in 0..count {
            let trace = match self.name {
                "one-lock" => locked(1),
                "arenas" => locked(1 + home as u64),
                _ => {
                    let cached = &mut self.cached[cpu];
                    if is_alloc && *cached == 0 {
                        *cached = BATCH;
                        machine.run(cpu, &batch());
                    } else if !is_alloc && *cached == CACHED {
                        *cached -= BATCH;
                        machine.run(cpu, &batch());
                    }
                    *cached = if is_alloc { *cached - 1 } else { *cached + 1 };
                    Trace { instructions: UNLOCKED, ..Trace::default() }
                }
            };
            machine.run(cpu, &trace);
        }
    }
}

/// A critical section on the lock with this number; the list's head lies beside the lock.
fn locked(lock: u64) -> Trace {
    let address = lock * LINE_BYTES;
    let access = |offset, kind, at| Access { address: address + offset, kind, code: 0, at };
    let accesses = vec![access(0, Kind::Compare, 5), access(8, Kind::Write, 20), access(0, Kind::Modify, 30)];
    Trace { accesses, instructions: LOCKED, system_calls: 0 }
}

/// Pointers that move under the lock: four lines of them.
fn batch() -> Trace {
    let mut trace = locked(1);
    let release = trace.accesses.pop();
    let lines = (0..(BATCH as u64 * 8) / LINE_BYTES).map(|line| Access {
        address: (1000 + line) * LINE_BYTES,
        kind: Kind::Read,
        code: 0,
        at: 25,
    });
    trace.accesses.extend(lines);
    trace.accesses.extend(release);
    trace.instructions = LOCKED + 2 * BATCH as u32;
    trace
}

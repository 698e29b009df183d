//! The static variables of the library that several CPUs write in slow paths or in calls of their
//! own, and those that every operation or slow path reads: each stands on lines of its own.
//! Variables that are written at start-up, at forks or a few times in a second are not listed.
//!
//! A line that one CPU writes and another reads costs the reader a transfer with each write. So
//! what is written often must not share a line with what is read often. The compiler and the linker
//! place statics as they like: the check reads the symbols of the released program.
//!
//! Structures of a cache are no statics. They keep the same rule by alignment: slots and tallies (a
//! line a CPU), barns and list heads (a lock, and what it guards).

use crate::names::Names;

/// A variable: its name, what writes it, and how often.
struct Shared(&'static str, &'static str, &'static str);

const LINES: &[Shared] = &[
    Shared("pages::buddy::BUDDY", "the lock's holder", "a batch of runs; a large object"),
    Shared("pages::arena::ARENA", "growth", "a chunk; every free reads it"),
    Shared("malloc::list::LISTS", "the lock's holder", "a large object of a private heap"),
    Shared("rseq::detect::AREA_OFFSET", "start-up", "once; every operation reads it"),
    Shared("counters::publish::SHARED", "start-up", "once; every slow path reads it"),
    Shared("counters::peak::SYSTEM_BYTES", "growth", "a slab, at a new maximum"),
    Shared("counters::peak::LARGE_OBJECTS", "large objects", "one, at a new maximum"),
    Shared("counters::peak::LARGE_BYTES", "large objects", "one, at a new maximum"),
    Shared("percpu::adapt::USED", "the rings' lock's holder", "a change of a capacity"),
    Shared("percpu::adapt::RINGS", "the lock's holder", "a change of a capacity"),
    Shared("percpu::local::LOCALS", "the lock's holder", "a local cache made or dropped; statistics"),
    Shared("percpu::hidden::SHUFFLES", "refills, if hardened", "a refill"),
    Shared("sync::in_flight::COUNTS", "drainers", "a drain; a purge"),
    Shared("cache::registry::REGISTRY", "the lock's holder", "a cache made or destroyed; a fork"),
    Shared("cache::registry::WALKS", "passes", "a walk of all caches"),
    Shared("cache::trim::TRIMMING", "trims", "a trim"),
    Shared("rseq::layout::DUMMY", "CPUs, modulo 64", "a call of a CPU without sheaf"),
];

/// Prints the list; returns false where a variable shares a line, or is not found.
pub fn check(names: &Names) -> bool {
    const LINE_BYTES: u64 = crate::model::LINE_BYTES;
    let mut is_right = true;
    for Shared(name, writer, rate) in LINES {
        let found = names.find(name);
        let is_alone = found.is_some_and(|(at, size)| at % LINE_BYTES == 0 && size % LINE_BYTES == 0);
        let place = match found {
            Some((_, size)) if is_alone => format!("{} lines", size / LINE_BYTES),
            Some((at, size)) => format!("NOT ALONE: {size} bytes at {at:#x}"),
            None => "NOT FOUND".into(),
        };
        println!("{name:<32} {place:<12} {writer}: {rate}");
        is_right &= is_alone;
    }
    is_right
}

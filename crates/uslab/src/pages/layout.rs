//! The layout of the arena: chooses the addresses of its data and tables, without reserving them.
//!
//! No mapping holds the arena's range. [`choose`] picks, once, a range far from all mappings of the
//! process. The arena maps each piece in that range when it needs the piece, and skips what another
//! mapping occupies by then. So an arena of a terabyte counts only for what it uses: against
//! `RLIMIT_AS`, against `RLIMIT_MEMLOCK` under `mlockall`, and in `VmSize`.
//!
//! ```text
//!  free addresses          ◀── tables, at constant distances ──▶ base                        free addresses
//!  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ descriptors │ chunks │ boot │ map ││ data …┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ libraries
//! ```

use super::chunk::Chunk;
use super::{CHUNK_BYTES, CHUNK_PAGES, DESCRIPTOR_BYTES, PAGE_BYTES};
use crate::os::facts::Fact;
use crate::os::memory::{self, Placed};
use crate::rseq::Owner;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};

/// Largest range for objects: a little less than 1 TiB, so that the page map is not exactly 2 GiB.
/// Where the address of a map entry and that of slots or sheaves agreed in the low 28 bits, a free
/// cost eight cycles more on Zen cores (docs/adr/0010).
pub const MAX_DATA_BYTES: usize = (1 << 40) - 48 * CHUNK_BYTES;
/// Smallest range that is worth starting with.
const MIN_DATA_BYTES: usize = 1 << 30;

/// Granularity at which tables are mapped: a multiple of every system's page.
pub const STEP_BYTES: usize = 64 << 10;

const MAX_PAGES: usize = MAX_DATA_BYTES / PAGE_BYTES;
/// Bytes of the page map, which ends where the data starts.
pub const MAP_BYTES: usize = MAX_PAGES * size_of::<Owner>();
/// Bytes for structures of the library itself; see [`super::boot`]. On 256 CPUs and four nodes a
/// cache takes about 115 KiB of them, and each of the 65,536 ids may have a cache.
pub const BOOT_BYTES: usize = 16 << 30;
// The map's entries and the slots differ in the low 28 bits of their addresses by `MAP_BYTES`.
const _: () = assert!(BOOT_BYTES.is_multiple_of(1 << 28));
const CHUNKS_BYTES: usize = (MAX_PAGES / CHUNK_PAGES * size_of::<Entry>()).next_multiple_of(STEP_BYTES);
const DESCRIPTORS_BYTES: usize = MAX_PAGES * DESCRIPTOR_BYTES;

/// Distances of the tables below the base.
pub const BOOT_BELOW: usize = MAP_BYTES + BOOT_BYTES;
/// See [`BOOT_BELOW`].
pub const CHUNKS_BELOW: usize = BOOT_BELOW + CHUNKS_BYTES;
/// See [`BOOT_BELOW`].
pub const DESCRIPTORS_BELOW: usize = CHUNKS_BELOW + DESCRIPTORS_BYTES;

const _: () = assert!(MAP_BYTES.is_multiple_of(STEP_BYTES) && DESCRIPTORS_BYTES.is_multiple_of(STEP_BYTES));

/// A chunk's entry in the table of chunks. Zeroed memory is a valid entry: of a chunk that is all
/// in use, or absent.
#[repr(C)]
pub struct Entry {
    /// Guarded by the buddy's lock.
    pub chunk: Chunk,
    /// See [`super::keep_mapped`]. Read and written without a lock.
    pub is_pinned: AtomicBool,
    /// See [`super::home`]. Changed under the buddy's lock, read without.
    pub home: AtomicU8,
}

/// A table: a range of addresses of which a first part is mapped.
pub struct Table {
    mapped_bytes: AtomicUsize,
}

impl Table {
    /// A table of which no part is mapped.
    pub const fn new() -> Table {
        Table { mapped_bytes: AtomicUsize::new(0) }
    }

    /// Bytes of the part that is mapped.
    pub fn mapped_bytes(&self) -> usize {
        self.mapped_bytes.load(Relaxed)
    }

    /// Maps the first `bytes` bytes, at least, of the table that starts at `start`. Returns false
    /// if the system refuses. All callers for one table hold the same lock.
    pub fn reach(&self, start: usize, bytes: usize) -> bool {
        let have = self.mapped_bytes.load(Relaxed);
        if bytes <= have {
            return true;
        }
        let more = (bytes - have).next_multiple_of(STEP_BYTES);
        let done = memory::map_at(start + have, more) == Placed::Mapped;
        if done {
            self.mapped_bytes.store(have + more, Relaxed);
        }
        done
    }
}

/// The distances of the tables, for a debugger.
pub const FACTS: &[Fact] = &[
    Fact::new("pages.page_bytes", PAGE_BYTES),
    Fact::new("pages.descriptor_bytes", DESCRIPTOR_BYTES),
    Fact::new("pages.map_below", MAP_BYTES),
    Fact::new("pages.descriptors_below", DESCRIPTORS_BELOW),
];

/// Returns the base of an arena and the bytes that it may grow to; `None` if no range is free.
/// `salt` keeps the arenas of several libraries of one process apart.
///
/// The kernel puts mappings near each other. The first candidates lie far below those mappings, and
/// as far above. Later ones are nearer and smaller, for processors with fewer address bits and for
/// tools that manage addresses themselves (sanitizers, valgrind). The addresses are as random as
/// the kernel's own, from which they are derived.
pub fn choose(salt: usize) -> Option<(usize, usize)> {
    const MAX_REACH_BITS: u32 = 46;
    let near = memory::next_address(STEP_BYTES)?;
    // Fibonacci hashing: each bit of the page number changes many bits of the result.
    let random = ((near ^ salt) / PAGE_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (MIN_DATA_BYTES.trailing_zeros()..MAX_REACH_BITS).rev().find_map(|bits| {
        let data = (1usize << bits).min(MAX_DATA_BYTES);
        let gap = (1 << (bits - 1)) + random % (1 << (bits - 1));
        let below = near.checked_sub(gap + data + DESCRIPTORS_BELOW);
        let above = near.checked_add(gap);
        [below, above].into_iter().flatten().find_map(|start| {
            let base = (start + DESCRIPTORS_BELOW).next_multiple_of(CHUNK_BYTES);
            is_free(base, data).then_some((base, data))
        })
    })
}

/// Whether an arena may lie at `base`. Probes of the ends, the base and the middle tell a free
/// range from the shadow of a sanitizer; growth skips smaller mappings. A probe of the whole range
/// would count in `VmPeak`, and a limit on address space would refuse it.
///
/// Each probe makes a mapping: no call that only asks tells free addresses from those that a
/// program cannot have, and a filter of system calls may end the program for `mincore`.
fn is_free(base: usize, data: usize) -> bool {
    let start = base - DESCRIPTORS_BELOW;
    let middle = base + data / 2 / STEP_BYTES * STEP_BYTES;
    let end = base + data - STEP_BYTES;
    [start, middle, base, end].into_iter().all(|at| memory::look_at(at, STEP_BYTES) == Placed::Mapped)
}

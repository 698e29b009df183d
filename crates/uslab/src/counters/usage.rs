//! The figures of this process, for the process itself.

use super::layout::STATE_LIVE;
use super::peak;
use super::publish::header;
use super::segments::records;
use core::sync::atomic::Ordering::Relaxed;

/// Memory that the allocator holds, in bytes and objects. The figures sum counters that other
/// threads change meanwhile, so they are close, not exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of pages that slabs and large objects hold.
    pub used_bytes: usize,
    /// Bytes of free pages with memory behind them.
    pub dirty_bytes: usize,
    /// Bytes of the arena that are mapped.
    pub committed_bytes: usize,
    /// Bytes of objects that the program holds. Each counts with its full size class, which may
    /// exceed the requested size.
    pub allocated_bytes: usize,
    /// Free objects in slabs and sheaves.
    pub free_objects: usize,
    /// Large objects that the program holds.
    pub large_objects: usize,
    /// Bytes of these large objects.
    pub large_bytes: usize,
    /// Bytes of slabs and of free pages with memory behind them: all but large objects.
    pub system_bytes: usize,
    /// Highest `system_bytes` since the start.
    pub max_system_bytes: usize,
    /// Highest `large_objects` since the start.
    pub max_large_objects: usize,
    /// Highest `large_bytes` since the start.
    pub max_large_bytes: usize,
}

/// Returns the current figures. Takes no lock and does not allocate.
pub fn usage() -> Usage {
    let header = header();
    let load = |counter: &core::sync::atomic::AtomicU64| counter.load(Relaxed) as usize;
    let (large_objects, large_bytes) = (load(&header.large_objects), load(&header.large_bytes));
    let system_bytes = peak::system_bytes();
    let mut usage = Usage {
        used_bytes: load(&header.used_bytes),
        dirty_bytes: load(&header.dirty_bytes),
        committed_bytes: load(&header.committed_bytes),
        allocated_bytes: large_bytes,
        free_objects: 0,
        large_objects,
        large_bytes,
        system_bytes,
        max_system_bytes: peak::SYSTEM_BYTES.note(system_bytes),
        max_large_objects: peak::LARGE_OBJECTS.note(large_objects),
        max_large_bytes: peak::LARGE_BYTES.note(large_bytes),
    };
    for record in records().filter(|record| record.state.load(Relaxed) == STATE_LIVE) {
        let all = record.slabs.load(Relaxed) * i64::from(record.objects_per_slab.load(Relaxed));
        let (slab_free, sheaf_free) = (record.slab_free.load(Relaxed), record.sheaf_free.load(Relaxed));
        // Counters change between two loads, so their difference may be negative.
        let count = |objects: i64| objects.max(0) as usize;
        usage.free_objects += count(slab_free) + count(sheaf_free);
        usage.allocated_bytes +=
            count(all - slab_free - sheaf_free) * record.object_bytes.load(Relaxed) as usize;
    }
    usage
}

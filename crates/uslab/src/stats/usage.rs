//! The figures of this process, from inside.

use super::layout::{RECORDS_MAX, STATE_LIVE, STATE_UNUSED};
use super::publish::{header, record};
use core::sync::atomic::Ordering::Relaxed;

/// What the allocator holds, in bytes and objects. Sums of counters that change meanwhile: close, not exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Pages that slabs and large objects hold.
    pub used_bytes: usize,
    /// Free pages with memory behind them.
    pub dirty_bytes: usize,
    /// Objects that programs hold, including what they did not ask for of their size class.
    pub allocated_bytes: usize,
    /// Objects ready in slabs and sheaves.
    pub free_objects: usize,
    /// Large objects that programs hold.
    pub large_objects: usize,
    /// Their bytes.
    pub large_bytes: usize,
}

/// Adds the counters up. Takes no lock.
pub fn usage() -> Usage {
    let header = header();
    let mut usage = Usage {
        used_bytes: header.used_bytes.load(Relaxed) as usize,
        dirty_bytes: header.dirty_bytes.load(Relaxed) as usize,
        large_objects: header.large_objects.load(Relaxed) as usize,
        large_bytes: header.large_bytes.load(Relaxed) as usize,
        ..Usage::default()
    };
    usage.allocated_bytes = usage.large_bytes;
    let used = header.records_used.load(Relaxed).min(RECORDS_MAX as u32) as u16;
    for record in (0..used).map(record).filter(|record| record.state.load(Relaxed) != STATE_UNUSED) {
        if record.state.load(Relaxed) == STATE_LIVE {
            let all = record.slabs.load(Relaxed) * i64::from(record.objects_per_slab.load(Relaxed));
            let free = record.slab_free.load(Relaxed) + record.sheaf_free.load(Relaxed);
            usage.free_objects += free.max(0) as usize;
            usage.allocated_bytes +=
                (all - free).max(0) as usize * record.object_bytes.load(Relaxed) as usize;
        }
    }
    usage
}

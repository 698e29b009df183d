//! Purges that also empty the CPU page lists: of an idle page layer, and of all free memory.

use super::policy::Locked;
use super::purge::{self, purge_to};
use super::{buddy, cpu_pages};
use crate::{counters, os};
use core::sync::atomic::Ordering::Relaxed;

/// Whether no thread has taken or freed pages since the last [`purge_rested`]. The background
/// thread asks this before it calls [`purge_rested`] again.
pub fn rested() -> bool {
    cpu_pages::rested() && buddy::lock().operations == 0
}

/// Purges the pages that were idle for the decay. If the layer `rested`, the runs of CPU page lists
/// are among them. Returns whether it rested and no memory is left that could go. The background
/// thread calls this twice a second.
pub fn purge_rested(rested: bool) -> bool {
    if rested {
        cpu_pages::drain_all();
    }
    let is_settled = purge::purge_at_tick(rested);
    cpu_pages::begin_period();
    buddy::lock().operations = 0;
    is_settled
}

/// Whether [`purge_all_beyond`] would find anything. Takes no lock.
pub fn has_free_memory() -> bool {
    counters::header().dirty_bytes.load(Relaxed) > 0
        || cpu_pages::runs() > 0
        || (buddy::has_empty_chunk() && os::memory::is_mapping_limited())
}

/// Empties the CPU page lists and purges all free memory, locked or not; returns the bytes purged.
#[cfg(test)]
pub fn purge_all() -> usize {
    purge_all_beyond(0)
}

/// Empties the CPU page lists, then purges chunk by chunk, locked or not, until at most
/// `kept_bytes` of free memory stay resident. Returns the bytes purged.
pub fn purge_all_beyond(kept_bytes: usize) -> usize {
    cpu_pages::drain_all();
    purge_to(kept_bytes, Locked::Go)
}

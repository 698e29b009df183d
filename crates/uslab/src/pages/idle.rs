//! Purges that also empty the CPU page lists: of an idle page layer, and of all free memory.

use super::policy::Locked;
use super::purge::{purge_excess, purge_to};
use super::{buddy, cpu_pages};
use crate::{counters, os};
use core::sync::atomic::Ordering::Relaxed;

/// Whether no thread has taken or freed pages since the last [`purge_rested`]. The background
/// thread asks this before it calls [`purge_rested`] again.
pub fn rested() -> bool {
    cpu_pages::rested() && buddy::lock().operations == 0
}

/// Purges the dirty pages beyond the learnt limit, or all of them if the layer `rested`. Returns
/// the bytes purged. The background thread calls this twice a second.
pub fn purge_rested(rested: bool) -> usize {
    let purged = if rested { purge_free(0, Locked::Stay) } else { purge_excess() };
    cpu_pages::begin_period();
    buddy::lock().operations = 0;
    purged
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
    purge_free(kept_bytes, Locked::Go)
}

fn purge_free(kept_bytes: usize, locked: Locked) -> usize {
    cpu_pages::drain_all();
    purge_to(kept_bytes, locked)
}

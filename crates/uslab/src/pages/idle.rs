//! What rests, and everything: purges that take the CPU page lists along.

use super::policy::Locked;
use super::purge::{self, purge_to};
use super::{buddy, cpu_pages};
use crate::{counters, os};
use core::sync::atomic::Ordering::Relaxed;

/// True if no thread took or freed pages since the last [`purge_rested`], which the background
/// thread is about to do.
pub fn rested() -> bool {
    cpu_pages::rested() && buddy::lock().operations == 0
}

/// Called twice a second by the background thread: what was idle for the decay goes back. Where the
/// pages `rested`, the CPU page lists go the same way. True if they did and nothing is left that
/// could go.
pub fn purge_rested(rested: bool) -> bool {
    if rested {
        cpu_pages::drain_all();
    }
    let is_settled = purge::purge_at_look(rested);
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

/// Empties the CPU page lists and purges everything that is free, locked or not; says how many
/// bytes went back.
#[cfg(test)]
pub fn purge_all() -> usize {
    purge_all_beyond(0)
}

/// The same until at most `kept_bytes` of free memory stay resident: whole chunks go at a time.
pub fn purge_all_beyond(kept_bytes: usize) -> usize {
    cpu_pages::drain_all();
    purge_to(kept_bytes, Locked::Go)
}

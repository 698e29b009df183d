//! What rests, and everything: purges that take the CPU page lists along.

use super::policy::Locked;
use super::purge::{purge_excess, purge_to};
use super::{buddy, cpu_pages};
use crate::{counters, os};
use core::sync::atomic::Ordering::Relaxed;

/// True if no thread took or freed pages since the last [`purge_rested`], which the background
/// thread is about to do.
pub fn rested() -> bool {
    cpu_pages::rested() && buddy::lock().operations == 0
}

/// Called twice a second by the background thread: dirty pages beyond what has been learnt go back;
/// all of them, where the pages `rested`. Returns the bytes that went.
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

/// Empties the CPU page lists and purges everything that is free, locked or not; says how many
/// bytes went back.
#[cfg(test)]
pub fn purge_all() -> usize {
    purge_all_beyond(0)
}

/// The same until at most `kept_bytes` of free memory stay resident: whole chunks go at a time.
pub fn purge_all_beyond(kept_bytes: usize) -> usize {
    purge_free(kept_bytes, Locked::Go)
}

fn purge_free(kept_bytes: usize, locked: Locked) -> usize {
    cpu_pages::drain_all();
    purge_to(kept_bytes, locked)
}

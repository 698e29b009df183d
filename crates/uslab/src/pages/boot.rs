//! Boot memory: zeroed memory for the library's own structures (slots, caches, CPU lists).
//!
//! It is handed out in order from a table of the arena, and never freed. Callers whose structures
//! come and go keep free lists of their own.

use super::arena::{BOOT_USED, boot_start};
use super::layout::{BOOT_BYTES, Table};
use crate::os::Lock;
use crate::os::invariant::invariant;
use crate::sync::Rank;
use core::sync::atomic::Ordering::Relaxed;

struct Boot {
    used: usize,
    table: Table,
}

static BOOT: Lock<Boot> = Lock::new(Rank::Pages, Boot { used: 0, table: Table::new() });

/// Allocates, for ever, `bytes` zeroed bytes on a boundary of `align`, a power of two up to 4096.
/// Returns null if boot memory is used up.
pub fn alloc(bytes: usize, align: usize) -> *mut u8 {
    invariant!(align.is_power_of_two() && align <= 4096, "an alignment is one that boot memory has", align);
    let Some(start) = boot_start() else { return core::ptr::null_mut() };
    let mut boot = BOOT.lock();
    let from = boot.used.next_multiple_of(align);
    let Some(to) = from.checked_add(bytes).filter(|&to| to <= BOOT_BYTES) else {
        return core::ptr::null_mut();
    };
    if !boot.table.reach(start, to) {
        return core::ptr::null_mut();
    }
    invariant!(to >= boot.used && from.is_multiple_of(align), "boot memory is handed out once", from);
    boot.used = to;
    BOOT_USED.store(to, Relaxed);
    (start + from) as *mut u8
}

/// Bytes handed out so far.
pub fn used_bytes() -> usize {
    BOOT_USED.load(Relaxed)
}

pub(super) fn lock_for_fork() {
    BOOT.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { BOOT.reset_in_child() } else { BOOT.release_after_fork() }
}

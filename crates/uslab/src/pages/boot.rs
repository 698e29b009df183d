//! Memory for the library's own structures (slots, caches, CPU lists): taken in order from a part of the reservation,
//! zeroed, never given back. Users that come and go keep their own free lists.

use super::arena::boot_range;
use crate::os::{self, Lock};
use crate::sync::Rank;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Boot {
    used: usize,
    committed: usize,
}

static BOOT: Lock<Boot> = Lock::new(Rank::Pages, Boot { used: 0, committed: 0 });
/// A copy of `Boot::used` for readers without the lock.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Commit step: a few system calls in a process's life.
const STEP_BYTES: usize = 64 << 10;

/// `bytes` zeroed bytes on a boundary of `align` (a power of two up to 4096), for ever; null if there are no more.
pub fn alloc(bytes: usize, align: usize) -> *mut u8 {
    let (start, size) = boot_range();
    let mut boot = BOOT.lock();
    let from = boot.used.next_multiple_of(align);
    let Some(to) = from.checked_add(bytes).filter(|&to| to <= size && start != 0) else {
        return core::ptr::null_mut();
    };
    if to > boot.committed {
        let committed = to.next_multiple_of(STEP_BYTES).min(size);
        let more = committed - boot.committed;
        // SAFETY: the boot part is in the reservation, a multiple of 64 KiB, and this piece is not yet committed.
        if !unsafe { os::memory::commit((start + boot.committed) as *mut u8, more) } {
            return core::ptr::null_mut();
        }
        boot.committed = committed;
    }
    boot.used = to;
    USED.store(to, Relaxed);
    (start + from) as *mut u8
}

/// Bytes handed out so far.
pub fn used_bytes() -> usize {
    USED.load(Relaxed)
}

pub(super) fn lock_for_fork() {
    BOOT.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { BOOT.reset_in_child() } else { BOOT.release_after_fork() }
}

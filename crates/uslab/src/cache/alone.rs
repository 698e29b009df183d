//! Forks of a process in which no other thread works, and the kinds of the forks under way.
//!
//! ```text
//!   begin()  the background thread rests, and is kept at rest    true: the fork takes no locks
//!            the process has no other thread
//!   end()    the parent lets it go on
//! ```
//!
//! The forking thread may itself hold locks, if it forks in a signal handler that interrupted an
//! operation. These locks stay held in the parent and in the child, and the operation goes on in
//! both once the handler returns. The background thread rests also while it waits for such a lock.
//! Then the locks that it holds itself, if any, stay taken in the child.

use super::background;
use crate::os;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kinds of the forks under way, the innermost in the lowest bit, below a bit that is always
/// set. They nest: a handler that interrupts a fork may fork. A fork writes this while no other
/// thread can: it holds the lock of forks, or no other thread works.
static KINDS: AtomicU64 = AtomicU64::new(1);

/// Whether the process has no thread but this one, and the background thread, which now rests until
/// the end of the fork. Waits for it, for 50 ms at most.
pub(super) fn begin() -> bool {
    let _errno = os::errno::Preserved::new();
    let has_reaper = background::is_running();
    let has_no_other = || os::thread::count() == Some(1 + usize::from(background::is_running()));
    // The count misses threads of another process that shares this memory.
    if !has_no_other() || !os::process::is_own() || !os::background::hold(has_reaper) {
        return false;
    }
    // Before it came to rest, the background thread may have started another one.
    let is_alone = has_no_other();
    if !is_alone {
        os::background::release();
    }
    is_alone
}

/// Notes that a fork begins, and whether no other thread works (`is_alone`). Otherwise the caller
/// holds the lock of forks.
pub(super) fn push(is_alone: bool) {
    KINDS.store(KINDS.load(Relaxed) << 1 | u64::from(is_alone), Relaxed);
}

/// Notes that the innermost fork ends, in the parent or in the child. Returns the flag of its
/// [`push`].
pub(super) fn pop() -> bool {
    let kinds = KINDS.load(Relaxed);
    KINDS.store(kinds >> 1, Relaxed);
    kinds & 1 != 0
}

/// Ends a fork that [`begin`] allowed, in the parent. The child has no background thread.
pub(super) fn end() {
    os::background::release();
}

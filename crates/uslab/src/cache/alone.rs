//! Forks of a process in which no other thread works.
//!
//! ```text
//!   begin()  the background thread sleeps, and is kept asleep    true: the fork takes no locks
//!            the process has no other thread
//!   end()    the parent lets it sleep as long as it likes
//! ```
//!
//! The forking thread may hold locks itself: a signal handler that interrupted an operation forks.
//! They stay held in the parent and in the child, and the operation goes on in both once the
//! handler returns.

use super::background;
use crate::os;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Forks of this kind between [`begin`] and their end. They nest: a handler that interrupts a fork
/// may fork.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// Whether the process has no thread but this one, and the background thread, which now sleeps
/// until the end of the fork. Waits for it, for 50 ms at most.
pub(super) fn begin() -> bool {
    let _errno = os::errno::Preserved::new();
    let has_reaper = background::is_running();
    // Of a process that shares its memory with this one, the count does not tell.
    let is_alone = os::thread::count() == Some(1 + usize::from(has_reaper))
        && os::process::is_own()
        && os::sleep::hold(has_reaper);
    DEPTH.fetch_add(u32::from(is_alone), Relaxed);
    is_alone
}

/// Whether the innermost fork under way is of this kind: [`begin`] returned true.
pub(super) fn is() -> bool {
    DEPTH.load(Relaxed) > 0
}

/// Ends such a fork in the parent.
pub(super) fn end() {
    DEPTH.fetch_sub(1, Relaxed);
    os::sleep::release();
}

/// Ends such a fork in the child, which has no background thread.
pub(super) fn end_in_child() {
    DEPTH.fetch_sub(1, Relaxed);
}

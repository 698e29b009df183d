//! Filters of system calls (seccomp): whether the calling thread has one.
//!
//! A filter may end the program for a call that it does not allow. Filters allow what allocators
//! commonly need, but not `mincore`: the call ends apt's methods, and services under systemd's
//! `SystemCallFilter=@system-service`. The library cannot tell such a filter from one that only
//! refuses calls, as Docker's does. So it never calls `mincore` under any filter.
//!
//! A program may add its filter at any time, for all its threads or for one. So a thread asks the
//! kernel about its filter anew before each such call.

use super::calls;
use super::errno::Preserved;

/// Whether the calling thread has a filter.
pub(super) fn is_on() -> bool {
    let _errno = Preserved::new();
    // SAFETY: reads the calling thread's mode.
    unsafe { calls::prctl(libc::PR_GET_SECCOMP, 0) > 0 }
}

/// Whether the calling thread may ask the kernel now what is resident (`mincore`).
pub fn may_ask_residence() -> bool {
    !is_on()
}

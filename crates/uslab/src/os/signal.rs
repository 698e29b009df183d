//! The calling thread's mask of blocked signals, as the kernel keeps it.
//!
//! It uses system calls, because the C library's functions exclude its own two signals.

use core::ffi::c_int;
use core::ptr;

/// The kernel's set of signals: 64 of them.
pub type Mask = u64;

/// The signals that an instruction of the thread itself raises; but for SIGSYS, which library
/// threads never block.
const FAULTS: Mask =
    bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGFPE) | bit(libc::SIGILL) | bit(libc::SIGTRAP);

const fn bit(signal: c_int) -> Mask {
    1 << (signal - 1)
}

/// Calls `work`, which runs code of the program on a library thread, with the signals unblocked
/// that instructions raise. That code may rely on its handlers of them, for write barriers or guard
/// pages for instance. The kernel ends the process for a fault whose signal is blocked.
pub fn with_faults(work: impl FnOnce()) {
    let mut before = 0;
    set(libc::SIG_UNBLOCK, &FAULTS, &mut before);
    work();
    restore(before);
}

/// Blocks every signal. Returns the mask before.
pub fn block_all() -> Mask {
    let (all, mut before) = (Mask::MAX, 0);
    set(libc::SIG_SETMASK, &all, &mut before);
    before
}

/// What [`block_pipe`] found.
pub struct Pipe {
    before: Mask,
    /// A SIGPIPE was pending, which must stay.
    is_pending: bool,
}

/// Blocks SIGPIPE, which a write to a pipe without readers raises.
pub fn block_pipe() -> Pipe {
    let pipe = bit(libc::SIGPIPE);
    let (mut before, mut pending): (Mask, Mask) = (0, 0);
    set(libc::SIG_BLOCK, &pipe, &mut before);
    if before & pipe != 0 {
        // SAFETY: a place for a mask of the size that is passed.
        unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<Mask>()) };
    }
    Pipe { before, is_pending: pending & pipe != 0 }
}

/// Undoes [`block_pipe`]. Takes the signal back if a write between the two found no readers
/// (`is_raised`). Changes `errno`.
pub fn unblock_pipe(found: Pipe, is_raised: bool) {
    if is_raised && !found.is_pending {
        let pipe = bit(libc::SIGPIPE);
        let (info, mask_bytes) = (ptr::null_mut::<libc::siginfo_t>(), size_of::<Mask>());
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (pipe, no_time) = (&raw const pipe, &raw const no_time);
        // SAFETY: valid arguments, which outlive the call; nothing is asked about the signal.
        unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, pipe, info, no_time, mask_bytes) };
    }
    restore(found.before);
}

/// The mask.
pub fn blocked() -> Mask {
    let (none, mut now) = (0, 0);
    set(libc::SIG_BLOCK, &none, &mut now);
    now
}

/// Sets the mask to `mask`.
pub fn restore(mask: Mask) {
    set(libc::SIG_SETMASK, &mask, ptr::null_mut());
}

fn set(how: c_int, mask: &Mask, before: *mut Mask) {
    // SAFETY: each pointer is null or points to a mask of the size that is passed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, ptr::from_ref(mask), before, size_of::<Mask>()) };
}

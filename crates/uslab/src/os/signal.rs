//! The calling thread's mask of blocked signals, as the kernel keeps it.
//!
//! It uses system calls, because the C library's functions exclude its own two signals.

use super::weak;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

/// The kernel's set of signals: 64 of them.
pub type Mask = u64;

/// The signals that an instruction of the thread itself raises.
const FAULTS: Mask = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);

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

/// Unblocks SIGSYS on a library thread while the program has a handler for it, and else blocks it.
/// With a filter of system calls (`SECCOMP_RET_TRAP`) such a handler answers calls that the thread
/// makes. A program may add both at any time, so the thread calls this again at each look.
///
/// Limit: after both were added, the thread's calls between its sleep and its next look still find
/// the signal blocked; a call that the filter traps then ends the process. Only pressure sources,
/// limits and requests of other processes make it call the system there.
pub fn follow_filter() {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: reads the action to the place that is given.
    let is_known = unsafe { weak::sigaction(libc::SIGSYS, ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: read only where the call filled it.
    let is_handled = is_known
        && !matches!(unsafe { action.assume_init_ref() }.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    let how = if is_handled { libc::SIG_UNBLOCK } else { libc::SIG_BLOCK };
    set(how, &bit(libc::SIGSYS), ptr::null_mut());
}

/// Blocks every signal. Returns the mask before.
pub fn block_all() -> Mask {
    let (all, mut before) = (Mask::MAX, 0);
    set(libc::SIG_SETMASK, &all, &mut before);
    before
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

//! The calling thread's mask of blocked signals, as the kernel keeps it.
//!
//! By system calls: the C library's functions leave its own two signals out.

use core::ffi::c_int;
use core::ptr;

/// The kernel's set of signals: 64 of them.
pub type Mask = u64;

/// Blocks every signal; returns what was blocked before.
pub fn block_all() -> Mask {
    let (all, mut before) = (Mask::MAX, 0);
    set(libc::SIG_SETMASK, &all, &mut before);
    before
}

/// Blocks what `mask` says and nothing else.
pub fn restore(mask: Mask) {
    set(libc::SIG_SETMASK, &mask, ptr::null_mut());
}

fn set(how: c_int, mask: &Mask, before: *mut Mask) {
    // SAFETY: both are null or places of the size that is passed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, ptr::from_ref(mask), before, size_of::<Mask>()) };
}

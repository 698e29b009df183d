//! `sigaction` and its relatives: the program's handler of SIGSEGV runs behind the library's.
//!
//! ```text
//!   program ── sigaction(SIGSEGV) ──▶ guard pages on? ── yes ──▶ kept: runs behind the library's handler
//!                                           └── no ──▶ the C library
//! ```
//!
//! Without guard pages, and for all other signals, the functions do what the C library's do. A
//! program that makes the system call itself replaces the library's handler.
//!
//! All functions are async-signal-safe, as POSIX requires of `sigaction` and `signal`.

use core::ffi::{c_int, c_ulong};
use core::mem::MaybeUninit;
use libc::{SA_NODEFER, SA_RESETHAND, SA_RESTART, SIG_ERR, SIGSEGV, sighandler_t};
use uslab::internal::fault;

unsafe extern "C" {
    /// Another name of the C library's `signal`.
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t;
}

fn is_ours(signal: c_int) -> bool {
    signal == SIGSEGV && fault::is_installed()
}

/// `sigaction(2)`.
///
/// # Safety
/// As in POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if is_ours(signal) { fault::sigaction(new, old) } else { fault::system_sigaction(signal, new, old) }
    }
}

/// Exchanges the handler of `signal`, with these flags, and with itself alone blocked or with
/// nothing.
///
/// # Safety
/// As `sigaction`.
unsafe fn exchange(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: all zeroes are a valid action.
    let mut new = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    let mut old = new;
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if flags & SA_NODEFER == 0 && (1..=64).contains(&signal) {
        // SAFETY: the first word of the set has a bit for each signal.
        unsafe { (&raw mut new.sa_mask).cast::<c_ulong>().write_unaligned(1 << (signal - 1)) };
    }
    // SAFETY: the caller's promise, and two valid places.
    if unsafe { sigaction(signal, &new, &mut old) } == 0 { old.sa_sigaction } else { SIG_ERR }
}

/// `signal(2)`, with the meaning of BSD: the handler stays, and calls are restarted.
///
/// # Safety
/// As in the standard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe {
        if handler != SIG_ERR && is_ours(signal) {
            exchange(signal, handler, SA_RESTART)
        } else {
            ssignal(signal, handler)
        }
    }
}

/// `signal` with the meaning of System V: the handler serves once, and blocks nothing.
///
/// # Safety
/// As in the standard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    /// Calls are not restarted; the kernel ignores the flag.
    const SA_INTERRUPT: c_int = 0x2000_0000;
    if handler == SIG_ERR {
        uslab::internal::errno::set(libc::EINVAL);
        return SIG_ERR;
    }
    // SAFETY: the caller's promise.
    unsafe { exchange(signal, handler, SA_RESETHAND | SA_NODEFER | SA_INTERRUPT) }
}

/// See [`__sysv_signal`].
///
/// # Safety
/// As in the standard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { __sysv_signal(signal, handler) }
}

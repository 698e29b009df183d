//! `sigaction` and its relatives: the program's handler of SIGSEGV runs behind the library's.
//!
//! ```text
//!   program ── sigaction(SIGSEGV) ──▶ guard pages on? ── yes ──▶ kept: runs behind the library's handler
//!                                           └── no ──▶ the next library's function, or the C library's
//! ```
//!
//! Without guard pages, and for all other signals, each function calls the next one of its name in
//! the loader's order, which may be another preloaded library's. Before this library's constructor
//! has found it, the C library's second name serves. A program that makes the system call itself
//! replaces the library's handler, as does one that calls glibc's other names: `bsd_signal`,
//! `ssignal`, `sigset`, `sigvec` or `__sigaction`.
//!
//! All functions are async-signal-safe, as POSIX requires of `sigaction` and `signal`: `dlsym`,
//! which is not, runs at load alone.

use core::ffi::{CStr, c_int, c_ulong, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use libc::{SA_NODEFER, SA_RESETHAND, SA_RESTART, SIG_ERR, SIGSEGV, sighandler_t};
use uslab::internal::fault;

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

unsafe extern "C" {
    /// Another name of the C library's `signal`.
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t;
}

/// The function of a name that follows this library's; null before [`at_load`].
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

static SIGACTION: Next = Next::of(c"sigaction");
static SIGNAL: Next = Next::of(c"signal");
static SYSV_SIGNAL: Next = Next::of(c"sysv_signal");
static UNDERSCORED_SYSV_SIGNAL: Next = Next::of(c"__sysv_signal");

impl Next {
    const fn of(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    fn find(&self) {
        // SAFETY: the name is NUL-terminated; this object is one that the loader loaded.
        self.found.store(unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) }, Relaxed);
    }

    fn signal(&self) -> Option<Signal> {
        // SAFETY: the three relatives of `signal` have this type; null is `None`.
        unsafe { transmute::<*mut c_void, Option<Signal>>(self.found.load(Relaxed)) }
    }
}

/// Finds the next functions.
pub fn at_load() {
    for next in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &UNDERSCORED_SYSV_SIGNAL] {
        next.find();
    }
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
    // SAFETY: `sigaction` has this type; null is `None`.
    let next = unsafe { transmute::<*mut c_void, Option<Sigaction>>(SIGACTION.found.load(Relaxed)) };
    // SAFETY: the caller's promise.
    unsafe {
        match next {
            _ if is_ours(signal) => fault::sigaction(new, old),
            Some(next) => next(signal, new, old),
            None => fault::system_sigaction(signal, new, old),
        }
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
            SIGNAL.signal().unwrap_or(ssignal)(signal, handler)
        }
    }
}

/// `signal` with the meaning of System V: the handler serves once, and blocks nothing.
///
/// # Safety
/// As `sigaction`.
unsafe fn serve_once(next: &Next, signal: c_int, handler: sighandler_t) -> sighandler_t {
    /// Calls are not restarted; the kernel ignores the flag.
    const SA_INTERRUPT: c_int = 0x2000_0000;
    if handler == SIG_ERR {
        uslab::internal::errno::set(libc::EINVAL);
        return SIG_ERR;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match next.signal() {
            Some(next) if !is_ours(signal) => next(signal, handler),
            _ => exchange(signal, handler, SA_RESETHAND | SA_NODEFER | SA_INTERRUPT),
        }
    }
}

/// `sysv_signal(3)`.
///
/// # Safety
/// As in the standard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { serve_once(&SYSV_SIGNAL, signal, handler) }
}

/// The name under which glibc's headers give `signal` to programs of System V.
///
/// # Safety
/// As in the standard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { serve_once(&UNDERSCORED_SYSV_SIGNAL, signal, handler) }
}

//! The clock that the library reads, which stands still while operations are measured: they last
//! less than a millisecond of the model's time, and seconds of this machine's.
//!
//! This program's `clock_gettime` takes the place of the C library's, and calls it. So the library
//! is not built differently, and the trace sees the instructions of both.

use std::mem::transmute;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

type Function = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// What the coarse clock shows, in nanoseconds; 0 while it runs.
static STANDS_NS: AtomicI64 = AtomicI64::new(0);

const SECOND_NS: i64 = 1_000_000_000;

/// The clock of the C library, with the coarse one at a standstill after [`stop`].
///
/// # Safety
/// `time` must be a valid place to write to.
// SAFETY: the C library's name and type; this one takes its place on purpose.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    static REAL: OnceLock<Option<Function>> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        // SAFETY: the next definition of this name is the C library's, which has this type.
        unsafe {
            let found = libc::dlsym(libc::RTLD_NEXT, c"clock_gettime".as_ptr());
            (!found.is_null()).then(|| transmute::<*mut libc::c_void, Function>(found))
        }
    });
    // SAFETY: the caller's promise.
    unsafe {
        let result = match real {
            Some(real) => real(clock, time),
            None => libc::syscall(libc::SYS_clock_gettime, clock, time) as libc::c_int,
        };
        let stands_ns = STANDS_NS.load(Relaxed);
        if stands_ns != 0 && clock == libc::CLOCK_MONOTONIC_COARSE {
            time.write(libc::timespec { tv_sec: stands_ns / SECOND_NS, tv_nsec: stands_ns % SECOND_NS });
        }
        result
    }
}

/// Stops the coarse clock.
pub fn stop() {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place to write to.
    unsafe { clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    STANDS_NS.store(now.tv_sec * SECOND_NS + now.tv_nsec, Relaxed);
}

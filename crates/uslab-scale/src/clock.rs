//! The clock that the library reads, which stands still while operations are measured: they last
//! less than a millisecond of the model's time, and seconds of this machine's.
//!
//! The library reads clocks by the kernel's function. [`stop`] puts this program's in its place,
//! which calls the kernel's. So the library is not built differently, and the trace sees the
//! instructions of both.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use uslab::internal::vdso::{self, ClockGettime};

/// The kernel's function; none where the kernel gives none.
static KERNELS: OnceLock<Option<ClockGettime>> = OnceLock::new();
/// What the coarse clock shows once it stands, in nanoseconds.
static STANDS_NS: AtomicI64 = AtomicI64::new(0);

const SECOND_NS: i64 = 1_000_000_000;

/// The time of a clock that runs.
///
/// # Safety
/// `time` must be a valid place to write to.
unsafe fn running(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match KERNELS.get().copied().flatten() {
            Some(function) => function(clock, time),
            None => libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int,
        }
    }
}

/// As [`running`], but for the coarse clock, which stands.
///
/// # Safety
/// As [`running`].
unsafe extern "C" fn standing(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let result = running(clock, time);
        if clock == libc::CLOCK_MONOTONIC_COARSE {
            let stands_ns = STANDS_NS.load(Relaxed);
            time.write(libc::timespec { tv_sec: stands_ns / SECOND_NS, tv_nsec: stands_ns % SECOND_NS });
        }
        result
    }
}

/// Stops the coarse clock.
pub fn stop() {
    KERNELS.get_or_init(vdso::clock_gettime);
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place to write to.
    unsafe { running(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    STANDS_NS.store(now.tv_sec * SECOND_NS + now.tv_nsec, Relaxed);
    // SAFETY: the function writes the kernel's time, or the one that stands.
    unsafe { vdso::replace(standing) };
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    #[test]
    fn the_clock_of_the_library_stands_once_stopped() {
        let read = || uslab::internal::coarse_ms();
        let before = read();
        super::stop();
        let stopped = read();
        assert!(stopped >= before && stopped > 0);
        sleep(Duration::from_millis(50));
        assert_eq!(read(), stopped);
    }
}

//! Clocks: a coarse one for decays, a few nanoseconds to read, and the snapshot's start stamp.

use super::{calls, vdso};

/// Milliseconds of a coarse monotonic clock, which advances at the kernel's tick rate (100 to 1000
/// times a second).
pub fn coarse_ms() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    read(libc::CLOCK_REALTIME) / 1_000_000
}

/// Nanoseconds since boot.
pub fn boot_ns() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // An unknown clock leaves the time zero.
    match vdso::clock_gettime() {
        // SAFETY: the kernel's function, and a place for it to write to.
        Some(function) => unsafe { function(clock, &mut time) },
        None => calls::clock_gettime(clock, &mut time),
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

//! Random numbers for orders and places: fast, different in each process, not for secrets that are
//! shown.

use super::clock;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

static SEED: AtomicU64 = AtomicU64::new(0);

/// The process's seed, chosen at the first call: from the kernel's generator, or from the clock and
/// the library's address if a filter forbids that.
pub fn seed() -> u64 {
    let seed = SEED.load(Relaxed);
    if seed != 0 {
        return seed;
    }
    let mut fresh = 0u64;
    // SAFETY: the place has so many bytes.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, &raw mut fresh, size_of::<u64>(), 1) };
    if got != size_of::<u64>() as libc::c_long {
        fresh = clock::boot_ns() ^ (&raw const SEED).addr() as u64;
    }
    let fresh = fresh | 1;
    SEED.compare_exchange(0, fresh, Relaxed, Relaxed).err().unwrap_or(fresh)
}

/// The number of a sequence at `place`, with this process's seed.
pub fn at(place: u64) -> u64 {
    // SplitMix64 (Steele, Lea, Flood 2014).
    let mut z = seed().wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

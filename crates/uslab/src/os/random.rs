//! Random numbers for orders and places: fast, different in each process, not for secrets that are
//! shown.

use super::clock;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

static SEED: AtomicU64 = AtomicU64::new(0);

static SECOND: AtomicU64 = AtomicU64::new(0);

/// The process's seed, chosen at the first call: from the kernel's generator, or from the clock and
/// the library's address if a filter forbids that.
pub fn seed() -> u64 {
    chosen(&SEED)
}

/// Another seed, which no sequence of [`at`] shows.
fn second_seed() -> u64 {
    chosen(&SECOND)
}

#[inline]
fn chosen(place: &AtomicU64) -> u64 {
    match place.load(Relaxed) {
        0 => choose(place),
        seed => seed,
    }
}

#[cold]
fn choose(place: &AtomicU64) -> u64 {
    let mut fresh = 0u64;
    // SAFETY: the place has so many bytes.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, &raw mut fresh, size_of::<u64>(), 1) };
    if got != size_of::<u64>() as libc::c_long {
        fresh = clock::boot_ns() ^ (&raw const *place).addr() as u64;
    }
    let fresh = fresh | 1;
    place.compare_exchange(0, fresh, Relaxed, Relaxed).err().unwrap_or(fresh)
}

/// A number that follows from `place` and from two secrets of the process, and reveals neither.
#[inline]
pub fn keyed(place: u64) -> u64 {
    let product = u128::from(place ^ seed()) * u128::from(second_seed());
    (product >> 64) as u64 ^ product as u64
}

/// The number of a sequence at `place`, with this process's seed.
#[inline]
pub fn at(place: u64) -> u64 {
    // SplitMix64 (Steele, Lea, Flood 2014).
    let mut z = seed().wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

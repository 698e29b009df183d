//! Prefetch for loops of atomic instructions, and for walks.
//!
//! An atomic instruction waits for its cache line, and no later one overtakes it. So a loop of them
//! over memory outside the first-level cache takes the sum of all misses. With a prefetch the
//! misses overlap.

/// Prefetches the cache line at `place` for a write. A hint: any address is allowed, and the
/// function does nothing on architectures without a stable intrinsic for it.
#[inline(always)]
pub fn prefetch_for_write(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: a prefetch has no visible effect, for any address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    let _ = place;
}

/// As [`prefetch_for_write`], for a read: the line stays with other CPUs too.
#[inline(always)]
pub fn prefetch_for_read(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: as above.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    let _ = place;
}

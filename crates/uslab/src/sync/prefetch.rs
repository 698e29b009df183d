//! A word to the processor about memory that will be needed in some steps' time.
//!
//! Atomic instructions wait for their cache line and let nothing overtake them: a loop of them over memory that is not in the first cache takes the sum
//! of all misses. Asked for beforehand, the lines come side by side.

/// Asks for the cache line at `place`, which will be written. Only a hint: any address will do, and nothing is done where the processor has no
/// such instruction that Rust knows.
#[inline(always)]
pub fn prefetch_for_write(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: a prefetch has no effect that a program could see, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    let _ = place;
}

//! All assembly of the benchmark: a value that the compiler cannot follow, the time stamp counter,
//! and a chain of additions of known length.
//!
//! **Why not `std::hint::black_box`:** it sends its value through memory. A store and its forwarded
//! load cost as much as the fastest allocation measured here. They cost the most for allocators
//! that follow the pointer. An empty `asm!` with the value in a register costs nothing for any
//! contestant.
//!
//! **Must never:** allocate, call the system, or do work of its own: every timed loop contains this
//! code.

use std::arch::asm;

/// Returns the same pointer, about which the compiler then knows nothing. The compiler must assume
/// that memory was read and written. So it cannot remove an allocation, move it over another one,
/// or join it with its free.
#[inline(always)]
pub fn opaque<T>(mut pointer: *mut T) -> *mut T {
    // SAFETY: no instruction is emitted: the register keeps its value, and nothing is read or
    // written.
    unsafe { asm!("/* {0} */", inout(reg) pointer, options(nostack, preserves_flags)) };
    pointer
}

/// [`opaque`] for a number: a size that must reach the allocator as a run-time value, as it does
/// from most callers.
#[inline(always)]
pub fn opaque_size(mut size: usize) -> usize {
    // SAFETY: as in `opaque`.
    unsafe { asm!("/* {0} */", inout(reg) size, options(nostack, preserves_flags)) };
    size
}

/// Reads the time stamp counter, in its own ticks, after all earlier instructions have finished.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn ticks() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: both instructions are in every x86_64 processor; user mode may read the counter
    // wherever Linux allows vDSO clocks by it.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Reads the generic timer, in its own ticks, after all earlier instructions have finished.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn ticks() -> u64 {
    let now: u64;
    // SAFETY: reading CNTVCT_EL0 is allowed to user mode by Linux; ISB has no other effect than
    // ordering.
    unsafe { asm!("isb", "mrs {0}, cntvct_el0", "isb", out(reg) now, options(nostack, preserves_flags)) };
    now
}

/// Additions a turn. Each needs the one before, so each takes one core cycle on every processor of
/// these architectures.
pub const ADDS_PER_TURN: u64 = 16;

/// Runs `turns` turns of dependent additions: `turns * ADDS_PER_TURN` core cycles and a little for
/// the loop, whose own counting runs beside the chain.
#[inline(never)]
pub fn dependent_adds(turns: u64) {
    let mut value = turns;
    for _ in 0..turns {
        // SAFETY: additions in one register of our own.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                ".rept 16", "add {0}, {1}", ".endr",
                inout(reg) value, in(reg) turns, options(nostack, nomem)
            );
        }
        // SAFETY: additions in one register of our own.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                ".rept 16", "add {0}, {0}, {1}", ".endr",
                inout(reg) value, in(reg) turns, options(nostack, nomem)
            );
        }
    }
    opaque_size(value as usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_values_are_unchanged() {
        let mut x = 7u32;
        assert_eq!(opaque(&raw mut x), &raw mut x);
        assert_eq!(opaque_size(42), 42);
    }

    #[test]
    fn ticks_do_not_run_backwards() {
        let first = ticks();
        dependent_adds(100);
        assert!(ticks() >= first);
    }
}

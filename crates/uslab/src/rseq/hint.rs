//! A CPU for each thread, for locked mode: the one on which it made its last slow call.
//!
//! In locked mode the number of a CPU selects a slot. Any number is right; threads that share one
//! meet at its lock. To ask the kernel takes some nanoseconds on x86-64, and a system call where
//! the vDSO has no function for it, as on aarch64. So slow calls ask, and all other steps use the
//! hint. On a machine of several nodes each step asks.
//!
//! The hint lies in two words of the area that the thread's sequences read. The word from which
//! sequences take the CPU holds the hint modulo [`DUMMIES`], so a pop writes a dummy that few other
//! threads use: see [`super::area_numbers`]. The other word holds the hint plus 1, or 0 if there is
//! none. On aarch64 with glibc, and where no sequence is compiled, the words are static, and
//! threads with the same hash share a hint.

use super::arch;
use super::layout::DUMMIES;
use crate::os;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Stores `value` unless it is there: other threads may read the line.
#[inline]
fn store(place: &AtomicU32, value: u32) {
    if place.load(Relaxed) != value {
        place.store(value, Relaxed);
    }
}

/// Asks for the CPU that the calling thread runs on, and makes it the thread's hint.
pub(super) fn ask() -> usize {
    let cpu = os::cpu::current();
    set(cpu);
    cpu
}

fn set(cpu: usize) {
    let [number, hint] = arch::hint_words();
    store(number, (cpu % DUMMIES) as u32);
    store(hint, cpu as u32 + 1);
}

/// The calling thread's hint. Asks the kernel if there is none, and on a machine of several nodes,
/// where the CPU decides which memory a thread gets.
#[inline]
pub(super) fn get() -> usize {
    let [_, hint] = arch::hint_words();
    match hint.load(Relaxed) {
        0 => ask(),
        _ if os::cpu::has_nodes() => os::cpu::current(),
        hint => hint as usize - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_stays_until_the_next_one() {
        if super::super::mode() == super::super::Mode::Rseq {
            return;
        }
        // On a thread of its own, so that no other test sets the hint of this one.
        let holds = std::thread::spawn(|| {
            set(DUMMIES + 7);
            let is_kept = os::cpu::has_nodes() || get() == DUMMIES + 7;
            is_kept && arch::hint_words()[0].load(Relaxed) == 7
        });
        assert!(holds.join().expect("the thread ends"));
    }
}

//! False sharing that the allocator passes on: the pattern of cache-scratch, by E. Berger, K.
//! McKinley, R. Blumofe and P. Wilson, "Hoard: A Scalable Memory Allocator for Multithreaded
//! Applications" (ASPLOS 2000).
//!
//! ```text
//!   caller:   allocates one small object for each thread: neighbours, most likely on one line
//!   threads:  free the object they were given, then again and again: allocate one, write it, free
//! ```
//!
//! An allocator that gives a thread the piece of a shared line that it has just freed makes the
//! threads write one line by turns for ever, which costs many times what the writes cost. What is
//! counted is the writes.
//!
//! Must never: let the compiler join the writes.

use super::crew::Seat;
use super::objects::obtain;
use crate::asm::{opaque, opaque_size};
use crate::contestants::Contestant;
use std::sync::atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Release};

/// The size of an object.
pub const BYTES: usize = 8;

/// Writes to each object.
pub const WRITES: usize = 100;

/// Objects that one repetition allocates in each thread.
pub const OBJECTS: usize = 100;

pub struct ScratchRound {
    repeats: usize,
    given: Vec<AtomicPtr<u8>>,
}

impl ScratchRound {
    /// [`give_objects`] comes next.
    pub fn new(threads: usize, repeats: usize) -> Self {
        Self { repeats, given: (0..threads).map(|_| AtomicPtr::default()).collect() }
    }
}

/// Allocates what the threads are given, in the caller.
pub fn give_objects<C: Contestant>(round: &ScratchRound) {
    for place in &round.given {
        place.store(obtain::<C, false>(BYTES), Release);
    }
}

pub fn run<C: Contestant>(round: &ScratchRound, seat: &Seat) {
    let given = round.given[seat.index].swap(std::ptr::null_mut(), AcqRel);
    assert!(!given.is_null(), "the caller has given nothing");
    seat.start();
    // SAFETY: `give_objects` allocated it with the same contestant, whose round this is; no
    // other thread takes it.
    unsafe {
        scribble(given);
        C::free(given, BYTES);
    }
    scratch::<C>(round.repeats * OBJECTS);
    seat.stop();
}

#[inline(never)]
fn scratch<C: Contestant>(objects: usize) {
    let size = opaque_size(BYTES);
    for _ in 0..objects {
        let object = opaque(obtain::<C, false>(size));
        // SAFETY: allocated a line above, freed once.
        unsafe {
            object.write(0);
            scribble(object);
            C::free(object, size);
        }
    }
}

/// # Safety
/// `object` is live, of a byte at least, and used by this thread alone.
#[inline(always)]
unsafe fn scribble(object: *mut u8) {
    for i in 0..WRITES {
        // SAFETY: the caller's promise.
        unsafe { object.write_volatile(i as u8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::InThread;
    use crate::rounds::crew::tests::{all_that_malloc, in_crew};
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Acquire;

    #[test]
    fn everybody_takes_what_was_given() {
        let _in_thread = InThread::enter();
        for entry in all_that_malloc() {
            let round = Arc::new(ScratchRound::new(3, 2));
            (entry.scratch_objects)(&round);
            let same = Arc::clone(&round);
            in_crew(3, move |seat| (entry.cache_scratch)(&same, seat));
            assert!(round.given.iter().all(|place| place.load(Acquire).is_null()));
        }
    }
}

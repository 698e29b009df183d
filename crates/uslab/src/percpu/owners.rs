//! Owners that send each push to the slow path: 64 bytes each, whatever the number of CPUs.
//!
//! The page map names an owner for a slab's pages: a row of slots, of which a push reads the one
//! with its thread's number ([`crate::rseq::area_numbers`]). Every slot here has a dummy that
//! pushes alone read. So the rows of owners may overlap: each row starts one slot behind the row
//! before.
//!
//! ```text
//!   array   │ dummy │ dummy │ dummy │ dummy │ dummy │ …
//!   owner 0   cpu 0   cpu 1   cpu 2
//!   owner 1           cpu 0   cpu 1   cpu 2
//! ```
//!
//! Bare slabs of heaps have such owners (`malloc::owners`), and in locked mode all caches.

use super::rows::alloc_row;
use crate::os::Lock;
use crate::rseq::{Slot, area_numbers, dummy_for_pushes};
use crate::sync::Rank;

/// Owners of an array of [`take`].
const OWNERS: usize = 64;

/// The owners of the last array that have not been taken.
struct Fresh {
    first: *mut Slot,
    left: usize,
}
// SAFETY: no other structure or thread has these owners.
unsafe impl Send for Fresh {}

static FRESH: Lock<Fresh> = Lock::new(Rank::Heap, Fresh { first: core::ptr::null_mut(), left: 0 });

/// Makes an array of `owners` owners for a machine of `cpus` CPUs; returns the first. Null if boot
/// memory is used up.
pub fn make_array(owners: usize, cpus: usize) -> *mut Slot {
    let slots = owners + area_numbers(cpus);
    let array = alloc_row(slots);
    if !array.is_null() {
        // SAFETY: fresh memory for so many slots.
        (0..slots).for_each(|n| unsafe { array.add(n).write(Slot::holding(dummy_for_pushes())) });
    }
    array
}

/// Takes an owner for ever, on a machine of `cpus` CPUs. Null if boot memory is used up. Forks must
/// be kept out, as the registry's lock does.
pub fn take(cpus: usize) -> *mut Slot {
    let mut fresh = FRESH.lock();
    if fresh.left == 0 {
        let array = make_array(OWNERS, cpus);
        if array.is_null() {
            return array;
        }
        (fresh.first, fresh.left) = (array, OWNERS);
    }
    let owner = fresh.first;
    (fresh.first, fresh.left) = (owner.wrapping_add(1), fresh.left - 1);
    owner
}

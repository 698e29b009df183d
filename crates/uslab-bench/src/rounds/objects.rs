//! Objects taken and given back inside the timed loops: one, or a slice of them.

use crate::asm::opaque;
use crate::contestants::{Contestant, out_of_memory};

/// An object, with its first word written if TOUCH. Ends the program where there is none.
#[inline(always)]
pub fn obtain<C: Contestant, const TOUCH: bool>(size: usize) -> *mut u8 {
    let object = C::alloc(size);
    if object.is_null() {
        out_of_memory(C::NAME);
    }
    if TOUCH {
        // SAFETY: fresh memory of at least 8 bytes, aligned to 8 at least by every contestant.
        unsafe { object.cast::<usize>().write(size) };
    }
    object
}

/// Fills `slots`, by one bulk call if BULK.
#[inline(always)]
pub fn fill<C: Contestant, const BULK: bool, const TOUCH: bool>(size: usize, slots: &mut [*mut u8]) {
    if BULK && !C::alloc_bulk(size, slots) {
        out_of_memory(C::NAME);
    }
    for slot in slots.iter_mut() {
        if !BULK {
            *slot = obtain::<C, TOUCH>(size);
        } else if TOUCH {
            // SAFETY: as in `obtain`.
            unsafe { slot.cast::<usize>().write(size) };
        }
    }
    opaque(slots.as_mut_ptr());
}

/// # Safety
/// Each of `slots` is live, from `fill::<C, _, _>(size)`, and freed by this call alone.
#[inline(always)]
pub unsafe fn empty<C: Contestant, const BULK: bool>(size: usize, slots: &[*mut u8]) {
    // SAFETY: the caller's promise is the same, of all and of each.
    unsafe {
        if BULK {
            C::free_bulk(size, slots);
        } else {
            slots.iter().for_each(|&object| C::free(object, size));
        }
    }
}

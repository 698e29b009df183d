//! Owners for bare slabs: 64 bytes each, whatever the number of CPUs.
//!
//! Bare slabs serve a heap's size class before it has a cache. A push on CPU `n` reads the
//! slot `n` places after the owner's. Every slot here has the dummy, so owners may overlap: each
//! begins one slot after the one before.
//!
//! ```text
//!   array   │ dummy │ dummy │ dummy │ dummy │ dummy │ …
//!   owner 0   cpu 0   cpu 1   cpu 2
//!   owner 1           cpu 0   cpu 1   cpu 2
//! ```
//!
//! The arrays are never given back. Owners are taken from the store of this CPU, or from those of
//! others, before a new array is made: so there are as many as were ever in use at a time.

use crate::cache::start;
use crate::os::Lock;
use crate::os::invariant::{assert_valid, invariant};
use crate::pages::boot;
use crate::rseq::{Cpu, Owner, Slot, dummy};
use crate::sync::{CachePadded, Rank};
use core::sync::atomic::{Ordering::Relaxed, Ordering::Release};

mod valid;
pub use valid::check;

/// Owners of an array for each CPU: the array ends with a slot for each, which is no owner.
const OWNERS_PER_CPU: usize = 4;
/// Lower bound of the owners of an array.
const MIN_OWNERS: usize = 64;
/// Owners moved from one store to another at a time.
const MOVED: usize = 32;
const STORES: usize = 16;

/// Free owners, linked through their contexts, and those of an array that were never used.
struct Store {
    free: *mut Slot,
    fresh: *mut Slot,
    fresh_left: usize,
}
// SAFETY: what a store holds is in no other thread's hands.
unsafe impl Send for Store {}

static OWNERS: [CachePadded<Lock<Store>>; STORES] = [const {
    CachePadded(Lock::new(
        Rank::Heap,
        Store { free: core::ptr::null_mut(), fresh: core::ptr::null_mut(), fresh_left: 0 },
    ))
}; STORES];

impl Store {
    fn pop(&mut self) -> Option<*mut Slot> {
        // SAFETY: free owners are valid slots for ever; their links are the lock's.
        if let Some(slot) = unsafe { self.free.as_ref() } {
            let taken = self.free;
            self.free = slot.context().load(Relaxed).cast();
            return Some(taken);
        }
        self.fresh_left = self.fresh_left.checked_sub(1)?;
        let taken = self.fresh;
        self.fresh = taken.wrapping_add(1);
        Some(taken)
    }

    fn push(&mut self, slot: *mut Slot) {
        // SAFETY: as above.
        unsafe { (*slot).context().store(self.free.cast(), Relaxed) };
        self.free = slot;
        self.assert_pushed(slot);
    }

    /// Makes an array; `None` where metadata have no room left.
    fn fill(&mut self) -> Option<()> {
        let owners = MIN_OWNERS.max(OWNERS_PER_CPU * start::cpus());
        let slots = owners + start::cpus();
        let array = boot::alloc(slots * size_of::<Slot>(), align_of::<Slot>()).cast::<Slot>();
        if array.is_null() {
            return None;
        }
        for n in 0..slots {
            // SAFETY: fresh memory for so many slots.
            unsafe { array.add(n).write(Slot::holding(dummy())) };
        }
        (self.fresh, self.fresh_left) = (array, owners);
        Some(())
    }
}

/// The store that this CPU uses, with others.
fn home() -> &'static Lock<Store> {
    Cpu::current().shared(&OWNERS).unwrap_or(&OWNERS[0])
}

/// An owner with this id and context; `None` where metadata have no room left.
pub(super) fn take(id: u16, context: *mut u8) -> Option<Owner> {
    let slot = take_slot()?;
    assert_valid(|| valid::check_free(slot));
    invariant!(!context.is_null(), "an owner of bare slabs has a context", id);
    // SAFETY: a slot that no other thread uses, followed by one for each CPU, for ever.
    unsafe {
        (*slot).id.store(u32::from(id), Relaxed);
        (*slot).context().store(context.cast(), Release);
        Some(Owner::of_slots(slot))
    }
}

fn take_slot() -> Option<*mut Slot> {
    let home = home();
    if let Some(slot) = home.lock().pop() {
        return Some(slot);
    }
    for other in OWNERS.iter().filter(|store| !core::ptr::eq(&store.0, home)) {
        let mut moved = [core::ptr::null_mut(); MOVED];
        {
            let mut store = other.lock();
            moved.iter_mut().map_while(|place| store.pop().map(|slot| *place = slot)).for_each(drop);
        }
        if !moved[0].is_null() {
            let mut store = home.lock();
            moved[1..].iter().filter(|slot| !slot.is_null()).for_each(|&slot| store.push(slot));
            return Some(moved[0]);
        }
    }
    let mut store = home.lock();
    store.pop().or_else(|| store.fill().and_then(|()| store.pop()))
}

/// Takes an owner back. No page may have it any more.
pub(super) fn free(owner: Owner) {
    let slot = owner.slots();
    invariant!(owner != Owner::NONE, "an owner that is freed was taken", owner.slots());
    // SAFETY: `take` gave it out.
    unsafe { (*slot).id.store(u32::from(Owner::NONE.id()), Relaxed) };
    home().lock().push(slot);
}

pub(super) fn lock_for_fork() {
    OWNERS.iter().for_each(|store| store.acquire_for_fork());
}

pub(super) fn unlock_after_fork(child: bool) {
    for store in &OWNERS {
        if child { store.reset_in_child() } else { store.release_after_fork() }
    }
}

//! Owners for bare slabs, which serve a heap's size class before it has a cache: see
//! [`crate::percpu::owners`].
//!
//! The arrays of owners are never freed. A thread takes an owner from the store of its CPU, or else
//! from another store, before it makes a new array. So the arrays hold about as many owners as were
//! ever in use at one time.

use crate::cache::start;
use crate::os::Lock;
use crate::os::invariant::{assert_valid, invariant};
use crate::percpu::owners::make_array;
use crate::rseq::{Cpu, Owner, Slot, area_numbers};
use crate::sync::{CachePadded, Rank};
use core::sync::atomic::{Ordering::Relaxed, Ordering::Release};

mod valid;
pub use valid::check;

/// Owners of an array for each slot behind its last owner ([`make_array`]).
const OWNERS_PER_SLOT: usize = 4;
/// Lower bound of the owners of an array.
const MIN_OWNERS: usize = 64;
/// Owners that a thread moves from one store to another at a time.
const MOVED: usize = 32;
/// Number of stores; CPUs share them.
const STORES: usize = 16;

/// Free owners, linked through their contexts, and the owners of an array that were never used.
struct Store {
    free: *mut Slot,
    fresh: *mut Slot,
    fresh_left: usize,
}
// SAFETY: no other structure or thread has the owners of a store.
unsafe impl Send for Store {}

static OWNERS: [CachePadded<Lock<Store>>; STORES] = [const {
    CachePadded(Lock::new(
        Rank::Heap,
        Store { free: core::ptr::null_mut(), fresh: core::ptr::null_mut(), fresh_left: 0 },
    ))
}; STORES];

impl Store {
    fn pop(&mut self) -> Option<*mut Slot> {
        // SAFETY: free owners are valid slots for ever; the store's lock guards their links.
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

    /// Makes an array of owners; `None` if boot memory is used up.
    fn fill(&mut self) -> Option<()> {
        let owners = MIN_OWNERS.max(OWNERS_PER_SLOT * area_numbers(start::cpus()));
        let array = make_array(owners, start::cpus());
        if array.is_null() {
            return None;
        }
        (self.fresh, self.fresh_left) = (array, owners);
        Some(())
    }
}

/// The store of this CPU, which it shares with other CPUs.
fn home() -> &'static Lock<Store> {
    Cpu::current().shared(&OWNERS).unwrap_or(&OWNERS[0])
}

/// Takes an owner and gives it this id and context; `None` if boot memory is used up.
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

/// Frees an owner. No page may have it in the page map any more.
pub(super) fn free(owner: Owner) {
    let slot = owner.slots();
    invariant!(owner != Owner::NONE, "an owner that is freed was taken", owner.slots());
    // SAFETY: the owner came from `take`, so it is a valid slot.
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

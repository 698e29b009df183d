//! The users of objects without a record of their own: a table of fixed size, by address.
//!
//! An object has one place, by a hash of its address. Another object with the same hash takes over
//! the place, and the table forgets the older one. So the table keeps the history of the objects
//! that were used last, in bounded memory.
//!
//! A thread locks a place while it works on it. A thread that finds the place locked gives up: the
//! place is about to belong to another object. The address is zero meanwhile, so that in a fork
//! child, where the lock stays for ever, the place shows nothing.

use crate::cache::debugged::{Track, User};
use crate::os;
use crate::os::unwind::MAX_FRAMES;
use crate::pages::{self, Fill, Temperature};
use crate::report::Event;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Objects whose users the table keeps; 64 bytes each.
const PLACES: usize = 1 << 15;
const BYTES: usize = PLACES * size_of::<Place>();

/// The users of one object; free when all zero.
#[repr(C)]
struct Place {
    is_locked: AtomicBool,
    period: AtomicU32,
    /// The object; 0 for none.
    object: AtomicUsize,
    users: [Track; 2],
}

const _: () = assert!(size_of::<Place>() == 64);

static PLACES_START: AtomicPtr<Place> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the table, unless there is one; false if memory is used up. The caller must hold no lock.
pub fn ensure() -> bool {
    if !PLACES_START.load(Acquire).is_null() {
        return true;
    }
    let _errno = os::errno::Preserved::new();
    let Some(run) = pages::alloc(BYTES / pages::PAGE_BYTES, 0, Temperature::Cold, Fill::Sparse) else {
        return false;
    };
    let start = pages::address_of(run.first);
    if !run.zeroed {
        // SAFETY: the run is this call's alone, of that size.
        unsafe { start.write_bytes(0, BYTES) };
    }
    if PLACES_START.compare_exchange(core::ptr::null_mut(), start.cast(), AcqRel, Acquire).is_err() {
        pages::free(run.first, run.pages, Temperature::Cold);
    }
    true
}

/// The place of an object; `None` while there is no table.
fn place_of(object: usize) -> Option<&'static Place> {
    let index = (object as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.trailing_zeros());
    let start = PLACES_START.load(Acquire);
    // SAFETY: the table lives for ever, is zeroed at first, which is valid, and has as many places.
    (!start.is_null()).then(|| unsafe { &*start.add(index as usize) })
}

/// A locked place.
struct Locked(&'static Place);

impl Locked {
    fn of(object: usize) -> Option<Locked> {
        let place = place_of(object)?;
        (!place.is_locked.swap(true, Acquire)).then_some(Locked(place))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Release);
    }
}

/// Records the calling thread as a user of `object` in `period`.
pub fn note(object: usize, period: u32, user: User) {
    let Some(Locked(place)) = &Locked::of(object) else { return };
    let is_known = place.object.swap(0, Relaxed) == object && place.period.load(Relaxed) == period;
    // What was freed before this allocation is another life of the object.
    if !is_known || user == User::Allocated {
        place.users.iter().for_each(Track::forget);
    }
    place.users[user as usize].note();
    place.period.store(period, Relaxed);
    place.object.store(object, Relaxed);
}

/// The last allocation and the last free of `object` in `period`, as far as they are known.
pub fn events<'a>(
    object: usize,
    period: u32,
    allocated: &'a mut [usize; MAX_FRAMES],
    freed: &'a mut [usize; MAX_FRAMES],
) -> [Option<Event<'a>>; 2] {
    match &Locked::of(object) {
        Some(Locked(place))
            if place.object.load(Relaxed) == object && place.period.load(Relaxed) == period =>
        {
            [place.users[0].event(allocated), place.users[1].event(freed)]
        }
        _ => [None, None],
    }
}

//! Samples among the objects of the program's caches, and of private heaps' caches.
//!
//! ```text
//!   Cache::alloc ─▶ slow path ─▶ countdown of bytes ends ─▶ sample: site, address of the object
//!   Cache::free  ─▶ slow path ─▶ address of a sample? ─▶ it ends
//! ```
//!
//! The free of an object of a cache names slots, and asks no page map. So a sampled object stays
//! one of its slab, and the samples' table knows it by its address. While a cache is followed
//! (`cache/profiled.rs`) each of its calls takes the slow path, where a countdown is exact.
//!
//! A thread's own sheaf (`Cache::local`) cannot be taken away from it. Its pops are not counted,
//! and its pushes not seen, until its next refill or flush. A sample that ends unseen that way ends
//! when the cache serves its address again.

use super::table;
use super::{count_down, note, state};
use crate::cache::{self, Core, Counter};
use crate::os;

static COUNTER: Counter = Counter { allocated, freed, ended };

/// Counts the allocations of all caches of the program and of heaps. The caller holds no lock.
pub(super) fn begin_counting() {
    cache::begin_counting(&COUNTER, || state::period_bytes() != 0);
}

/// Counts none any more, unless the profile runs again; samples in use are followed.
pub(super) fn end_counting() {
    cache::end_counting(|| state::period_bytes() == 0);
}

fn allocated(core: &Core, objects: &[*mut u8]) {
    let (period, bytes) = (state::period_bytes(), core.user_bytes());
    for &object in objects {
        if core.has_samples() {
            freed(core, object);
        }
        if period != 0 && count_down(bytes, period) {
            sample(core, object, bytes, period);
        }
    }
}

#[cold]
#[inline(never)]
fn sample(core: &Core, object: *mut u8, bytes: usize, period: u64) {
    if !core.add_sample() {
        return;
    }
    let _errno = os::errno::Preserved::new();
    let is_noted = label_of(core).is_some_and(|label| {
        let object = object_of(core, object);
        note(label, bytes, bytes, period, object).is_some()
    });
    if !is_noted {
        core.remove_sample();
    }
}

/// The index of the cache's name in the profile. Caches of one name and size share it, and so do
/// heaps where there are many names.
fn label_of(core: &Core) -> Option<u16> {
    let label = core.label();
    if label != 0 {
        return u16::try_from(label).ok();
    }
    let make = if core.is_of_heap() { table::label_of_heap } else { table::label };
    let label = make(core.name(), core.user_bytes())?;
    core.set_label(u32::from(label));
    Some(label)
}

fn object_of(core: &Core, object: *mut u8) -> table::Object {
    table::Object { address: object.addr(), cache: core.id(), tag: core.id() }
}

fn freed(core: &Core, object: *mut u8) {
    if table::end_of(object_of(core, object)) {
        core.remove_sample();
    }
}

fn ended(core: &Core) {
    table::end_all(core.id(), core.id(), |_| true);
}

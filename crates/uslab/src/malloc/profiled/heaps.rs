//! Samples among the objects of private heaps.
//!
//! ```text
//!   Heap::alloc ─▶ bare slabs ─▶ countdown of bytes ends ─▶ sample: site, address of the object
//!              └─▶ cache: see `caches`
//!              └─▶ large object ─▶ countdown ─▶ sample: its number is in the descriptor
//! ```
//!
//! A class without a cache serves each call under a lock, so a countdown is exact there. Bare slabs
//! of all heaps share their ids: the page map tells whose an object is when a heap ends. A cache of
//! a heap is followed as one of the program. None of it adds an instruction to the fast path.

use super::table::{self, Object};
use super::{LARGE, count_down, note, record, state};
use crate::malloc::large;
use crate::pages::{self, PAGE_BYTES};
use crate::rseq::Owner;

/// Counts an object of `bytes` bytes that the bare slabs of `owner`, in a heap called `name`,
/// serve. Returns whether it is a sample.
#[inline]
pub(in crate::malloc) fn count_bare(owner: Owner, name: &str, object: *mut u8, bytes: usize) -> bool {
    let period = state::period_bytes();
    period != 0 && count_down(bytes, period) && sample_bare(owner, name, object, bytes, period)
}

fn object_of(owner: Owner, object: *mut u8) -> Object {
    Object { address: object.addr(), cache: owner.id(), tag: tag(owner) }
}

/// Bare slabs of all heaps share their ids; their slots are their own.
fn tag(owner: Owner) -> u16 {
    ((owner.slots().addr() as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

#[cold]
#[inline(never)]
fn sample_bare(owner: Owner, name: &str, object: *mut u8, bytes: usize, period: u64) -> bool {
    let object = object_of(owner, object);
    table::label_of_heap(name, bytes).is_some_and(|label| note(label, bytes, bytes, period, object).is_some())
}

/// Notes that the program frees an object of bare slabs that have samples. Returns whether it was
/// one.
#[cold]
pub(in crate::malloc) fn free_bare(owner: Owner, object: *mut u8) -> bool {
    table::end_of(object_of(owner, object))
}

/// Ends the samples of bare slabs that go, which still own their pages.
#[cold]
pub(in crate::malloc) fn end_bare(owner: Owner) {
    table::end_all(owner.id(), tag(owner), |address| pages::owner_of(address as *const u8) == Some(owner));
}

/// Counts a large object of a heap, of `size` bytes.
#[inline]
pub(in crate::malloc) fn count_large(object: *mut u8, size: usize) {
    let (period, bytes) = (state::period_bytes(), size.next_multiple_of(PAGE_BYTES));
    if period != 0 && count_down(bytes, period) {
        sample_large(object, bytes, size, period);
    }
}

#[cold]
#[inline(never)]
fn sample_large(object: *mut u8, bytes: usize, size: usize, period: u64) {
    let _errno = crate::os::errno::Preserved::new();
    if let Some(number) = record(LARGE, bytes, size, period) {
        large::set_sample(object, number, 0);
    }
}

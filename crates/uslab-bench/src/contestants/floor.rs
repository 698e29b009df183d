//! Two references beside the malloc tables: pairs of calls that do almost nothing. Neither is an
//! allocator, and neither counts as a peer.
//!
//! *Empty calls* hand out one static object: the cost of calling two C functions in that loop. *A
//! bare array* does the least that a malloc can do. A table maps the size to its class, an array
//! holds the class's objects, and a map of pages leads from a pointer back to its class. It has no
//! protection from other threads or wrong frees, and no thread-local storage: the difference to an
//! allocator is the cost of protection.
//!
//! Must never: be used by two threads at once (the second would get the first's objects), grow past
//! the static arena, or be judged.

use super::{About, Contestant};
use crate::asm::opaque;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering::Relaxed};

const PAGE_BITS: usize = 12;
/// Addresses alone until they are used: enough for ten thousand objects of every size.
const ARENA_BYTES: usize = 512 << 20;
/// Pages that an empty class gets.
const RUN_BYTES: usize = 64 << 10;
/// The powers of two from 8 bytes; a round number, so that a mask keeps the index within bounds.
const CLASSES: usize = 16;
const LARGEST_BYTES: usize = 16 << 10;
/// Free objects of a class, at most.
const SLOTS: usize = 16384;

#[repr(C, align(4096))]
struct Arena(UnsafeCell<[u8; ARENA_BYTES]>);

// SAFETY: only addresses into it are handed out here; nothing here reads or writes it.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; ARENA_BYTES]));

/// No allocator: hands out one static object and takes it back. A round with it shows the cost of
/// the round itself, which is large for a hand-over between threads.
pub struct NoAllocator;

impl Contestant for NoAllocator {
    const NAME: &'static str = "nothing (the round itself)";

    fn about() -> About {
        About::new(Self::NAME, "-", "hands out one static object")
    }

    #[inline(always)]
    fn alloc(_size: usize) -> *mut u8 {
        ARENA.0.get().cast()
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        opaque(pointer);
    }
}

pub struct EmptyCalls;

#[inline(never)]
extern "C" fn empty_alloc(_size: usize) -> *mut u8 {
    opaque(ARENA.0.get().cast())
}

#[inline(never)]
extern "C" fn empty_free(pointer: *mut u8) {
    opaque(pointer);
}

impl Contestant for EmptyCalls {
    const NAME: &'static str = "empty calls";

    fn about() -> About {
        About::new(Self::NAME, "-", "two C functions that hand out and take one static object")
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        empty_alloc(size)
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        empty_free(pointer);
    }
}

/// The free objects of a class. Relaxed atomics are plain loads and stores: they keep the array
/// within its bounds from any caller, and protect nothing else.
struct Stack {
    count: AtomicUsize,
    slots: [AtomicPtr<u8>; SLOTS],
}

static STACKS: [Stack; CLASSES] = [const {
    Stack { count: AtomicUsize::new(0), slots: [const { AtomicPtr::new(std::ptr::null_mut()) }; SLOTS] }
}; CLASSES];

/// The class of each size, eight bytes apart: the power of two that holds it.
static CLASS_OF_SIZE: [u8; LARGEST_BYTES / 8 + 1] = {
    let mut classes = [0; LARGEST_BYTES / 8 + 1];
    let mut eighths = 1;
    while eighths < classes.len() {
        classes[eighths] = eighths.next_power_of_two().trailing_zeros() as u8;
        eighths += 1;
    }
    classes
};

/// The class of each page of the arena.
static CLASS_OF_PAGE: [AtomicU8; ARENA_BYTES >> PAGE_BITS] =
    [const { AtomicU8::new(0) }; ARENA_BYTES >> PAGE_BITS];

static ARENA_USED_BYTES: AtomicUsize = AtomicUsize::new(0);

pub struct BareArray;

#[inline(never)]
extern "C" fn array_alloc(size: usize) -> *mut u8 {
    let Some(&class) = CLASS_OF_SIZE.get(size.div_ceil(8)) else { return std::ptr::null_mut() };
    let stack = &STACKS[class as usize % CLASSES];
    let top = stack.count.load(Relaxed).wrapping_sub(1);
    match stack.slots.get(top) {
        Some(slot) => {
            stack.count.store(top, Relaxed);
            slot.load(Relaxed)
        }
        None => refill(class),
    }
}

/// Takes pages for an empty class; null when the arena is used up.
#[cold]
#[inline(never)]
extern "C" fn refill(class: u8) -> *mut u8 {
    let start = ARENA_USED_BYTES.fetch_add(RUN_BYTES, Relaxed);
    if start + RUN_BYTES > ARENA_BYTES {
        return std::ptr::null_mut();
    }
    let first = ARENA.0.get().cast::<u8>().wrapping_add(start);
    for page in &CLASS_OF_PAGE[start >> PAGE_BITS..(start + RUN_BYTES) >> PAGE_BITS] {
        page.store(class, Relaxed);
    }
    for offset in (8 << class..RUN_BYTES).step_by(8 << class) {
        array_free(first.wrapping_add(offset));
    }
    first
}

#[inline(never)]
extern "C" fn array_free(pointer: *mut u8) {
    let page = pointer.addr().wrapping_sub(ARENA.0.get().addr()) >> PAGE_BITS;
    // Pointers outside the arena, and those for which the array has no room, are dropped.
    let Some(class) = CLASS_OF_PAGE.get(page) else { return };
    let stack = &STACKS[class.load(Relaxed) as usize % CLASSES];
    let count = stack.count.load(Relaxed);
    if let Some(slot) = stack.slots.get(count) {
        slot.store(pointer, Relaxed);
        stack.count.store(count + 1, Relaxed);
    }
}

impl Contestant for BareArray {
    const NAME: &'static str = "bare array";

    fn about() -> About {
        About::new(
            Self::NAME,
            "-",
            "two C functions with a size table, a page map and one static array a class: not thread-safe",
        )
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        array_alloc(size)
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        array_free(pointer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_sizes() {
        for size in 1..=LARGEST_BYTES {
            let bytes = 8usize << CLASS_OF_SIZE[size.div_ceil(8)];
            assert!(bytes >= size && bytes < 2 * size.max(8), "{size}: {bytes}");
        }
        assert!(array_alloc(LARGEST_BYTES + 1).is_null());
    }
}

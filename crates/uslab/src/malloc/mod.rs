//! malloc: any size, out of size classes that are caches, and page runs for what is larger.
//!
//! ```text
//!  size ≤ 1 KiB    ──table──▶ slots ──▶ pop          40 classes, four to a doubling from 128 bytes
//!  size ≤ 32 KiB   ──table, one call away──▶ slots ──▶ pop
//!  size > 32 KiB   ──────────▶ page run, described in its first page's descriptor
//!  free(pointer)   ──page map──▶ slots ──▶ push      an object of any cache
//!  free(p, size)   ──table──▶ slots ──▶ push         no look at the page map: the cheap path
//! ```
//!
//! These are the plain functions; the C symbols, [`crate::Uslab`] for Rust and [`crate::Heap`]
//! stand on them. Every function may be called from any thread, before the C library is set up, in
//! fork children and after `exit` began; none from a signal handler that may have interrupted one
//! of them.

mod allocator;
mod bare;
mod caller;
pub mod classes;
mod global;
mod heap;
mod large;
mod list;
mod owners;
mod small;
#[cfg(test)]
mod tests;

#[cfg(feature = "allocator-api2")]
pub use allocator::HeapAllocator;
pub use caller::{AnyCaller, Caller, Program, serve, serve_program, serve_resized, serve_zeroed};
pub use global::Uslab;
pub use heap::Heap;

use crate::cache::hooks::{self, Hooks};
use crate::cache::registry::{self, LARGE_ID};
use crate::cache::start;
use crate::os;
use crate::pages;
use crate::rseq::{self, Pushed};
use crate::slab::{Misuse, report_misuse};
use bare::Bare;
use classes::Class;
use core::ptr;

/// Alignment of every result.
pub const ALIGN: usize = 16;

/// `size` bytes, uninitialised, aligned to 16; null with `errno` ENOMEM if there is no memory. 0
/// bytes are an object of their own.
#[inline(always)]
pub fn malloc(size: usize) -> *mut u8 {
    malloc_for::<AnyCaller>(size)
}

/// [`malloc`] for a caller that is known.
#[inline(always)]
pub fn malloc_for<C: Caller>(size: usize) -> *mut u8 {
    if let Some(slots) = small::slots_for(size) {
        // SAFETY: a class's slots are its cache's, or the dummies until it has one.
        let object = unsafe { rseq::pop(slots) };
        if !object.is_null() {
            return object;
        }
    }
    malloc_slow::<C>(size)
}

/// Sizes beyond the direct table, and whatever the fast path could not serve.
#[inline(never)]
extern "C" fn malloc_slow<C: Caller>(size: usize) -> *mut u8 {
    if let Some(slots) = small::slots_for_larger(size) {
        // SAFETY: as in `malloc`.
        let object = unsafe { rseq::pop(slots) };
        if !object.is_null() {
            return object;
        }
    }
    C::serve(size)
}

/// [`malloc`], but where memory is used up it is not reclaimed: no callback of a shrinker runs in
/// this call. For callers that hold what those may want.
pub fn malloc_noreclaim(size: usize) -> *mut u8 {
    aligned_alloc_noreclaim(ALIGN, size)
}

/// [`aligned_alloc`] in the same way.
pub fn aligned_alloc_noreclaim(align: usize, size: usize) -> *mut u8 {
    if !align.is_power_of_two() {
        os::errno::set_invalid();
        return ptr::null_mut();
    }
    match Class::of_aligned(size, align) {
        Some(class) => small::alloc_noreclaim(class),
        None => large::alloc_with(size, align, large::Reclaim::No)
            .map_or_else(out_of_memory, |(object, _)| object),
    }
}

#[cold]
fn out_of_memory() -> *mut u8 {
    os::errno::set_out_of_memory();
    ptr::null_mut()
}

/// Takes memory back that one of these functions gave out; null is allowed. `errno` is kept.
///
/// # Safety
/// No thread may use the memory any more. Reported at once, with the pointer and what it is: a
/// pointer that is none of ours, one to the inside of an object, and one that was freed twice with
/// no other free or allocation of its size between. A later double free is reported at the latest
/// when the object gets to its slab. By default the process then ends.
#[inline(always)]
pub unsafe fn free(pointer: *mut u8) {
    if let Some(owner) = pages::direct_owner_of(pointer) {
        // SAFETY: the page map says whose the page is; the caller's promise.
        match unsafe { rseq::push_tested(owner.slots(), pointer) } {
            Pushed::Done => return,
            Pushed::Twice => return report_double_free(pointer),
            Pushed::Slow => {}
        }
    }
    // SAFETY: the caller's promise.
    unsafe { free_slow(pointer) };
}

/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(pointer: *mut u8) {
    if pointer.is_null() {
        return;
    }
    let _errno = os::errno::Preserved::new();
    let Some(page) = pages::page_of_any(pointer) else {
        return report_unknown(pointer, "free");
    };
    let owner = pages::owner(page);
    match owner.id() {
        LARGE_ID => large::free(page, pointer),
        id => match registry::cache(id) {
            // SAFETY: the page belongs to that cache; the caller's promise.
            Some(cache) => unsafe { cache.free_slow(pointer) },
            None => match Bare::of(owner) {
                // SAFETY: the page belongs to those slabs; the caller's promise.
                Some(bare) => unsafe { bare.free(pointer) },
                None => report_unknown(pointer, "free"),
            },
        },
    }
}

/// Reports a pointer at which nothing starts that could be freed. This may be the first call of
/// all, and what to do about misuse is in the environment: so the library is set up first.
#[cold]
fn report_unknown(pointer: *const u8, given_to: &str) {
    start::ensure();
    let Some(page) = pages::page_of(pointer) else {
        return report_misuse(Misuse::Foreign, pointer, given_to);
    };
    let owner = pages::owner(page);
    if let Some(misuse) = Bare::of(owner).and_then(|bare| bare.misuse_of(pointer)) {
        return report_misuse(misuse, pointer, bare::NAME);
    }
    let cache = registry::cache(owner.id());
    if let Some((cache, misuse)) = cache.and_then(|cache| Some((cache, cache.misuse_of(pointer)?))) {
        return report_misuse(misuse, pointer, cache.name());
    }
    match large::around(page) {
        Some(start) => report_misuse(Misuse::Inside(start as usize), pointer, large::NAME),
        None => report_misuse(Misuse::NotAllocated, pointer, given_to),
    }
}

/// Reports an object that is on top of its cache's sheaf and was freed again.
#[cold]
#[inline(never)]
extern "C" fn report_double_free(pointer: *mut u8) {
    match pages::owner_of(pointer).and_then(|owner| registry::cache(owner.id())) {
        Some(cache) => cache.report_double_free(pointer),
        // Its cache was destroyed by another thread meanwhile.
        None => report_unknown(pointer, "free"),
    }
}

/// As [`free`], for memory of [`malloc`], [`calloc`] or [`realloc`] asked for with this very
/// `size`: does not look the pointer up, nor test it. For callers whose language says what is
/// freed: Rust.
///
/// # Safety
/// As [`free`]; a wrong size puts the object into the wrong cache. `pointer` must not be null.
/// Misuse is recognised at the latest when the object gets to its slab.
#[inline(always)]
pub unsafe fn free_sized(pointer: *mut u8, size: usize) {
    let Some(slots) = small::slots_for(size) else {
        // SAFETY: the caller's promise.
        return unsafe { free_looked_up(pointer) };
    };
    // SAFETY: the caller's promise.
    unsafe {
        if !rseq::push(slots, pointer) {
            free_slow(pointer);
        }
    }
}

/// [`free_sized`] with the tests of [`free`], for C and C++. A wrong size is
/// recognised at the latest when the object gets to its slab.
///
/// # Safety
/// As [`free_sized`].
#[inline(always)]
pub unsafe fn free_sized_tested(pointer: *mut u8, size: usize) {
    let Some(slots) = small::slots_for(size) else {
        // SAFETY: the caller's promise.
        return unsafe { free_looked_up(pointer) };
    };
    // SAFETY: the caller's promise.
    unsafe {
        match rseq::push_tested(slots, pointer) {
            Pushed::Done => {}
            Pushed::Twice => report_double_free(pointer),
            Pushed::Slow => free_slow(pointer),
        }
    }
}

/// [`free_aligned_sized`] with the tests of [`free`].
///
/// # Safety
/// As [`free_aligned_sized`].
#[inline(always)]
pub unsafe fn free_aligned_sized_tested(pointer: *mut u8, align: usize, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { if align <= ALIGN { free_sized_tested(pointer, size) } else { free_looked_up(pointer) } }
}

/// [`free`], not inlined.
///
/// # Safety
/// As [`free`].
#[inline(never)]
unsafe extern "C" fn free_looked_up(pointer: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { free(pointer) };
}

/// As [`free_sized`], for memory of [`aligned_alloc`].
///
/// # Safety
/// As [`free_sized`], with the alignment asked for.
#[inline(always)]
pub unsafe fn free_aligned_sized(pointer: *mut u8, align: usize, size: usize) {
    // SAFETY: the caller's promise. Wide alignments are rare enough to be looked up.
    unsafe { if align <= ALIGN { free_sized(pointer, size) } else { free_looked_up(pointer) } }
}

/// `count · size` bytes of zeroes; null with ENOMEM if there is no memory or the product overflows.
#[inline]
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    calloc_for::<AnyCaller>(count, size)
}

/// [`calloc`] for a caller that is known.
#[inline(always)]
pub fn calloc_for<C: Caller>(count: usize, size: usize) -> *mut u8 {
    match count.checked_mul(size) {
        Some(bytes) => zeroed_for::<C>(bytes),
        None => out_of_memory(),
    }
}

/// `size` bytes of zeroes. Pages that nobody has touched are not cleared again.
#[inline]
pub fn zeroed(size: usize) -> *mut u8 {
    zeroed_for::<AnyCaller>(size)
}

/// [`zeroed`] for a caller that is known.
#[inline(always)]
pub fn zeroed_for<C: Caller>(size: usize) -> *mut u8 {
    if let Some(slots) = small::slots_for(size) {
        // SAFETY: as in `malloc`.
        let object = unsafe { rseq::pop(slots) };
        if !object.is_null() {
            // SAFETY: the object is ours and at least `size` bytes.
            unsafe { object.write_bytes(0, size) };
            return object;
        }
    }
    C::serve_zeroed(size)
}

/// `size` bytes on a boundary of `align`, which must be a power of two; null with EINVAL or ENOMEM,
/// for alignments beyond 1 GiB as well. Any size is allowed.
#[inline]
pub fn aligned_alloc(align: usize, size: usize) -> *mut u8 {
    if align <= ALIGN && align.is_power_of_two() {
        return malloc(size);
    }
    aligned_alloc_slow(align, size)
}

#[inline(never)]
extern "C" fn aligned_alloc_slow(align: usize, size: usize) -> *mut u8 {
    if !align.is_power_of_two() {
        os::errno::set_invalid();
        return ptr::null_mut();
    }
    if let Some(class) = Class::of_aligned(size, align) {
        return small::alloc(class);
    }
    large::alloc(size, align).map_or_else(out_of_memory, |(object, _)| object)
}

/// The memory at `pointer` with a new size, moved if it must be; the old contents up to the smaller
/// size are kept. Null with ENOMEM leaves the old memory as it was. A null pointer makes this
/// [`malloc`]. Size 0 is a size like any other.
///
/// An object stays where it is while its size class stays the same, so that [`free_sized`] with the
/// last size is right. Large objects grow into free pages behind them, or are moved page by page
/// instead of byte by byte.
///
/// # Safety
/// As [`free`], unless null is returned.
#[inline]
pub unsafe fn realloc(pointer: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { realloc_for::<AnyCaller>(pointer, size) }
}

/// [`realloc`] for a caller that is known.
///
/// # Safety
/// As [`realloc`].
#[inline(always)]
pub unsafe fn realloc_for<C: Caller>(pointer: *mut u8, size: usize) -> *mut u8 {
    if pointer.is_null() {
        return malloc_for::<C>(size);
    }
    let Some(old) = usable_size_of(pointer) else { return report_unknown_to_realloc(pointer) };
    // A page run of a class's size (alignment beyond a page) is not that class's: it would be put
    // there by `free_sized`.
    if Class::of(size).is_some_and(|class| class.bytes() == old) && !large::is_run(pointer) {
        return pointer;
    }
    // SAFETY: the caller's promise.
    unsafe { C::serve_resized(pointer, size, old) }
}

/// Also of a pointer to the inside of an object: from there more would be copied than the object
/// has.
#[cold]
fn report_unknown_to_realloc(pointer: *mut u8) -> *mut u8 {
    report_unknown(pointer, "realloc");
    out_of_memory()
}

/// Bytes that may be used at `pointer`, at least what was asked for; 0 for null, for what is none
/// of ours, and for a pointer to the inside of an object.
pub fn usable_size(pointer: *const u8) -> usize {
    usable_size_of(pointer).unwrap_or(0)
}

fn usable_size_of(pointer: *const u8) -> Option<usize> {
    let page = pages::page_of_any(pointer)?;
    let owner = pages::owner(page);
    match owner.id() {
        LARGE_ID => (pages::address_of(page).cast_const() == pointer).then(|| large::bytes(page)),
        id => match registry::cache(id) {
            Some(cache) => cache.misuse_of(pointer).is_none().then(|| cache.usable_bytes()),
            None => Bare::of(owner)?.usable_bytes_of(pointer),
        },
    }
}

/// Fills all of `objects` with memory of `size` bytes each, or says false, with ENOMEM, and takes
/// none.
pub fn malloc_bulk(size: usize, objects: &mut [*mut u8]) -> bool {
    if let Some(class) = Class::of(size) {
        let done = objects.is_empty() || small::alloc_bulk(class, objects);
        if !done {
            os::errno::set_out_of_memory();
        }
        return done;
    }
    for at in 0..objects.len() {
        objects[at] = malloc(size);
        if objects[at].is_null() {
            // SAFETY: just allocated, used by nobody.
            unsafe { free_bulk(&objects[..at]) };
            return false;
        }
    }
    true
}

/// Takes memory of any sizes back; fastest where neighbours are of one class. Nulls are allowed.
///
/// # Safety
/// As [`free`], for each.
pub unsafe fn free_bulk(objects: &[*mut u8]) {
    let cache_of = |pointer: *mut u8| {
        let cache = pages::owner_of(pointer).and_then(|owner| registry::cache(owner.id()))?;
        cache.misuse_of(pointer).is_none().then_some(cache)
    };
    let mut rest = objects;
    while let Some(&first) = rest.first() {
        let Some(cache) = cache_of(first) else {
            // SAFETY: the caller's promise.
            unsafe { free(first) };
            rest = &rest[1..];
            continue;
        };
        let same = |&&pointer: &&*mut u8| cache_of(pointer).is_some_and(|other| ptr::eq(other, cache));
        let n = rest.iter().take_while(same).count();
        // SAFETY: objects of that cache; the caller's promise.
        unsafe { cache.free_bulk(&rest[..n]) };
        rest = &rest[n..];
    }
}

/// Sets the library up, if nothing was allocated yet; false if the address space has no room for
/// it.
pub fn start() -> bool {
    start::ensure()
}

/// What heaps need of a fork; plain `malloc` has no locks of its own.
static HOOKS: Hooks = Hooks { before_fork: lock_for_fork, after_fork: unlock_after_fork, ..Hooks::ALONE };

/// Has forks take the locks of heaps, from now on. Called before the first of them is used.
fn install_hooks() {
    hooks::install_first(&HOOKS);
}

/// Before a fork.
pub(crate) fn lock_for_fork() {
    list::lock_for_fork();
    owners::lock_for_fork();
    bare::lock_for_fork();
}

/// Undoes [`lock_for_fork`]; true in the child.
pub(crate) fn unlock_after_fork(child: bool) {
    bare::unlock_after_fork(child);
    owners::unlock_after_fork(child);
    list::unlock_after_fork(child);
}

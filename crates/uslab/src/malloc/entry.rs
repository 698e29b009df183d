//! The malloc family, for callers in Rust and in C.
//!
//! Each function is its fast path: a table or the page map yields the slots of a cache, and one
//! sequence pops or pushes. The last steps of the slow paths are in [`super::caller`].

use super::bare::{self, Bare};
pub use super::caller::{
    AnyCaller, Caller, Freed, Operator, Program, Rust, is_caller_asked, serve, serve_program, serve_resized,
    serve_zeroed,
};
use super::classes::{CLASSES, Class};
use super::debugged;
use super::medium::{self, Medium};
use super::{large, profiled, sampled, small};
use crate::cache::debugged::{Family, Release, Request};
use crate::cache::registry::{self, LARGE_ID, SAMPLED_ID};
use crate::cache::start;
use crate::os;
use crate::pages;
use crate::rseq::{self, Pushed};
use crate::slab::{Misuse, report_misuse};
use core::ptr;

/// Alignment of every result, in bytes.
pub const ALIGN: usize = 16;

/// Allocates `size` bytes, uninitialised, aligned to 16. Null with `errno` ENOMEM if memory is used
/// up. A request of 0 bytes returns a distinct object.
#[inline(always)]
pub fn malloc(size: usize) -> *mut u8 {
    malloc_for::<AnyCaller>(size)
}

/// [`malloc`] for a known caller.
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

/// Serves sizes above the direct table, and requests that the fast path could not serve.
#[inline(never)]
extern "C" fn malloc_slow<C: Caller>(size: usize) -> *mut u8 {
    if let Some(slots) = small::slots_for_larger(size).or_else(|| medium::slots_for(size)) {
        // SAFETY: as in `malloc`.
        let object = unsafe { rseq::pop(slots) };
        if !object.is_null() {
            return object;
        }
    }
    C::serve(size)
}

/// [`malloc`] without reclaim: where memory is used up the call fails, and runs no callback of a
/// shrinker. For callers that hold locks which those callbacks may take.
pub fn malloc_noreclaim(size: usize) -> *mut u8 {
    aligned_alloc_noreclaim(ALIGN, size)
}

/// [`aligned_alloc_noreclaim`], zeroed. Fresh memory of a large object is not written.
pub fn zeroed_noreclaim(align: usize, size: usize) -> *mut u8 {
    let has_class = Class::of_aligned(size, align).is_some() || Medium::of_aligned(size, align).is_some();
    if align.is_power_of_two() && !has_class {
        if let Some(object) = profiled::take_noreclaim(size, align) {
            // SAFETY: the object was just allocated and has at least `size` bytes.
            unsafe { object.write_bytes(0, size) };
            return object.as_ptr();
        }
        return match large::alloc_with(size, align, large::Reclaim::No, Family::Malloc) {
            // SAFETY: the object was just allocated and has at least `size` bytes.
            Some(object) => unsafe { large::zeroed(object, size) },
            None => out_of_memory(),
        };
    }
    let object = aligned_alloc_noreclaim(align, size);
    if !object.is_null() {
        // SAFETY: as above.
        unsafe { object.write_bytes(0, size) };
    }
    object
}

/// [`aligned_alloc`] without reclaim; see [`malloc_noreclaim`].
pub fn aligned_alloc_noreclaim(align: usize, size: usize) -> *mut u8 {
    if !align.is_power_of_two() {
        os::errno::set_invalid();
        return ptr::null_mut();
    }
    if let Some(object) = profiled::take_noreclaim(size, align) {
        return object.as_ptr();
    }
    if let Some(class) = Class::of_aligned(size, align) {
        return small::alloc_noreclaim(class, align, Request { bytes: size, family: Family::Malloc });
    }
    if let Some(class) = Medium::of_aligned(size, align) {
        let object = medium::pop(size);
        return if object.is_null() { medium::alloc_noreclaim(class, size, align) } else { object };
    }
    large::alloc_with(size, align, large::Reclaim::No, Family::Malloc)
        .map_or_else(out_of_memory, |(object, _)| object)
}

#[cold]
pub(super) fn out_of_memory() -> *mut u8 {
    os::errno::set_out_of_memory();
    ptr::null_mut()
}

/// Frees memory that one of these functions returned; null is allowed. Preserves `errno`.
///
/// # Safety
/// No thread may use the memory any more.
///
/// Misuse is reported with the pointer, and by default the process then ends. The call itself
/// reports a foreign pointer, a pointer to the inside of an object, and a double free with no other
/// free or allocation of that size in between. A later double free is reported at the latest when
/// the object reaches its slab.
#[inline(always)]
pub unsafe fn free(pointer: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { free_as::<ANY>(pointer) }
}

/// The number of a [`Family`] for the generic functions below: functions that may free all memory.
pub const ANY: u8 = Family::Any as u8;
/// C's functions.
pub const MALLOC: u8 = Family::Malloc as u8;
/// `operator new` and `operator delete`.
pub const NEW: u8 = Family::New as u8;
/// Their forms for arrays.
pub const NEW_ARRAY: u8 = Family::NewArray as u8;

/// [`free`] by a function of the family `FAMILY`, which a debugged object compares with its own.
///
/// # Safety
/// As [`free`].
#[inline(always)]
pub unsafe fn free_as<const FAMILY: u8>(pointer: *mut u8) {
    if let Some(owner) = pages::direct_owner_of(pointer) {
        // SAFETY: the owner comes from the page map; the caller's promise.
        match unsafe { rseq::push_tested(owner.slots(), pointer) } {
            Pushed::Done => return,
            Pushed::Twice => return report_double_free(pointer),
            Pushed::Slow => {}
        }
    }
    // SAFETY: the caller's promise.
    unsafe { free_slow::<FAMILY>(pointer) };
}

/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow<const FAMILY: u8>(pointer: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { free_for(pointer, Release { bytes: None, family: Family::of(FAMILY) }) };
}

/// [`free_slow`] with the size that the call names.
///
/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow_sized<const FAMILY: u8>(pointer: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { free_for(pointer, Release { bytes: Some(size), family: Family::of(FAMILY) }) };
}

/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
unsafe fn free_for(pointer: *mut u8, release: Release) {
    if pointer.is_null() {
        return;
    }
    let _errno = os::errno::Preserved::new();
    let Some(page) = pages::page_of_any(pointer) else {
        return report_unknown(pointer, "free");
    };
    let owner = pages::owner(page);
    // Where a class counts allocations (`profiled`) or has a row for each node, each sized free
    // comes here, and the page map names the right slots.
    if profiled::state::has_begun() || start::nodes() > 1 {
        // SAFETY: the owner comes from the page map; the caller's promise.
        match unsafe { rseq::push_tested(owner.slots(), pointer) } {
            Pushed::Done => return,
            Pushed::Twice => return report_double_free(pointer),
            Pushed::Slow => {}
        }
    }
    match owner.id() {
        LARGE_ID => large::free(page, pointer, release),
        SAMPLED_ID => sampled::free(pointer),
        id => match registry::cache(id) {
            // SAFETY: the page belongs to that cache; the caller's promise.
            Some(cache) => unsafe { cache.free_slow_for(pointer, release) },
            None => match Bare::of(owner) {
                // SAFETY: the page belongs to those slabs; the caller's promise.
                Some(bare) => unsafe { bare.free(pointer) },
                None => report_unknown(pointer, "free"),
            },
        },
    }
}

/// Reports a pointer at which no live object starts. This may be the first call of the process, and
/// the environment determines the reaction to misuse. So the library reads it first.
#[cold]
fn report_unknown(pointer: *const u8, given_to: &str) {
    start::know();
    let Some(page) = pages::page_of(pointer) else {
        return report_misuse(Misuse::Foreign, pointer, given_to);
    };
    let owner = pages::owner(page);
    if let Some(misuse) = Bare::of(owner).and_then(|bare| bare.misuse_of(pointer)) {
        return report_misuse(misuse, pointer, bare::NAME);
    }
    let cache = registry::cache(owner.id());
    if let Some((cache, misuse)) = cache.and_then(|cache| Some((cache, cache.misuse_of(pointer)?))) {
        return cache.report_misuse(misuse, pointer);
    }
    match large::around(page) {
        Some(start) => {
            let run = pages::page_of(start).filter(|&first| pages::owner(first).id() == LARGE_ID);
            if let Some(first) = run.filter(|&first| debugged::is_debugged(first)) {
                return debugged::report_misuse(first, pointer);
            }
            let owner = pages::owner_of(start);
            let cache = owner.and_then(|owner| registry::cache(owner.id()));
            let name = cache.map_or(large::NAME, |cache| cache.name());
            report_misuse(Misuse::Inside(start as usize), pointer, name);
        }
        None => report_misuse(Misuse::NotAllocated, pointer, given_to),
    }
}

/// Reports a double free of the object on top of its cache's sheaf.
#[cold]
#[inline(never)]
extern "C" fn report_double_free(pointer: *mut u8) {
    match pages::owner_of(pointer).and_then(|owner| registry::cache(owner.id())) {
        Some(cache) => cache.report_double_free(pointer),
        // Another thread destroyed the cache meanwhile.
        None => report_unknown(pointer, "free"),
    }
}

/// As [`free`], for memory that [`malloc`], [`calloc`] or [`realloc`] returned for this `size`, not
/// of a heap or cache. This function does not look the pointer up, and does not test it. For Rust,
/// whose types guarantee the size.
///
/// # Safety
/// As [`free`]. `pointer` must not be null. A wrong size, or an object of a heap or cache, puts the
/// object into the wrong cache. Misuse is reported at the latest when the object reaches its slab.
#[inline(always)]
pub unsafe fn free_sized(pointer: *mut u8, size: usize) {
    let Some(slots) = small::slots_for(size) else {
        // SAFETY: the caller's promise.
        return unsafe { free_looked_up::<ANY>(pointer, size) };
    };
    // SAFETY: the caller's promise.
    unsafe {
        if !rseq::push(slots, pointer) {
            free_slow::<ANY>(pointer);
        }
    }
}

/// [`free_sized`] with the tests of [`free`], for C and C++. A wrong size is reported at the latest
/// when the object reaches its slab.
///
/// # Safety
/// As [`free_sized`].
#[inline(always)]
pub unsafe fn free_sized_tested<const FAMILY: u8>(pointer: *mut u8, size: usize) {
    let Some(slots) = small::slots_for(size) else {
        // SAFETY: the caller's promise.
        return unsafe { free_looked_up::<FAMILY>(pointer, size) };
    };
    // SAFETY: the caller's promise.
    unsafe {
        match rseq::push_tested(slots, pointer) {
            Pushed::Done => {}
            Pushed::Twice => report_double_free(pointer),
            Pushed::Slow => free_slow_sized::<FAMILY>(pointer, size),
        }
    }
}

/// [`free_aligned_sized`] with the tests of [`free`].
///
/// # Safety
/// As [`free_aligned_sized`].
#[inline(always)]
pub unsafe fn free_aligned_sized_tested<const FAMILY: u8>(pointer: *mut u8, align: usize, size: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if align <= ALIGN {
            free_sized_tested::<FAMILY>(pointer, size)
        } else {
            free_looked_up::<FAMILY>(pointer, size)
        }
    }
}

/// [`free_as`] of an object of `size` bytes, not inlined.
///
/// # Safety
/// As [`free`].
#[inline(never)]
unsafe extern "C" fn free_looked_up<const FAMILY: u8>(pointer: *mut u8, size: usize) {
    if let Some(owner) = pages::direct_owner_of(pointer) {
        // SAFETY: the owner comes from the page map; the caller's promise.
        match unsafe { rseq::push_tested(owner.slots(), pointer) } {
            Pushed::Done => return,
            Pushed::Twice => return report_double_free(pointer),
            Pushed::Slow => {}
        }
    }
    // SAFETY: the caller's promise.
    unsafe { free_slow_sized::<FAMILY>(pointer, size) };
}

/// As [`free_sized`], for memory of [`aligned_alloc`], not of a heap or cache.
///
/// # Safety
/// As [`free_sized`]; `align` must be the alignment of the allocation.
#[inline(always)]
pub unsafe fn free_aligned_sized(pointer: *mut u8, align: usize, size: usize) {
    // SAFETY: the caller's promise. Wide alignments are rare, so a look at the page map is cheap
    // enough.
    unsafe { if align <= ALIGN { free_sized(pointer, size) } else { free_looked_up::<ANY>(pointer, size) } }
}

/// Allocates `count · size` zeroed bytes. Null with ENOMEM if memory is used up or the product
/// overflows.
#[inline]
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    calloc_for::<AnyCaller>(count, size)
}

/// [`calloc`] for a known caller.
#[inline(always)]
pub fn calloc_for<C: Caller>(count: usize, size: usize) -> *mut u8 {
    match count.checked_mul(size) {
        Some(bytes) => zeroed_for::<C>(bytes),
        None => out_of_memory(),
    }
}

/// Allocates `size` zeroed bytes; null with ENOMEM. Does not clear pages fresh from the system.
#[inline]
pub fn zeroed(size: usize) -> *mut u8 {
    zeroed_for::<AnyCaller>(size)
}

/// [`zeroed`] for a known caller.
#[inline(always)]
pub fn zeroed_for<C: Caller>(size: usize) -> *mut u8 {
    if let Some(slots) = small::slots_for(size) {
        // SAFETY: as in `malloc`.
        let object = unsafe { rseq::pop(slots) };
        if !object.is_null() {
            // SAFETY: the object was just allocated and has at least `size` bytes.
            unsafe { object.write_bytes(0, size) };
            return object;
        }
    }
    C::serve_zeroed(size)
}

/// Allocates `size` bytes aligned to `align`. Null with EINVAL if `align` is not a power of two,
/// with ENOMEM if memory is used up or `align` exceeds 1 GiB. `size` need not be a multiple of
/// `align`.
#[inline]
pub fn aligned_alloc(align: usize, size: usize) -> *mut u8 {
    aligned_alloc_for::<AnyCaller>(align, size)
}

/// [`aligned_alloc`] for a known caller.
#[inline]
pub fn aligned_alloc_for<C: Caller>(align: usize, size: usize) -> *mut u8 {
    if align <= ALIGN && align.is_power_of_two() {
        return malloc_for::<C>(size);
    }
    aligned_alloc_slow::<C>(align, size)
}

/// [`aligned_alloc`] by a function of the family `FAMILY`.
#[inline]
pub fn aligned_alloc_as<const FAMILY: u8>(align: usize, size: usize) -> *mut u8 {
    aligned_alloc_slow::<Operator<FAMILY>>(align, size)
}

#[inline(never)]
extern "C" fn aligned_alloc_slow<C: Caller>(align: usize, size: usize) -> *mut u8 {
    let family = Family::of(C::FAMILY);
    if !align.is_power_of_two() {
        os::errno::set_invalid();
        return ptr::null_mut();
    }
    if let Some(object) = C::sample(size, align) {
        return object.as_ptr();
    }
    if let Some(class) = Class::of_aligned(size, align) {
        return small::alloc_aligned(class, align, Request { bytes: size, family });
    }
    if let Some(class) = Medium::of_aligned(size, align) {
        let object = medium::pop(size);
        return if object.is_null() { medium::alloc_slow(class, size, align, family) } else { object };
    }
    large::alloc(size, align, family).map_or_else(out_of_memory, |(object, _)| object)
}

/// Resizes the memory at `pointer`, and moves it if necessary. Preserves the contents up to the
/// smaller size. On null with ENOMEM the old memory is unchanged. With a null pointer this is
/// [`malloc`]. Size 0 is an ordinary size.
///
/// An object stays in place while its size class stays the same, so [`free_sized`] with the last
/// size is correct, unless the object is of a heap or cache. Large objects grow into free pages
/// behind them, or their pages are moved instead of copied.
///
/// # Safety
/// As [`free`], unless null is returned.
#[inline]
pub unsafe fn realloc(pointer: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { realloc_for::<AnyCaller>(pointer, size) }
}

/// [`realloc`] for a known caller.
///
/// # Safety
/// As [`realloc`].
#[inline(always)]
pub unsafe fn realloc_for<C: Caller>(pointer: *mut u8, size: usize) -> *mut u8 {
    if pointer.is_null() {
        return malloc_for::<C>(size);
    }
    let Some(Usable { bytes: old, may_stay }) = usable_size_of(pointer) else {
        return report_unknown_to_realloc(pointer);
    };
    if may_stay && Class::of(size).is_some_and(|class| class.bytes() == old) {
        return pointer;
    }
    // SAFETY: the caller's promise.
    unsafe { C::serve_resized(pointer, size, old) }
}

/// Also refuses a pointer to the inside of an object, from which `realloc` would copy beyond the
/// object's end.
#[cold]
fn report_unknown_to_realloc(pointer: *mut u8) -> *mut u8 {
    report_unknown(pointer, "realloc");
    out_of_memory()
}

/// Bytes of each class, small and medium, in ascending order.
pub fn class_bytes() -> impl Iterator<Item = usize> {
    let small = (0..).map_while(Class::at).map(Class::bytes);
    small.chain((0..).map_while(Medium::at).map(Medium::bytes))
}

/// Number of these classes.
pub const ALL_CLASSES: usize = CLASSES + medium::CLASSES;

/// Usable bytes of an allocation of `size` bytes; `size` itself if no allocation is so large, or if
/// the object would be debugged or hardened, or may lie between guard pages.
pub fn good_size(size: usize) -> usize {
    // The library reads the settings of debugging when it starts.
    if !start::ensure() || debugged::keeps_size(size) || sampled::is_on() {
        return size;
    }
    match (Class::of(size), Medium::of(size)) {
        (Some(class), _) => class.bytes(),
        (None, Some(class)) => class.bytes(),
        (None, None) => size.checked_next_multiple_of(pages::PAGE_BYTES).unwrap_or(size),
    }
}

/// Usable bytes at `pointer`, at least the requested size. 0 for null, for a foreign pointer, and
/// for a pointer to the inside of an object.
///
/// # Safety
/// An object that `pointer` leads to must stay in use meanwhile: no other thread may free it, or
/// destroy its cache or heap. Any pointer to other memory is allowed.
#[inline]
pub unsafe fn usable_size(pointer: *const u8) -> usize {
    let plain = pages::page_of(pointer).and_then(|page| {
        registry::cache(pages::owner(page).id()).and_then(|cache| cache.bytes_at(page, pointer))
    });
    plain.unwrap_or_else(|| usable_size_of_any(pointer))
}

/// [`usable_size`] of what is no object of a cache, or a debugged one.
#[cold]
#[inline(never)]
extern "C" fn usable_size_of_any(pointer: *const u8) -> usize {
    usable_size_of(pointer).map_or(0, |usable| usable.bytes)
}

/// The size of an object in use.
struct Usable {
    bytes: usize,
    /// Whether `realloc` may leave it in place while its class stays the same. A page run may have
    /// the size of a class (alignment beyond a page). It must not stay, because `free_sized` would
    /// push it into that class's cache. A debugged or sampled object must know its size.
    may_stay: bool,
}

fn usable_size_of(pointer: *const u8) -> Option<Usable> {
    let page = pages::page_of_any(pointer)?;
    let owner = pages::owner(page);
    match owner.id() {
        LARGE_ID => {
            let is_debugged = debugged::is_debugged(page);
            let bytes = if is_debugged { debugged::asked(page)? } else { large::usable_bytes(page) };
            let may_stay = !is_debugged && large::is_of_class(page);
            (pages::address_of(page).cast_const() == pointer).then_some(Usable { bytes, may_stay })
        }
        SAMPLED_ID => sampled::usable_bytes(pointer).map(|bytes| Usable { bytes, may_stay: false }),
        id => match registry::cache(id) {
            Some(cache) => cache
                .usable_bytes_at(page, pointer)
                .map(|bytes| Usable { bytes, may_stay: !cache.is_debugged() }),
            None => Bare::of(owner)?.usable_bytes_of(pointer).map(|bytes| Usable { bytes, may_stay: true }),
        },
    }
}

/// Fills `objects` with memory of `size` bytes each. On false, with ENOMEM, it has allocated none.
pub fn malloc_bulk(size: usize, objects: &mut [*mut u8]) -> bool {
    // The heap profile counts objects one by one.
    let class = Class::of(size).filter(|_| profiled::state::period_bytes() == 0);
    if let Some(class) = class {
        let done = objects.is_empty()
            || small::alloc_bulk(class, objects, Request { bytes: size, family: Family::Malloc });
        if !done {
            os::errno::set_out_of_memory();
        }
        return done;
    }
    for at in 0..objects.len() {
        objects[at] = malloc(size);
        if objects[at].is_null() {
            // SAFETY: just allocated, and unused.
            unsafe { free_bulk(&objects[..at]) };
            return false;
        }
    }
    true
}

/// Frees objects of any sizes; fastest where neighbours in the slice are of one class. Nulls are
/// allowed.
///
/// # Safety
/// As [`free`], for each pointer.
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
        let owner = pages::owner_of(first);
        // Most neighbours have the owner of the first one, so the cache is known.
        let is_neighbour = |pointer: *mut u8| {
            let page = pages::page_of(pointer);
            page.is_some_and(|page| Some(pages::owner(page)) == owner && cache.is_taken_at(page, pointer))
        };
        let same = |&&pointer: &&*mut u8| {
            is_neighbour(pointer) || cache_of(pointer).is_some_and(|other| ptr::eq(other, cache))
        };
        let n = 1 + rest[1..].iter().take_while(same).count();
        // SAFETY: the objects belong to that cache; the caller's promise.
        unsafe { cache.free_bulk(&rest[..n]) };
        rest = &rest[n..];
    }
}

/// Chooses the library's mode, if no call did so yet.
pub fn choose_mode() {
    start::know();
}

//! The memory of sheaves: slabs of their own, without CPU caches in front, one set for each size
//! from 32 bytes to 16 KiB.

use super::ownership;
use crate::counters::Tally;
use crate::os::corruption::verify;
use crate::os::invariant::invariant;
use crate::pages::{self, Fill, PAGE_BYTES, Temperature};
use crate::rseq::{Owner, SHEAF_HEADER_BYTES, Sheaf, is_dummy};
use crate::slab::{Geometry, GeometryOptions, GroupMemory, Layout, Slabs};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Number of sheaf sizes, the powers of two from 32 bytes (2 objects) to 16 KiB (2046 objects). The
/// smallest take a cache line of 64 bytes.
pub const SIZES: usize = 10;
/// The first page map id of the sheaves' slabs. Each size has one; [`RUN_ID`] follows them.
pub const FIRST_ID: u16 = 2;
/// Page map id of sheaves too large for a slab.
pub const RUN_ID: u16 = FIRST_ID + SIZES as u16;

/// A sheaf size, 0 … [`SIZES`] - 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u8);

impl Size {
    /// Objects that a sheaf of this size holds.
    pub const fn capacity(self) -> usize {
        (self.bytes() - SHEAF_HEADER_BYTES) / size_of::<*mut u8>()
    }

    const fn bytes(self) -> usize {
        32 << self.0
    }

    /// The smallest size that holds `objects`; the largest size if none does.
    pub fn holding(objects: usize) -> Size {
        (0..SIZES as u8).map(Size).find(|size| size.capacity() >= objects).unwrap_or(Size(SIZES as u8 - 1))
    }
}

const NAMES: [&str; SIZES] = [
    "sheaf-2",
    "sheaf-6",
    "sheaf-14",
    "sheaf-30",
    "sheaf-62",
    "sheaf-126",
    "sheaf-254",
    "sheaf-510",
    "sheaf-1022",
    "sheaf-2046",
];

struct Store {
    slabs: UnsafeCell<[MaybeUninit<Slabs>; SIZES]>,
    ready: AtomicBool,
}
// SAFETY: written once, in `init`, before `ready` is set; `Slabs` is `Sync`.
unsafe impl Sync for Store {}
static STORE: Store =
    Store { slabs: UnsafeCell::new([const { MaybeUninit::uninit() }; SIZES]), ready: AtomicBool::new(false) };

/// Makes the sheaves' slabs; returns false if there is no memory. Start-up calls it, again if it
/// failed, before any cache is made.
pub fn init(cpus: usize, groups: usize, nodes: usize) -> bool {
    for (i, name) in NAMES.iter().enumerate() {
        // Each sheaf has its own cache lines: the sheaves of two CPUs must not share one.
        let layout = Layout { size: Size(i as u8).bytes().max(64), align: 64 };
        // No walk purges free pages inside these slabs.
        let options = GeometryOptions { max_order: Geometry::WHOLE_MAX_ORDER, ..Default::default() };
        let Ok(geometry) = Geometry::new(layout, options, cpus) else { return false };
        let memory = pages::boot::alloc(Slabs::group_bytes(groups, nodes), 64);
        let tallies = pages::boot::alloc(Tally::bytes(cpus), 64);
        if memory.is_null() || tallies.is_null() {
            return false;
        }
        let owner = Owner::plain(FIRST_ID + i as u16);
        // SAFETY: fresh boot memory of the size asked for; start-up is single-threaded, so no
        // thread reads the store yet.
        unsafe {
            let tallies = Tally::lines(tallies, cpus, geometry.object_bytes);
            let memory = GroupMemory { start: memory, groups, nodes, shared: None, tallies };
            let slabs = Slabs::new(owner, name, geometry, Temperature::Hot, None, memory);
            (*STORE.slabs.get())[i].write(slabs);
        }
    }
    STORE.ready.store(true, Release);
    true
}

/// The slabs of all sheaf sizes; none before [`init`].
pub fn slabs() -> &'static [Slabs] {
    if !STORE.ready.load(Acquire) {
        return &[];
    }
    // SAFETY: `init` wrote them before it set `ready`, and no code changes them afterwards.
    unsafe { core::slice::from_raw_parts(STORE.slabs.get().cast::<Slabs>(), SIZES) }
}

/// Allocates an empty sheaf of `size`; returns null if memory is used up.
pub fn alloc(size: Size, node: usize) -> *mut Sheaf {
    let Some(slabs) = slabs().get(size.0 as usize) else { return core::ptr::null_mut() };
    let mut out = [core::ptr::null_mut()];
    if slabs.take(node, &mut out, 1) == 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: a fresh object of the sheaf's size.
    unsafe { prepare(out[0], size.capacity()) }
}

/// Allocates an empty sheaf for any number of `objects`; returns null if memory is used up.
pub fn alloc_holding(objects: usize, node: usize) -> *mut Sheaf {
    let size = Size::holding(objects);
    if size.capacity() >= objects {
        return alloc(size, node);
    }
    let Some(bytes) =
        objects.checked_mul(size_of::<*mut u8>()).and_then(|n| n.checked_add(SHEAF_HEADER_BYTES))
    else {
        return core::ptr::null_mut();
    };
    let pages = bytes.div_ceil(PAGE_BYTES);
    let Some(run) = (objects <= u32::MAX as usize)
        .then(|| pages::alloc(pages, 0, Temperature::Hot, Fill::Dense))
        .flatten()
    else {
        return core::ptr::null_mut();
    };
    pages::set_owner(run.first, run.pages, Owner::plain(RUN_ID));
    // SAFETY: fresh pages, large enough.
    unsafe { prepare(pages::address_of(run.first), objects) }
}

/// # Safety
/// `memory` must be free memory for a sheaf of `capacity`.
unsafe fn prepare(memory: *mut u8, capacity: usize) -> *mut Sheaf {
    // Threads that do not own a slot's sheaf read it for hints and statistics.
    if let Some(page) = pages::page_of(memory) {
        pages::keep_mapped(page);
    }
    let sheaf = memory.cast::<Sheaf>();
    invariant!(capacity > 0 && capacity <= u32::MAX as usize, "a sheaf has room", capacity);
    // SAFETY: the caller's promise.
    unsafe {
        (*sheaf).count.store(0, Relaxed);
        (*sheaf).capacity.store(capacity as u32, Relaxed);
        (*sheaf).sentinel.store(0, Relaxed);
    }
    sheaf
}

/// Whether `sheaf`, which is not the dummy, is one: the page map says so, and its words agree. A
/// thread that took it out of a slot or a barn calls this before it uses the sheaf. If not, reports
/// the sheaf as corrupted.
#[inline]
pub fn is_sheaf(sheaf: *mut Sheaf) -> bool {
    let size = pages::owner_of(sheaf.cast()).map_or(0, Owner::id).wrapping_sub(FIRST_ID);
    let is_sheaf = if usize::from(size) < SIZES {
        let size = Size(size as u8);
        // SAFETY: the page map says that sheaves lie on this page.
        let (count, capacity) = unsafe { ((*sheaf).count.load(Relaxed), (*sheaf).capacity.load(Relaxed)) };
        sheaf.addr().is_multiple_of(size.bytes().max(64))
            && capacity as usize == size.capacity()
            && count <= capacity
    } else {
        size == RUN_ID - FIRST_ID
    };
    verify(is_sheaf, "sheaf", sheaf, "its place, capacity and count are those of a sheaf")
}

/// The room of a sheaf, which is not the dummy, whatever its own word says. 0 where the page map
/// knows no sheaf of a size there.
pub(super) fn room(sheaf: *mut Sheaf) -> usize {
    let size = pages::owner_of(sheaf.cast()).map_or(0, Owner::id).wrapping_sub(FIRST_ID);
    if usize::from(size) < SIZES { Size(size as u8).capacity() } else { 0 }
}

/// Allocates memory for `bytes`, at most a page, aligned to 64: for what a thread keeps beside its
/// sheaves. Returns null if memory is used up. [`free_memory`] frees it.
pub fn alloc_memory(bytes: usize, node: usize) -> *mut u8 {
    let mut out = [core::ptr::null_mut()];
    match slabs().get(usize::from(size_of_bytes(bytes).0)) {
        Some(slabs) if slabs.take(node, &mut out, 1) == 1 => out[0],
        _ => core::ptr::null_mut(),
    }
}

/// Frees memory of [`alloc_memory`].
///
/// # Safety
/// `memory` must come from [`alloc_memory`] for as many bytes, and be used by no thread any more.
pub unsafe fn free_memory(memory: *mut u8, bytes: usize) {
    // SAFETY: it came from these slabs and is not used any more.
    unsafe { slabs()[usize::from(size_of_bytes(bytes).0)].free(&[memory]) };
}

/// The size of sheaves that take at least `bytes`.
fn size_of_bytes(bytes: usize) -> Size {
    Size::holding(bytes.saturating_sub(SHEAF_HEADER_BYTES).div_ceil(size_of::<*mut u8>()))
}

/// Frees an empty sheaf.
///
/// # Safety
/// The caller must own the sheaf, which must not be the dummy.
pub unsafe fn free(sheaf: *mut Sheaf) {
    invariant!(!sheaf.is_null() && !is_dummy(sheaf), "the dummy is never freed", sheaf);
    ownership::release(sheaf);
    // SAFETY: the caller owns it.
    let capacity = unsafe { (*sheaf).capacity.load(Relaxed) } as usize;
    let size = Size::holding(capacity);
    if size.capacity() == capacity {
        // SAFETY: it came from these slabs and is not used any more.
        unsafe { slabs()[size.0 as usize].free(&[sheaf.cast()]) };
    } else if let Some(first) = pages::page_of(sheaf.cast()) {
        let pages = (SHEAF_HEADER_BYTES + capacity * size_of::<*mut u8>()).div_ceil(PAGE_BYTES);
        pages::set_owner(first, pages, Owner::NONE);
        pages::free(first, pages, Temperature::Hot);
    }
}

/// The owner that the page map has for a sheaf of `capacity`.
pub(super) fn owner_of_capacity(capacity: usize) -> Owner {
    let size = Size::holding(capacity);
    let is_exact = size.capacity() == capacity;
    Owner::plain(if is_exact { FIRST_ID + u16::from(size.0) } else { RUN_ID })
}

/// A sheaf that the caller owns, with operations that need no protection from other threads.
pub struct Owned(pub *mut Sheaf);

impl Owned {
    /// Objects in it.
    pub fn count(&self) -> usize {
        invariant!(!self.0.is_null(), "an owned sheaf is not null");
        // SAFETY: an owned sheaf is valid, and no other thread changes it.
        unsafe { (*self.0).count.load(Relaxed) as usize }
    }

    /// Objects that it has room for in all.
    pub fn capacity(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.0).capacity.load(Relaxed) as usize }
    }

    /// Sets the number of objects, after the caller wrote or took some.
    pub fn set_count(&mut self, count: usize) {
        invariant!(count <= self.capacity(), "a sheaf holds no more objects than its capacity", self.0);
        // SAFETY: as above.
        unsafe { (*self.0).count.store(count as u32, Relaxed) };
    }

    /// All places for objects, filled or not.
    pub fn places(&mut self) -> &mut [*mut u8] {
        // SAFETY: `capacity` pointers follow the header; uninitialised ones hold some bytes of an
        // earlier sheaf or zero, which are valid raw pointers.
        unsafe { core::slice::from_raw_parts_mut(Sheaf::object(self.0, 1), self.capacity()) }
    }

    /// The objects in it.
    pub fn objects(&mut self) -> &mut [*mut u8] {
        let count = self.count();
        &mut self.places()[..count]
    }

    /// Moves up to `out.len()` objects to the start of `out`; returns how many.
    pub fn pop_into(&mut self, out: &mut [*mut u8]) -> usize {
        let left = self.count() - self.count().min(out.len());
        let objects = self.objects();
        let n = objects.len() - left;
        out[..n].copy_from_slice(&objects[left..]);
        self.set_count(left);
        n
    }

    /// Takes the object that was put last; null if there is none.
    pub fn pop(&mut self) -> *mut u8 {
        let object = self.objects().last().copied().unwrap_or_default();
        self.set_count(self.count().saturating_sub(1));
        object
    }

    /// Adds as many of `objects` as there is room for; returns how many.
    pub fn push_from(&mut self, objects: &[*mut u8]) -> usize {
        let count = self.count();
        let n = objects.len().min(self.capacity() - count);
        self.places()[count..count + n].copy_from_slice(&objects[..n]);
        self.set_count(count + n);
        n
    }
}

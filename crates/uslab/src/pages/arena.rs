//! The arena: one reserved range, its metadata beside it, and the page map.
//!
//! All addresses are decided once, in [`init`]; only the committed end moves, upwards, under the buddy's lock.

use super::chunk::Chunk;
use super::{CHUNK_BYTES, CHUNK_PAGES, DESCRIPTOR_BYTES, PAGE_BYTES, PAGE_SHIFT};
use crate::rseq::{Face, Slot};
use crate::{os, stats};
use core::sync::atomic::{
    AtomicPtr, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// The number of a page, counted from the arena's first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageIndex(pub u32);

impl PageIndex {
    /// The page `n` further on.
    pub fn plus(self, n: usize) -> PageIndex {
        PageIndex(self.0 + n as u32)
    }
}

/// Most address space for objects that is asked for: 1 TiB, less a bit, so that the page map is not exactly 2 GiB: an entry whose address agrees
/// with that of slots or sheaves in its low 28 bits was seen to cost Zen cores eight cycles a free (docs/adr/0010).
const DATA_MOST_BYTES: usize = (1 << 40) - 48 * CHUNK_BYTES;
/// Least that is worth starting with.
const DATA_LEAST_BYTES: usize = 8 * CHUNK_BYTES;

/// Bytes of the page map of an arena of full size, which ends where the data begin.
const FULL_MAP_BYTES: usize = DATA_MOST_BYTES / PAGE_BYTES * size_of::<AtomicPtr<Slot>>();
const _: () = assert!(FULL_MAP_BYTES.is_multiple_of(64 << 10));
/// A base from which no address that a program can have is less than [`DATA_MOST_BYTES`] away.
const NO_BASE: usize = 1 << 63;

/// What `free` reads stands together on one line, and not at its start: see [`Slot`].
#[repr(C, align(64))]
struct Arena {
    reserved_bytes: AtomicUsize,
    /// `base` if the arena has its full size, so that bounds are constants and the page map is all readable; else [`NO_BASE`].
    full_base: AtomicUsize,
    base: AtomicUsize,
    /// Bytes from `base` that are committed; 0 until the arena exists.
    committed_bytes: AtomicUsize,
    map: AtomicPtr<AtomicPtr<Slot>>,
    descriptors: AtomicPtr<u8>,
    chunks: AtomicPtr<Chunk>,
    boot: AtomicUsize,
    boot_bytes: AtomicUsize,
}

static ARENA: Arena = Arena {
    reserved_bytes: AtomicUsize::new(0),
    full_base: AtomicUsize::new(NO_BASE),
    base: AtomicUsize::new(0),
    committed_bytes: AtomicUsize::new(0),
    map: AtomicPtr::new(core::ptr::null_mut()),
    descriptors: AtomicPtr::new(core::ptr::null_mut()),
    chunks: AtomicPtr::new(core::ptr::null_mut()),
    boot: AtomicUsize::new(0),
    boot_bytes: AtomicUsize::new(0),
};

/// Bytes of each metadata table for `data` bytes of objects.
fn table_bytes(data: usize) -> [usize; 4] {
    let pages = data / PAGE_BYTES;
    let up = |bytes: usize| bytes.next_multiple_of(64 << 10);
    [
        up(pages * DESCRIPTOR_BYTES),
        up(pages / CHUNK_PAGES * size_of::<Chunk>()),
        up((data / 1024).max(4 << 20)),
        up(pages * size_of::<AtomicPtr<Slot>>()),
    ]
}

/// Reserves the arena: 1 TiB, or as much as the limits of the process leave. False if not even a little can be had.
pub fn init() -> bool {
    // An address that escapes keeps the compiler from making a static of each field. Then the linker put `full_base`, which every `free` reads, on one line with
    // the buddy's lock, and each change of pages on another CPU cost every thread a miss (docs/adr/0017).
    core::hint::black_box(&ARENA);
    let mut data = DATA_MOST_BYTES;
    if let Some(limit) = os::memory::address_space_limit() {
        // The program's own mappings and stacks want room as well.
        data = data.min(limit / 8 * 5 / CHUNK_BYTES * CHUNK_BYTES);
    }
    while data >= DATA_LEAST_BYTES {
        let tables = table_bytes(data);
        let total = tables.iter().sum::<usize>() + data + CHUNK_BYTES;
        if let Some(start) = os::memory::reserve(total) {
            // SAFETY: the whole of a fresh reservation.
            unsafe { os::memory::refuse_huge_pages(start, total) };
            place(start, data, tables);
            return true;
        }
        data = data / 2 / CHUNK_BYTES * CHUNK_BYTES;
    }
    false
}

fn place(start: *mut u8, data: usize, [descriptors, chunks, boot, map]: [usize; 4]) {
    let start = start as usize;
    // The page map ends where the data begin: its place follows from the base, one word to load in `free`.
    let base = (start + descriptors + chunks + boot + map).next_multiple_of(CHUNK_BYTES);
    ARENA.descriptors.store(start as *mut u8, Relaxed);
    ARENA.chunks.store((start + descriptors) as *mut Chunk, Relaxed);
    ARENA.boot.store(start + descriptors + chunks, Relaxed);
    ARENA.boot_bytes.store(boot, Relaxed);
    ARENA.map.store((base - map) as *mut AtomicPtr<Slot>, Relaxed);
    ARENA.base.store(base, Relaxed);
    ARENA.reserved_bytes.store(data, Release);
    // SAFETY: the map lies in the reservation, whole pages, and nothing of it is committed yet.
    if data == DATA_MOST_BYTES && unsafe { os::memory::make_readable((base - map) as *mut u8, map) } {
        ARENA.full_base.store(base, Release);
    }
    stats::header().reserved_bytes.store(data as u64, Relaxed);
}

/// Start and size of the part for metadata of other layers; see [`super::boot`].
pub(super) fn boot_range() -> (usize, usize) {
    (ARENA.boot.load(Relaxed), ARENA.boot_bytes.load(Relaxed))
}

/// Pages that there is address space for.
pub(super) fn reserved_pages() -> usize {
    ARENA.reserved_bytes.load(Acquire) / PAGE_BYTES
}

/// Chunks committed so far.
pub(super) fn chunks_committed() -> usize {
    ARENA.committed_bytes.load(Relaxed) / CHUNK_BYTES
}

/// Bytes of address space that have been made usable so far; memory is behind what was used of it.
pub fn committed_bytes() -> usize {
    ARENA.committed_bytes.load(Relaxed)
}

/// Commits `wanted` more chunks, or `least` where so many are refused; says how many. Under the buddy's lock.
pub(super) fn grow(wanted: usize, least: usize) -> usize {
    let have = chunks_committed();
    let room = reserved_pages() / CHUNK_PAGES - have;
    for count in [wanted.max(least), least] {
        if count > 0 && count <= room && commit_chunks(have, count) {
            return count;
        }
    }
    0
}

fn commit_chunks(first: usize, count: usize) -> bool {
    let end = first + count;
    let pages = CHUNK_PAGES;
    // Tables first: a chunk whose metadata cannot be had must not be seen.
    let ok = commit_table(ARENA.map.load(Relaxed) as usize, pages * size_of::<AtomicPtr<Slot>>(), first, end)
        && commit_table(ARENA.descriptors.load(Relaxed) as usize, pages * DESCRIPTOR_BYTES, first, end)
        && commit_table(ARENA.chunks.load(Relaxed) as usize, size_of::<Chunk>(), first, end);
    let base = ARENA.base.load(Relaxed);
    // SAFETY: the range lies in the reservation and was not committed before; chunks are whole system pages.
    let ok =
        ok && unsafe { os::memory::commit((base + first * CHUNK_BYTES) as *mut u8, count * CHUNK_BYTES) };
    if ok {
        let header = stats::header();
        set_owner(PageIndex((first * CHUNK_PAGES) as u32), count * CHUNK_PAGES, Face::NOBODY);
        ARENA.committed_bytes.store(end * CHUNK_BYTES, Release);
        header.committed_bytes.store((end * CHUNK_BYTES) as u64, Relaxed);
        // An upper bound: descriptors of pages that were never used stay untouched.
        let bytes = end * (CHUNK_PAGES * (DESCRIPTOR_BYTES + size_of::<Face>()) + size_of::<Chunk>());
        header.metadata_bytes.store(bytes as u64 + super::boot::used_bytes() as u64, Relaxed);
    }
    ok
}

/// Commits the part of a table that chunks `first .. end` need, in whole system pages.
fn commit_table(table: usize, bytes_per_chunk: usize, first: usize, end: usize) -> bool {
    let page = os::memory::page_bytes();
    let from = (first * bytes_per_chunk).next_multiple_of(page);
    let to = (end * bytes_per_chunk).next_multiple_of(page);
    // SAFETY: tables start at multiples of 64 KiB within the reservation and are large enough for all chunks.
    from == to || unsafe { os::memory::commit((table + from) as *mut u8, to - from) }
}

/// The chunk descriptor of chunk `index`.
///
/// # Safety
/// The chunk must be committed, and the caller must hold the buddy's lock while it uses the pointer.
pub(super) unsafe fn chunk(index: usize) -> *mut Chunk {
    // SAFETY: the caller's promise keeps the index within the committed table.
    unsafe { ARENA.chunks.load(Relaxed).add(index) }
}

/// The page that `pointer` lies in, if it lies in committed memory of the arena.
#[inline(always)]
pub fn page_of(pointer: *const u8) -> Option<PageIndex> {
    let offset = (pointer as usize).wrapping_sub(ARENA.base.load(Relaxed));
    if offset < ARENA.committed_bytes.load(Relaxed) {
        Some(PageIndex((offset >> PAGE_SHIFT) as u32))
    } else {
        None
    }
}

/// Whose page `pointer` lies in, if that is known without another look; what the fast path of `free` asks.
///
/// In an arena of full size the whole page map can be read, and is zero where nothing is committed: so the bound is a constant. In
/// a smaller one every pointer is unknown here, and [`owner_of`] knows better.
#[inline(always)]
pub fn direct_owner_of(pointer: *const u8) -> Option<Face> {
    let base = ARENA.full_base.load(Relaxed);
    let page = (pointer as usize).wrapping_sub(base) >> PAGE_SHIFT;
    if page >= DATA_MOST_BYTES >> PAGE_SHIFT {
        return None;
    }
    let map = base.wrapping_sub(FULL_MAP_BYTES) as *const AtomicPtr<Slot>;
    // SAFETY: the map of a full arena is mapped for ever and ends at `base`; its entries are atomics, zero or a face.
    unsafe {
        let slots = (*map.add(page)).load(Relaxed);
        (!slots.is_null()).then(|| Face::of_slots(slots))
    }
}

/// Whose page `pointer` lies in, if it lies in committed memory of the arena.
#[inline]
pub fn owner_of(pointer: *const u8) -> Option<Face> {
    page_of(pointer).map(owner)
}

/// The address of a page.
#[inline]
pub fn address_of(page: PageIndex) -> *mut u8 {
    (ARENA.base.load(Relaxed) + ((page.0 as usize) << PAGE_SHIFT)) as *mut u8
}

/// The entry of a page. It must come from [`page_of`] or the buddy.
#[inline]
fn entry(page: PageIndex) -> &'static AtomicPtr<Slot> {
    // SAFETY: such pages are committed, and so are their entries, for ever.
    unsafe { &*ARENA.map.load(Relaxed).add(page.0 as usize) }
}

/// Whose page it is. The page must come from [`page_of`] or an allocation.
#[inline]
pub fn owner(page: PageIndex) -> Face {
    // SAFETY: entries always hold a face.
    unsafe { Face::of_slots(entry(page).load(Relaxed)) }
}

/// Says whose the `pages` pages from `first` on are. They must belong to the caller.
pub fn set_owner(first: PageIndex, pages: usize, owner: Face) {
    for n in 0..pages {
        entry(first.plus(n)).store(owner.slots(), Release);
    }
}

/// Makes a page nobody's if it is `owner`'s; says whether it was. Of several that try, one succeeds.
pub fn clear_owner(page: PageIndex, owner: Face) -> bool {
    entry(page).compare_exchange(owner.slots(), Face::NOBODY.slots(), AcqRel, Relaxed).is_ok()
}

/// The 64 bytes of descriptor of a page; those of a run follow one another.
#[inline]
pub fn descriptor(page: PageIndex) -> *mut u8 {
    // In bounds of the table for every valid index; wrapping, so that this is no unsafe operation by itself.
    ARENA.descriptors.load(Relaxed).wrapping_add(page.0 as usize * DESCRIPTOR_BYTES)
}

/// Gives the memory behind the descriptors of `pages` pages back, where they are whole system pages; they read as zero afterwards. The
/// caller must have claimed the pages.
pub(super) fn purge_descriptors(first: PageIndex, pages: usize) {
    let page = os::memory::page_bytes();
    let (start, bytes) = (descriptor(first), pages * DESCRIPTOR_BYTES);
    if bytes.is_multiple_of(page) && (start as usize).is_multiple_of(page) {
        // SAFETY: the descriptors of claimed pages are nobody's, and the range is whole pages of the committed table.
        unsafe { os::memory::purge(start, bytes) };
    }
}

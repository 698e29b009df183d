//! The arena: one range of addresses, its metadata beside it, and the page map.
//!
//! [`init`] chooses the place, once. Chunks are mapped in order, so one bound decides which
//! addresses are ours. The bound only rises, under the buddy's lock. If another mapping of the
//! process stands in the way, the chunks that it covers are *absent*: they lie within the bound,
//! but are not our memory, and have no owner in the page map.

use super::chunk::Chunk;
use super::home::Home;
use super::layout::{
    BOOT_BELOW, CHUNKS_BELOW, DESCRIPTORS_BELOW, Entry, MAP_BYTES, STEP_BYTES, Table, choose,
};
use super::{CHUNK_BYTES, CHUNK_PAGES, DESCRIPTOR_BYTES, PAGE_BYTES, PAGE_SHIFT};
use crate::os::facts::{Fact, facts};
use crate::os::invariant::invariant;
use crate::os::memory::{self, Placed};
use crate::rseq::{Owner, Slot};
use crate::{counters, os};
use core::ops::Range;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, fence,
};

/// The number of a page, counted from the arena's first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageIndex(pub u32);

impl PageIndex {
    /// The page `n` pages further on.
    pub fn plus(self, n: usize) -> PageIndex {
        PageIndex(self.0 + n as u32)
    }
}

/// Upper bound on the chunks that one growth step skips to get past mappings of the process: 64 GiB
/// of addresses, whose part of the page map takes 128 MiB.
const MAX_GAP_CHUNKS: usize = (64 << 30) / CHUNK_BYTES;

/// The arena's addresses and tables. The fields that `free` reads share one cache line, and do not
/// stand at its start: see [`Slot`].
#[repr(C, align(64))]
struct Arena {
    /// Bytes from `base` on that chunks may occupy.
    range_bytes: AtomicUsize,
    base: AtomicUsize,
    /// The bound: bytes from `base` on that are mapped, absent, or were mapped; 0 until there is a
    /// chunk.
    committed_bytes: AtomicUsize,
    /// Bytes of chunks that are mapped. Guarded by the buddy's lock, like the tables.
    mapped_bytes: AtomicUsize,
    /// Bytes within the bound that are no chunks' memory: see [`reserve`].
    reserved_bytes: AtomicUsize,
    /// The program locks what it maps (`mlockall`): the kernel backs fresh chunks with memory at
    /// once, or with `MCL_ONFAULT` as they are touched. `RLIMIT_MEMLOCK` counts all of them either
    /// way, so the arena grows by no more than is needed, and gets no huge pages.
    is_populated: AtomicBool,
    map: Table,
    descriptors: Table,
    chunks: Table,
}

static ARENA: Arena = Arena {
    range_bytes: AtomicUsize::new(0),
    base: AtomicUsize::new(0),
    committed_bytes: AtomicUsize::new(0),
    mapped_bytes: AtomicUsize::new(0),
    reserved_bytes: AtomicUsize::new(0),
    is_populated: AtomicBool::new(false),
    map: Table::new(),
    descriptors: Table::new(),
    chunks: Table::new(),
};

/// The arena's addresses, for a debugger.
pub const FACTS: &[Fact] = facts!(Arena { base, committed_bytes });

/// The address of the arena's structure, for a debugger.
pub const fn structure() -> *const () {
    (&raw const ARENA).cast()
}

/// Chooses the arena's place, unless that has been done. Returns false if no range is free.
pub fn init() -> bool {
    // The escaping address keeps the compiler from making a static of each field. When it did, the
    // linker put `base`, which every `free` reads, on one line with the buddy's lock. Then each
    // change of pages on another CPU cost every thread a miss (docs/adr/0017).
    core::hint::black_box(&ARENA);
    if ARENA.range_bytes.load(Acquire) > 0 {
        return true;
    }
    let Some((base, range_bytes)) = choose((&raw const ARENA).addr()) else { return false };
    ARENA.base.store(base, Relaxed);
    ARENA.range_bytes.store(range_bytes, Release);
    os::checkers::add_roots(base, range_bytes);
    let header = counters::header();
    header.reserved_bytes.store(range_bytes as u64, Relaxed);
    header.arena_start.store((base - DESCRIPTORS_BELOW) as u64, Relaxed);
    header.arena_base.store(base as u64, Relaxed);
    true
}

/// Bytes of boot memory that were handed out; see [`super::boot`].
pub(super) static BOOT_USED: AtomicUsize = AtomicUsize::new(0);

/// The start of boot memory, once [`init`] chose a place; see [`super::boot`].
pub(super) fn boot_start() -> Option<usize> {
    (ARENA.range_bytes.load(Acquire) > 0).then(|| ARENA.base.load(Relaxed) - BOOT_BELOW)
}

/// Pages that the arena's range has addresses for.
pub(super) fn reserved_pages() -> usize {
    ARENA.range_bytes.load(Acquire) / PAGE_BYTES
}

/// Chunks within the bound.
pub(super) fn chunks_committed() -> usize {
    ARENA.committed_bytes.load(Relaxed) / CHUNK_BYTES
}

/// Bytes within the bound: an upper bound on the bytes ever mapped.
pub fn committed_bytes() -> usize {
    ARENA.committed_bytes.load(Relaxed)
}

/// The addresses of the data, up to the bound.
pub fn data() -> Range<usize> {
    let base = ARENA.base.load(Relaxed);
    base..base + committed_bytes()
}

/// The mapped parts of the tables beside the data.
pub fn tables() -> [Range<usize>; 4] {
    let base = ARENA.base.load(Relaxed);
    let boot = base - BOOT_BELOW;
    let boot = boot..boot + BOOT_USED.load(Relaxed).next_multiple_of(STEP_BYTES);
    let mapped = |table: &Table, below| base - below..base - below + table.mapped_bytes();
    [
        mapped(&ARENA.descriptors, DESCRIPTORS_BELOW),
        mapped(&ARENA.chunks, CHUNKS_BELOW),
        mapped(&ARENA.map, MAP_BYTES),
        boot,
    ]
}

/// Whether chunk `index`, which is within the bound, has free pages. All pages of an unmapped chunk
/// count as free. A hint: other threads may change it.
pub fn has_free_pages(index: usize) -> bool {
    // SAFETY: the entry is mapped for ever, and any value is valid.
    unsafe { (&raw const (*chunk(index)).free_pages).read_volatile() > 0 }
}

/// Whether the program locks what it maps, so that the kernel backs fresh chunks with memory at
/// once or, with `MCL_ONFAULT`, keeps what is touched.
pub(super) fn is_populated() -> bool {
    ARENA.is_populated.load(Relaxed)
}

/// Chunks that were just mapped, in a row.
pub(super) struct Grown {
    pub first: usize,
    pub count: usize,
}

/// Takes the addresses of `count` chunks behind the bound for the caller, mapped without access,
/// and returns the first page. `None` if the system refuses, or if there is no room.
///
/// For the other layers these chunks are absent: the buddy never hands their pages out. The caller
/// may set owners of their pages. The caller holds the buddy's lock.
pub(super) fn reserve(count: usize) -> Option<PageIndex> {
    let bound = chunks_committed();
    let room = (reserved_pages() / CHUNK_PAGES).checked_sub(bound)?;
    let map = |first, count| memory::map_closed_at(address_of_chunk(first), count * CHUNK_BYTES);
    let unmap = |first, count| {
        // SAFETY: `map` has just mapped them, behind the bound, so that no other code knows them.
        unsafe { unmap_memory(first, count) };
    };
    let (mut placed, mut gap) = (Placed::Taken, 0);
    while placed == Placed::Taken && gap <= MAX_GAP_CHUNKS && gap + count <= room {
        placed = commit_by(bound + gap, count, map, unmap);
        if placed == Placed::Mapped {
            ARENA.reserved_bytes.fetch_add(count * CHUNK_BYTES, Relaxed);
            return Some(PageIndex(((bound + gap) * CHUNK_PAGES) as u32));
        }
        gap = (gap * 2).max(1);
    }
    None
}

/// Bytes that [`reserve`] took: part of the bound, but not memory of chunks.
pub fn reserved_bytes() -> usize {
    ARENA.reserved_bytes.load(Relaxed)
}

/// Maps `wanted` chunks behind the bound, or `least` chunks if the system refuses so many. Returns
/// `None` if it refuses those too.
///
/// If the program locks what it maps, this maps only `least` chunks. If other
/// mappings stand in the way, the chunks up to their end become absent. The caller holds the
/// buddy's lock, as for every function that maps or unmaps chunks.
pub(super) fn grow(wanted: usize, least: usize) -> Option<Grown> {
    let bound = chunks_committed();
    let room = (reserved_pages() / CHUNK_PAGES).checked_sub(bound)?;
    if bound > 0 {
        memory::learn_commit_mode();
        super::bound::check_limits();
    }
    let wanted = if ARENA.is_populated.load(Relaxed) { least } else { wanted.max(least) };
    let mut placed = Placed::Refused;
    for count in [wanted, least] {
        if count > 0 && count <= room {
            placed = commit(bound, count);
            if placed == Placed::Mapped {
                return Some(Grown { first: bound, count });
            }
        }
    }
    // Doubling the distance gets past any mapping in a few steps; addresses are plentiful.
    let mut gap = 1;
    while placed == Placed::Taken && gap <= MAX_GAP_CHUNKS && gap + least <= room {
        placed = commit(bound + gap, least);
        if placed == Placed::Mapped {
            return Some(Grown { first: bound + gap, count: least });
        }
        gap *= 2;
    }
    None
}

/// Maps `count` chunks from `first` on, which lies at or behind the bound, and moves the bound to
/// their end.
fn commit(first: usize, count: usize) -> Placed {
    // SAFETY: `map_chunks` has just mapped them, behind the bound: no other code knows them.
    let placed = commit_by(first, count, map_chunks, |first, count| unsafe { unmap_chunks(first, count) });
    if placed == Placed::Mapped {
        // SAFETY: the chunk was just mapped, and the caller's lock keeps others away.
        let is_locked = unsafe { memory::is_locked(address_of_chunk(first)) };
        ARENA.is_populated.store(is_locked, Relaxed);
    }
    placed
}

/// [`commit`], with the function that maps the chunks, and the one that undoes it.
fn commit_by(
    first: usize,
    count: usize,
    map: impl FnOnce(usize, usize) -> Placed,
    unmap: impl FnOnce(usize, usize),
) -> Placed {
    let (bound, end) = (chunks_committed(), first + count);
    let placed = map(first, count);
    if placed != Placed::Mapped {
        return placed;
    }
    // The tables come before the bound: no thread may see a chunk without metadata.
    let base = ARENA.base.load(Relaxed);
    let pages = end * CHUNK_PAGES;
    let has_tables = ARENA.map.reach(base - MAP_BYTES, pages * size_of::<Owner>())
        && ARENA.descriptors.reach(base - DESCRIPTORS_BELOW, pages * DESCRIPTOR_BYTES)
        && ARENA.chunks.reach(base - CHUNKS_BELOW, end * size_of::<Entry>());
    if !has_tables {
        unmap(first, count);
        return Placed::Refused;
    }
    set_owner(PageIndex((bound * CHUNK_PAGES) as u32), (end - bound) * CHUNK_PAGES, Owner::NONE);
    invariant!(end > bound, "the bound only rises", end);
    ARENA.committed_bytes.store(end * CHUNK_BYTES, Release);
    // An upper bound: the descriptors of pages that were never used have no memory yet.
    let bytes = end * (CHUNK_PAGES * (DESCRIPTOR_BYTES + size_of::<Owner>()) + size_of::<Entry>());
    counters::header().metadata_bytes.store(bytes as u64 + BOOT_USED.load(Relaxed) as u64, Relaxed);
    Placed::Mapped
}

pub(super) fn address_of_chunk(index: usize) -> usize {
    ARENA.base.load(Relaxed) + index * CHUNK_BYTES
}

fn count_mapped(change: impl Fn(usize, usize) -> usize, count: usize) {
    let mapped_bytes = change(ARENA.mapped_bytes.load(Relaxed), count * CHUNK_BYTES);
    invariant!(mapped_bytes <= isize::MAX as usize, "no more chunks are unmapped than were mapped", count);
    ARENA.mapped_bytes.store(mapped_bytes, Relaxed);
    counters::header().committed_bytes.store(mapped_bytes as u64, Relaxed);
}

/// Maps `count` chunks from `first` on, none of which is mapped. They read as zero. The caller
/// holds the buddy's lock.
pub(super) fn map_chunks(first: usize, count: usize) -> Placed {
    let placed = memory::map_at(address_of_chunk(first), count * CHUNK_BYTES);
    if placed == Placed::Mapped {
        count_mapped(usize::wrapping_add, count);
    }
    placed
}

/// Counts `count` chunks that [`unmap_memory`] unmapped. The caller holds the buddy's lock.
pub(super) fn note_unmapped(count: usize) {
    count_mapped(usize::wrapping_sub, count);
}

/// Unmaps the memory of `count` chunks from `first` on. Returns false, with nothing changed, if the
/// system refuses.
///
/// # Safety
/// The chunks must be mapped and all of their pages the caller's.
pub(super) unsafe fn unmap_memory(first: usize, count: usize) -> bool {
    // SAFETY: the caller's promise: no other code touches the range.
    unsafe { memory::unmap(address_of_chunk(first) as *mut u8, count * CHUNK_BYTES) }
}

/// [`unmap_memory`] and [`note_unmapped`].
///
/// # Safety
/// As [`unmap_memory`]. The caller must hold the buddy's lock.
unsafe fn unmap_chunks(first: usize, count: usize) {
    // SAFETY: the caller's promise.
    if unsafe { unmap_memory(first, count) } {
        note_unmapped(count);
    }
}

/// The chunk descriptor of chunk `index`.
///
/// # Safety
/// The chunk must be within the bound, and the caller must hold the buddy's lock while it uses the
/// pointer.
pub(super) unsafe fn chunk(index: usize) -> *mut Chunk {
    // SAFETY: the caller's promise keeps the index within the mapped part of the table.
    unsafe { &raw mut (*chunk_entry(index)).chunk }
}

/// # Safety
/// The chunk must be within the bound.
unsafe fn chunk_entry(index: usize) -> *mut Entry {
    // SAFETY: the caller's promise keeps the index within the mapped part of the table.
    unsafe { ((ARENA.base.load(Relaxed) - CHUNKS_BELOW) as *mut Entry).add(index) }
}

/// Whether chunk `index` must stay mapped for ever; see [`keep_mapped`]. The chunk must be within
/// the bound.
fn is_pinned(index: usize) -> &'static AtomicBool {
    // SAFETY: the table of chunks within the bound is mapped for ever; this part of it is always
    // atomic.
    unsafe { &(*chunk_entry(index)).is_pinned }
}

/// Whether chunk `index`, which is within the bound, may be unmapped when all of it is free.
pub(super) fn may_be_unmapped(index: usize) -> bool {
    !is_pinned(index).load(Relaxed)
}

/// The home of chunk `index`, which must be within the bound.
pub(super) fn home_of_chunk(index: usize) -> Home {
    // SAFETY: as in `is_pinned`.
    Home::from_byte(unsafe { &(*chunk_entry(index)).home }.load(Relaxed))
}

/// Sets the home of chunk `index`, which must be within the bound and in no list. The caller holds
/// the buddy's lock.
pub(super) fn set_home_of_chunk(index: usize, home: Home) {
    // SAFETY: as in `is_pinned`.
    unsafe { &(*chunk_entry(index)).home }.store(home.byte(), Relaxed);
}

/// The home of the memory of `page`, which must lie in the arena.
pub fn home_of(page: PageIndex) -> Home {
    invariant!(contains(page), "a page that has a home lies in the arena", page.0);
    home_of_chunk(page.0 as usize / CHUNK_PAGES)
}

/// Keeps the chunk of `page` mapped for ever, so that threads without a lock may read what was
/// there; at worst they read zeroes.
///
/// The page must be in use and belong to the caller. So no thread is about to unmap the chunk: that
/// takes a free of this page, which comes later, under the buddy's lock.
pub fn keep_mapped(page: PageIndex) {
    invariant!(contains(page), "a page that stays mapped lies in the arena", page.0);
    let is_pinned = is_pinned(page.0 as usize / CHUNK_PAGES);
    // Load first: usually the flag is set already, and the line stays shared.
    if !is_pinned.load(Relaxed) {
        is_pinned.store(true, Relaxed);
    }
}

/// The page that `pointer` lies in, if it lies within the arena's bound.
#[inline(always)]
pub fn page_of(pointer: *const u8) -> Option<PageIndex> {
    let offset = (pointer as usize).wrapping_sub(ARENA.base.load(Relaxed));
    if offset < ARENA.committed_bytes.load(Relaxed) {
        Some(PageIndex((offset >> PAGE_SHIFT) as u32))
    } else {
        None
    }
}

/// As [`page_of`], for a caller that treats `None` as final: the pointer is not ours.
///
/// A thread that got the pointer by synchronization sees the bound of that time, or a later one.
/// Growth stores the bound before it releases the buddy's lock, under which the page was allocated.
/// The bound never falls, so coherence alone rules out an older value.
///
/// A thread that got the pointer through a mere dependency (a load of the pointer itself) may, on
/// aarch64, have loaded the bound before the pointer. The fence orders the two loads.
#[inline]
pub fn page_of_any(pointer: *const u8) -> Option<PageIndex> {
    page_of(pointer).or_else(|| {
        fence(Acquire);
        page_of(pointer)
    })
}

/// The owner of the page that `pointer` lies in, if it lies within the bound. The fast path of
/// `free` calls this.
///
/// Every entry within the bound holds an owner. Growth stores the bound (release) after the entries
/// below it. A thread that got the pointer by synchronization (see [`page_of_any`]) therefore
/// cannot read the zeroes of a fresh table, although its load of the entry depends only on the
/// pointer.
#[inline(always)]
pub fn direct_owner_of(pointer: *const u8) -> Option<Owner> {
    let base = ARENA.base.load(Relaxed);
    let offset = (pointer as usize).wrapping_sub(base);
    if offset >= ARENA.committed_bytes.load(Relaxed) {
        return None;
    }
    let map = base.wrapping_sub(MAP_BYTES) as *const AtomicPtr<Slot>;
    // SAFETY: the map ends at `base`; within the bound it is mapped for ever, and its entries are
    // owners.
    Some(unsafe { Owner::of_slots((*map.add(offset >> PAGE_SHIFT)).load(Relaxed)) })
}

/// The owner of the page that `pointer` lies in, if it lies within the bound.
#[inline]
pub fn owner_of(pointer: *const u8) -> Option<Owner> {
    page_of(pointer).map(owner)
}

/// Whether a page lies within the bound.
#[inline]
pub fn contains(page: PageIndex) -> bool {
    ((page.0 as usize) << PAGE_SHIFT) < ARENA.committed_bytes.load(Relaxed)
}

/// Whether the distance of each of `addresses` from the arena's start is a multiple of `align`, a
/// power of two up to a page, and less than the bytes within the bound, rounded up to a power of
/// two. Two instructions an address.
#[inline]
pub fn may_contain(addresses: &[*mut u8], align: usize) -> bool {
    let base = ARENA.base.load(Relaxed);
    let bits = addresses.iter().fold(0, |bits, address| bits | address.addr().wrapping_sub(base));
    bits & (align - 1) == 0 && bits < ARENA.committed_bytes.load(Relaxed).next_power_of_two()
}

/// The address of a page.
#[inline]
pub fn address_of(page: PageIndex) -> *mut u8 {
    (ARENA.base.load(Relaxed) + ((page.0 as usize) << PAGE_SHIFT)) as *mut u8
}

/// The page map's entry of a page, which must come from [`page_of`] or the buddy.
#[inline]
fn entry(page: PageIndex) -> &'static AtomicPtr<Slot> {
    &entries(page, 1)[0]
}

/// The page map's entries of the `pages` pages from `first` on, which lie within the bound.
#[inline]
fn entries(first: PageIndex, pages: usize) -> &'static [AtomicPtr<Slot>] {
    let map = (ARENA.base.load(Relaxed) - MAP_BYTES) as *const AtomicPtr<Slot>;
    // SAFETY: the entries of pages within the bound are mapped, for ever.
    unsafe { core::slice::from_raw_parts(map.add(first.0 as usize), pages) }
}

/// The owner of a page, which must come from [`page_of`] or an allocation.
#[inline]
pub fn owner(page: PageIndex) -> Owner {
    // SAFETY: entries always hold an owner.
    unsafe { Owner::of_slots(entry(page).load(Relaxed)) }
}

/// Whether none of the `pages` pages from `first` on, which lie within the bound, has an owner.
#[inline]
pub(super) fn are_unowned(first: PageIndex, pages: usize) -> bool {
    // All are read: without a branch for each, that takes less time.
    let none = Owner::NONE.slots();
    let different = |entry: &AtomicPtr<Slot>| entry.load(Relaxed).addr() ^ none.addr();
    entries(first, pages).iter().fold(0, |bits, entry| bits | different(entry)) == 0
}

/// Sets the owner of the `pages` pages from `first` on, which must belong to the caller.
pub fn set_owner(first: PageIndex, pages: usize, owner: Owner) {
    for entry in entries(first, pages) {
        invariant!(
            owner == Owner::NONE || entry.load(Relaxed) == Owner::NONE.slots(),
            "a page has one owner at a time",
            first.0
        );
        entry.store(owner.slots(), Release);
    }
}

/// Clears a page's owner if it is `owner`; returns whether it was. Of several threads that try, one
/// succeeds.
pub fn clear_owner(page: PageIndex, owner: Owner) -> bool {
    entry(page).compare_exchange(owner.slots(), Owner::NONE.slots(), AcqRel, Relaxed).is_ok()
}

/// The 64 bytes of descriptor of a page. The descriptors of a run are adjacent.
#[inline]
pub fn descriptor(page: PageIndex) -> *mut u8 {
    (ARENA.base.load(Relaxed).wrapping_sub(DESCRIPTORS_BELOW) + page.0 as usize * DESCRIPTOR_BYTES) as *mut u8
}

/// Purges the descriptors of `pages` pages, if they fill whole system pages. They read as zero
/// afterwards. The caller must have claimed the pages.
pub(super) fn purge_descriptors(first: PageIndex, pages: usize) {
    let page = os::memory::page_bytes();
    let (start, bytes) = (descriptor(first), pages * DESCRIPTOR_BYTES);
    if bytes.is_multiple_of(page) && (start as usize).is_multiple_of(page) {
        // SAFETY: the descriptors of claimed pages are unused, and the range is whole pages of the
        // mapped table. Locked memory keeps its contents: no reader relies on zeroes.
        unsafe { os::memory::purge(start, bytes) };
    }
}

//! The memory of the records: segments that are mapped when a cache first needs one.
//!
//! ```text
//!   segment 0   header, shrinkers, records 0 ..= 975    always: see `publish`
//!   segment 1   records 976 ..= 1999                    once a cache has one of these ids
//!   ...
//!   segment 64  the last records
//! ```
//!
//! A process with few caches has segment 0 alone. If all records were zeroed static memory, or one
//! mapping of the file, they would count in full where a program locks its memory.
//!
//! A segment lies in private memory, or in the file while the process publishes. No descriptor of
//! the file is kept, and its name may be gone: the kernel maps the file once more from the mapping
//! of a segment before (`mremap` with the old size 0). Where it refuses, the segment is private,
//! and no other process sees its caches. Where there is no memory either, these caches share one
//! record, and are not counted. The next cache with an id of that segment tries again. Caches made
//! before stay without a record then.
//!
//! A page of the file for which the file system has no memory left becomes private memory too: an
//! access would raise SIGBUS.
//!
//! A segment is mapped once and stays, so that a record has one address: threads use it without a
//! lock. [`late`](super::late) alone moves records, to a file.

use super::layout::{
    HEADER_BYTES, MAX_RECORDS, Record, SEGMENT_BYTES, SEGMENTS, SHRINKERS_OFFSET, STATE_UNUSED, record_offset,
};
use super::publish::{base, header, is_shared, overflow, private};
use crate::os;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// One of the segments behind the first.
struct Segment {
    /// Its start; null before its first use, and where there was no memory.
    start: AtomicPtr<u8>,
    /// Its start in private memory; null where it began in the file.
    private: AtomicPtr<u8>,
}

/// The segments, by number. The first entry is not used.
static TABLE: [Segment; SEGMENTS] =
    [const { Segment { start: AtomicPtr::new(null_mut()), private: AtomicPtr::new(null_mut()) } }; SEGMENTS];

/// The segment at that address, if it is one.
fn mapped(start: *mut u8) -> Option<*mut u8> {
    (!start.is_null()).then_some(start)
}

/// The start of segment `number`, if it is mapped.
fn start(number: usize) -> Option<*mut u8> {
    if number == 0 { Some(base()) } else { mapped(TABLE.get(number)?.start.load(Acquire)) }
}

/// The record at `offset` in the segment at `start`.
///
/// # Safety
/// The segment must stay mapped, and a record must lie there.
unsafe fn at(start: *mut u8, offset: usize) -> &'static Record {
    // SAFETY: the caller's promise; a record is made of atomics, and valid when zero.
    unsafe { &*start.add(offset % SEGMENT_BYTES).cast::<Record>() }
}

/// The figures of cache `id`. Those without memory share one record, which no reader shows.
#[inline]
pub fn record(id: u16) -> &'static Record {
    let offset = record_offset(usize::from(id));
    match start(offset / SEGMENT_BYTES) {
        // SAFETY: a segment is never unmapped while a record of it is in use.
        Some(start) => unsafe { at(start, offset) },
        None => overflow(),
    }
}

/// Whether cache `id` has a record of its own. A segment may be mapped after caches with its ids:
/// theirs describe no cache.
pub fn has_record(id: u16) -> bool {
    let offset = record_offset(usize::from(id));
    match offset / SEGMENT_BYTES {
        0 => true,
        // SAFETY: as in `record`.
        number => start(number)
            .is_some_and(|start| unsafe { at(start, offset) }.state.load(Relaxed) != STATE_UNUSED),
    }
}

/// The records that are in use, or were.
pub fn records() -> impl Iterator<Item = &'static Record> {
    used_ids().filter(|&id| has_record(id)).map(record)
}

fn used_ids() -> impl Iterator<Item = u16> {
    let used = (header().records_used.load(Relaxed) as usize).min(MAX_RECORDS);
    (0..used).map(|id| id as u16)
}

/// Segments that hold records in use, or did.
pub(super) fn used() -> usize {
    let records = (header().records_used.load(Relaxed) as usize).min(MAX_RECORDS);
    record_offset(records).div_ceil(SEGMENT_BYTES)
}

/// Maps the memory of the record of cache `id`, unless that has been done, and makes sure that it
/// can be written. The caller holds the lock under which caches are made.
pub fn provide(id: u16) {
    let offset = record_offset(usize::from(id));
    let number = offset / SEGMENT_BYTES;
    let segment = &TABLE[number];
    if number > 0 && segment.start.load(Relaxed).is_null() {
        let start = in_file(number).or_else(|| {
            let start = os::memory::map_private(SEGMENT_BYTES)?;
            segment.private.store(start, Relaxed);
            Some(start)
        });
        segment.start.store(start.unwrap_or(null_mut()), Release);
    }
    if is_in_file(number)
        && let Some(start) = start(number)
    {
        let record = start.wrapping_add(offset % SEGMENT_BYTES);
        // SAFETY: a record of a segment. Where its page has no memory, no record there is in use,
        // or its next access would end the process.
        unsafe {
            if !os::memory::back(record, size_of::<Record>()) {
                os::memory::replace(record, size_of::<Record>());
            }
        }
    }
}

/// Makes sure that the figures of shrinkers can be written. Called before a shrinker gets its
/// entry.
pub fn provide_shrinkers() {
    if is_shared() {
        let table = base().wrapping_add(SHRINKERS_OFFSET);
        let bytes = HEADER_BYTES - SHRINKERS_OFFSET;
        // SAFETY: the table of the file's first segment. If its pages have no memory, no shrinker
        // is in use: the first one gave them all memory.
        unsafe {
            if !os::memory::back(table, bytes) {
                os::memory::replace(table, bytes);
            }
        }
    }
}

/// Records in use when the process was about to fork, and its large objects and their bytes. The
/// child begins with these, not with what the parent's file says later: the parent frees some large
/// objects meanwhile, and the child's frees of the same objects would take the sums below zero.
static USED_AT_FORK: AtomicU32 = AtomicU32::new(0);
static LARGE_AT_FORK: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Notes what is in use, for the child: the parent may go on before the child has read the file.
/// The caller holds the locks of caches and pages, or no other thread works.
pub fn note_fork() {
    let header = header();
    USED_AT_FORK.store(header.records_used.load(Relaxed), Relaxed);
    for (kept, now) in LARGE_AT_FORK.iter().zip([&header.large_objects, &header.large_bytes]) {
        kept.store(now.load(Relaxed), Relaxed);
    }
}

pub(super) fn used_at_fork() -> u32 {
    USED_AT_FORK.load(Relaxed)
}

/// Sets the figures of large objects to those at the fork, in the child.
pub(super) fn restore_large() {
    let header = header();
    for (kept, now) in LARGE_AT_FORK.iter().zip([&header.large_objects, &header.large_bytes]) {
        now.store(kept.load(Relaxed), Relaxed);
    }
}

/// Maps segment `number` of the file, from the last segment before that lies there.
fn in_file(number: usize) -> Option<*mut u8> {
    let before = (0..number).rev().find(|&before| is_in_file(before))?;
    let page_bytes = os::memory::page_bytes();
    let last = start(before)?.wrapping_add(SEGMENT_BYTES - page_bytes);
    let skipped = (number - before - 1) * SEGMENT_BYTES;
    // SAFETY: the last page of a segment, which is a mapping of the file.
    unsafe { os::memory::map_behind(last, page_bytes + skipped, SEGMENT_BYTES) }
}

/// Whether segment `number` lies in the file.
fn is_in_file(number: usize) -> bool {
    match number {
        0 => is_shared(),
        _ => {
            let segment = &TABLE[number];
            mapped(segment.start.load(Relaxed)).is_some_and(|now| now != segment.private.load(Relaxed))
        }
    }
}

/// Moves the segments behind the first to the file, whose first `count` segments are mapped at
/// `file`.
pub(super) fn use_shared(file: *mut u8, count: usize) {
    for (number, segment) in TABLE.iter().enumerate().take(count).skip(1) {
        if mapped(segment.start.load(Relaxed)).is_some() {
            segment.start.store(file.wrapping_add(number * SEGMENT_BYTES), Release);
        }
    }
}

/// Calls `visit` for each record of the first `count` segments that began in private memory, with
/// its offset in the file. Once the figures are in the file, those of a segment that is private
/// still have no place there.
pub(super) fn for_each_private(count: usize, mut visit: impl FnMut(&'static Record, usize)) {
    for offset in used_ids().map(|id| record_offset(usize::from(id))) {
        let before = match offset / SEGMENT_BYTES {
            0 => private(),
            number if number >= count => return,
            number if is_shared() && !is_in_file(number) => continue,
            number => TABLE[number].private.load(Relaxed),
        };
        if !before.is_null() {
            // SAFETY: private segments stay mapped, but in a fork child, which has one thread.
            visit(unsafe { at(before, offset) }, offset);
        }
    }
}

/// The segments in the file, behind the first: number and address.
pub(super) fn in_use_in_file() -> impl Iterator<Item = (usize, *mut u8)> {
    (1..used()).filter(|&number| is_in_file(number)).filter_map(|number| Some((number, start(number)?)))
}

/// In a fork child: copies each segment in the parent's file to private memory, and uses the copy.
/// Returns the addresses of the parent's segments, by number; null for others.
pub(super) fn leave_file() -> [*mut u8; SEGMENTS] {
    let mut parents = [null_mut(); SEGMENTS];
    let used_bytes = record_offset((header().records_used.load(Relaxed) as usize).min(MAX_RECORDS));
    for (number, from) in in_use_in_file() {
        let segment = &TABLE[number];
        let mut copy = segment.private.load(Relaxed);
        if copy.is_null() {
            copy = os::memory::map_private(SEGMENT_BYTES).unwrap_or(null_mut());
        }
        if !copy.is_null() {
            // Only what is used, or the child would touch pages in vain.
            let bytes = (used_bytes - number * SEGMENT_BYTES).min(SEGMENT_BYTES);
            // SAFETY: both are segments; the child has one thread, so no other thread writes.
            unsafe { core::ptr::copy_nonoverlapping(from, copy, bytes) };
            parents[number] = from;
        }
        segment.private.store(copy, Relaxed);
        segment.start.store(copy, Relaxed);
    }
    parents
}

/// In a fork child, after [`leave_file`]: its own file is mapped where the parent's was. Copies the
/// segments there, and unmaps the copies. A segment for which the file system has no memory stays
/// in its copy.
pub(super) fn enter_file(parents: &[*mut u8; SEGMENTS]) {
    let used_bytes = record_offset((header().records_used.load(Relaxed) as usize).min(MAX_RECORDS));
    for (number, &to) in parents.iter().enumerate().filter(|(_, to)| !to.is_null()) {
        let segment = &TABLE[number];
        let bytes = (used_bytes - number * SEGMENT_BYTES).min(SEGMENT_BYTES);
        // SAFETY: a segment of the child's file.
        if !unsafe { os::memory::back(to, bytes) } {
            continue;
        }
        let copy = segment.private.swap(null_mut(), Relaxed);
        segment.start.store(to, Relaxed);
        // SAFETY: both are segments of this process, which has one thread; no record of the copy
        // is in use.
        unsafe {
            core::ptr::copy_nonoverlapping(copy, to, bytes);
            os::memory::unmap(copy, SEGMENT_BYTES);
        }
    }
}

const _: () = assert!(SEGMENT_BYTES.is_power_of_two() && HEADER_BYTES < SEGMENT_BYTES);

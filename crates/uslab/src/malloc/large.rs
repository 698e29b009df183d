//! Large objects: each is a run of pages, described in the descriptor of its first page.
//!
//! In the page map only the first page of a run has an owner ([`LARGE_ID`]). So `free` accepts only
//! a pointer into the first page.

use super::classes::{Class, MAX_DIRECT_BYTES};
use super::debugged;
use super::list::{self, head};
use super::profiled::table::{self, End};
use super::small;
use crate::cache::debugged::{Family, Release};
use crate::cache::registry::{self, LARGE_ID};
use crate::cache::{Core, hooks, start};
use crate::counters;
use crate::os;
use crate::os::invariant::invariant;
use crate::os::memory::Moved;
use crate::pages::{
    self, CHUNK_BYTES, CHUNK_PAGES, Fill, PAGE_BYTES, PAGE_SHIFT, PageIndex, Run, Temperature,
};
use crate::rseq::Owner;
use crate::slab::{Misuse, report_misuse};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Smallest object whose pages `realloc` moves instead of copying bytes. A remap costs about as
/// much as a copy of a few hundred kilobytes.
const MIN_MOVE_BYTES: usize = 1 << 20;

/// Where the library may not ask what is resident, an object of this size gives all memory back
/// before it serves zeroes: 32 MiB, as in glibc.
const MIN_PURGED_BYTES: usize = 32 << 20;

/// Upper bound on the moves of a process; beyond it, `realloc` copies bytes. Each move may split a
/// mapping into four.
const MAX_MOVES: u32 = 4096;
static MOVES: AtomicU32 = AtomicU32::new(0);

/// The owner of a run's first page in the page map.
const OWNER: Owner = Owner::plain(LARGE_ID);

/// The name of these objects in misuse reports.
pub(super) const NAME: &str = "large objects";

/// Allocates `size` bytes aligned to `align`. Also returns whether they are known to be zero.
/// `None` if memory is used up.
pub(super) fn alloc(size: usize, align: usize, family: Family) -> Option<(*mut u8, bool)> {
    alloc_with(size, align, Reclaim::Yes, family)
}

/// Whether an allocation reclaims memory when there are no free pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reclaim {
    Yes,
    No,
}

/// [`alloc`], with reclaim or without.
pub(super) fn alloc_with(
    size: usize,
    align: usize,
    reclaim: Reclaim,
    family: Family,
) -> Option<(*mut u8, bool)> {
    if size > isize::MAX as usize || !start::ensure() {
        return None;
    }
    match debugged::letters(size) {
        0 => alloc_plain(size, align, reclaim),
        letters => debugged::alloc(size, align, letters, family, reclaim),
    }
}

/// [`alloc_with`], never debugged.
pub(super) fn alloc_plain(size: usize, align: usize, reclaim: Reclaim) -> Option<(*mut u8, bool)> {
    if size > isize::MAX as usize || !start::ensure() {
        return None;
    }
    let count = size.div_ceil(PAGE_BYTES).max(1);
    let align_order = (align.max(PAGE_BYTES) >> PAGE_SHIFT).trailing_zeros();
    let run = take_pages(count, align_order, reclaim)?;
    adopt(run);
    Some((pages::address_of(run.first), run.zeroed))
}

/// The object of [`alloc_with`] or [`alloc_plain`], zeroed.
///
/// # Safety
/// The object must have `size` bytes, which are the caller's alone.
pub(super) unsafe fn zeroed((object, known_zero): (*mut u8, bool), size: usize) -> *mut u8 {
    if !known_zero {
        // SAFETY: the caller's promise.
        unsafe { zero(object, size) };
    }
    object
}

/// Writes zeroes over an object. Chunks inside it of which little is resident give their memory
/// back instead. So a large table of which the program touches little stays small when it takes
/// the pages of another one.
///
/// # Safety
/// The object must have `size` bytes, which are the caller's alone.
unsafe fn zero(object: *mut u8, size: usize) {
    let _errno = os::errno::Preserved::new();
    let is_large = size >= MIN_PURGED_BYTES;
    let (mut at, end) = (object.addr(), object.addr() + size);
    while at < end {
        let next = (at + 1).next_multiple_of(CHUNK_BYTES).min(end);
        let part = object.with_addr(at);
        let chunk = pages::page_of(part).filter(|_| next - at == CHUNK_BYTES);
        let is_purged = chunk.is_some_and(|first| {
            // SAFETY: a whole chunk inside the object, which is the caller's.
            unsafe { pages::purge_sparse_chunk(first, is_large) }
        });
        if !is_purged {
            // SAFETY: the caller's promise.
            unsafe { part.write_bytes(0, next - at) };
        }
        at = next;
    }
}

/// Takes a run of `count` pages, whose first is a multiple of `2^align_order`.
pub(super) fn take_pages(count: usize, align_order: u32, reclaim: Reclaim) -> Option<Run> {
    let _errno = os::errno::Preserved::new();
    let pages = || pages::alloc(count, align_order, Temperature::Cold, Fill::Sparse);
    let mut run = pages();
    // Evict no entries for a request that can never succeed.
    if run.is_none() && reclaim == Reclaim::Yes && pages::is_possible(count, align_order) {
        (hooks::get().short)(count.saturating_mul(PAGE_BYTES), &mut || {
            run = pages();
            run.is_some()
        });
    }
    let run = run?;
    invariant!(run.pages == count, "a run has the pages that were asked for", run.pages);
    Some(run)
}

/// Makes a run that the caller owns a large object.
pub(super) fn adopt(run: Run) {
    invariant!(pages::owner(run.first) == Owner::NONE, "a fresh run has no owner", run.first.0);
    let head = head(run.first);
    head.pages.store(run.pages as u32, Relaxed);
    head.debugged.store(0, Relaxed);
    head.reset_links();
    pages::set_owner(run.first, 1, OWNER);
    counters::header().large_allocs.fetch_add(1, Relaxed);
    count_object(1, run.pages as i64);
}

fn count_object(objects: i64, pages: i64) {
    let header = counters::header();
    header.large_objects.fetch_add(objects as u64, Relaxed);
    header.large_bytes.fetch_add((pages * PAGE_BYTES as i64) as u64, Relaxed);
    if pages > 0 {
        counters::peak::note_large();
    }
}

/// Bytes of the run that starts at `page`.
pub(super) fn bytes(page: PageIndex) -> usize {
    head(page).pages.load(Relaxed) as usize * PAGE_BYTES
}

/// Frees the run whose first page is `page`. Reports misuse if `pointer` is not its start.
pub(super) fn free(page: PageIndex, pointer: *mut u8, release: Release) {
    if debugged::is_debugged(page) {
        if pointer == pages::address_of(page) {
            return debugged::free(page, release);
        }
        return debugged::report_misuse(page, pointer);
    }
    if pointer != pages::address_of(page) {
        return report_misuse(Misuse::Inside(pages::address_of(page) as usize), pointer, NAME);
    }
    list::forget(page);
    if !pages::clear_owner(page, OWNER) {
        return report_misuse(Misuse::DoubleFree, pointer, NAME);
    }
    let count = head(page).pages.load(Relaxed) as usize;
    let (sample, class_bytes) = (head(page).sample.load(Relaxed), head(page).class_bytes.load(Relaxed));
    invariant!(count > 0, "a large object has a page", pointer);
    count_object(-1, -(count as i64));
    pages::free(page, count, Temperature::Cold);
    counters::peak::note_system();
    if sample != 0 {
        table::end(sample, End::Freed);
    }
    forget_class(class_bytes as usize);
}

/// Makes a fresh object a sampled one, which stands for one of a class, or for itself with 0.
pub(super) fn set_sample(pointer: *mut u8, number: u32, class_bytes: usize) {
    if let Some(page) = start_of(pointer) {
        head(page).sample.store(number, Relaxed);
        head(page).class_bytes.store(class_bytes as u32, Relaxed);
    }
}

/// Exchanges the number of a sample; returns the one before, and 0 if no large object starts at
/// `pointer`.
pub(super) fn swap_sample(pointer: *mut u8, number: u32) -> u32 {
    start_of(pointer).map_or(0, |page| head(page).sample.swap(number, Relaxed))
}

/// Usable bytes of the large object that starts at `pointer`; `None` if none does.
pub(super) fn usable_at(pointer: *mut u8) -> Option<usize> {
    start_of(pointer).map(usable_bytes)
}

/// Usable bytes of the object that starts at `page`: those of its class, if it is a sampled one.
pub(super) fn usable_bytes(page: PageIndex) -> usize {
    match head(page).class_bytes.load(Relaxed) as usize {
        0 => bytes(page),
        class_bytes => class_bytes,
    }
}

/// Whether the object that starts at `page` stands for one of a size class.
pub(super) fn is_of_class(page: PageIndex) -> bool {
    head(page).class_bytes.load(Relaxed) != 0
}

/// [`is_of_class`], of the large object that starts at `pointer`, if one does.
pub(super) fn is_of_class_at(pointer: *mut u8) -> bool {
    start_of(pointer).is_some_and(is_of_class)
}

/// Notes that an object that stood for one of a class of `bytes` bytes does so no more.
fn forget_class(bytes: usize) {
    if bytes != 0
        && bytes <= MAX_DIRECT_BYTES
        && let Some(class) = Class::of(bytes)
    {
        small::forget_sample(class.index());
    }
}

/// Counts a debugged run as freed: its pages may stay for a while.
pub(super) fn count_freed(page: PageIndex) {
    count_object(-1, -i64::from(head(page).pages.load(Relaxed)));
}

/// Resizes the object in place: frees pages at its end, or takes the free pages behind it. False if
/// those are not free.
pub(super) fn resize(pointer: *mut u8, size: usize) -> bool {
    let _errno = os::errno::Preserved::new();
    let Some(page) = start_of(pointer) else { return false };
    if debugged::is_debugged(page) || debugged::letters(size) != 0 {
        return false;
    }
    let class_bytes = head(page).class_bytes.load(Relaxed) as usize;
    if class_bytes != 0 {
        // From here on it is a large object like any other.
        head(page).class_bytes.store(0, Relaxed);
        forget_class(class_bytes);
    }
    let have = head(page).pages.load(Relaxed) as usize;
    let want = size.div_ceil(PAGE_BYTES);
    if want < have {
        head(page).pages.store(want as u32, Relaxed);
        pages::free(page.plus(want), have - want, Temperature::Cold);
    } else if want > have {
        if size > isize::MAX as usize || !pages::extend(page.plus(have), want - have) {
            return false;
        }
        head(page).pages.store(want as u32, Relaxed);
    }
    count_object(0, want as i64 - have as i64);
    counters::peak::note_system();
    true
}

/// Moves a large object of at least [`MIN_MOVE_BYTES`] to a larger run, page by page.
pub(super) fn move_to(pointer: *mut u8, size: usize) -> Option<*mut u8> {
    let page = start_of(pointer)?;
    let old = bytes(page);
    // Runs of private heaps stand in the heap's list, so they are copied.
    let is_debugged = debugged::is_debugged(page) || debugged::letters(size) != 0;
    if old < MIN_MOVE_BYTES || size < old || head(page).is_listed() || is_debugged {
        return None;
    }
    // For the kernel, moved pages are separate mappings, of which a process may have some 65 000.
    if MOVES.fetch_add(1, Relaxed) >= MAX_MOVES {
        MOVES.store(MAX_MOVES, Relaxed);
        return None;
    }
    let _errno = os::errno::Preserved::new();
    if !old.is_multiple_of(os::memory::page_bytes()) {
        return None;
    }
    let (new, _) = alloc_plain(size, CHUNK_PAGES.min(16) * PAGE_BYTES, Reclaim::Yes)?;
    let to = start_of(new)?;
    // SAFETY: both are live runs; the new one is at least as long, and no thread uses its contents.
    let is_old_fresh = match unsafe { os::memory::move_pages(pointer, new, old) } {
        Moved::Done { is_old_fresh } => is_old_fresh,
        Moved::Refused => {
            free(to, new, Release::PLAIN);
            return None;
        }
        // The new run stays in use for ever, since its addresses may belong to another mapping. One
        // such run is enough: from now on `realloc` copies.
        Moved::Lost => {
            MOVES.store(MAX_MOVES, Relaxed);
            return None;
        }
    };
    pages::note_moved(page, to, old / PAGE_BYTES);
    if pages::clear_owner(page, OWNER) {
        count_object(-1, -((old / PAGE_BYTES) as i64));
        if is_old_fresh {
            pages::free_zeroed(page, old / PAGE_BYTES);
        } else {
            pages::free(page, old / PAGE_BYTES, Temperature::Cold);
        }
    }
    Some(new)
}

/// The start of the run that contains `page`, which no cache owns; `None` if there is none. The run
/// may be a large object or of a medium class. Walks back over the pages before it, so only reports
/// use it.
#[cold]
pub(super) fn around(page: PageIndex) -> Option<*mut u8> {
    let first = (0..=page.0).rev().map(PageIndex).find(|&first| pages::owner(first) != Owner::NONE)?;
    let pages_of = |cache: &Core| if cache.is_run() { cache.usable_bytes() / PAGE_BYTES } else { 0 };
    let pages = match pages::owner(first).id() {
        LARGE_ID => head(first).pages.load(Relaxed) as usize,
        id => registry::cache(id).map_or(0, pages_of),
    };
    (((page.0 - first.0) as usize) < pages).then(|| pages::address_of(first))
}

fn start_of(pointer: *mut u8) -> Option<PageIndex> {
    let page = pages::page_of(pointer)?;
    (pages::owner(page) == OWNER && pages::address_of(page) == pointer).then_some(page)
}

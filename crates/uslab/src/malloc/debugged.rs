//! Debugged objects of more than 32 KiB: runs of pages with a page for record and left zone before
//! them.
//!
//! ```text
//!  │ record, left zone │ bytes asked for                 │ right zone │
//!  └ page without owner└ first page, owned by LARGE_ID ── pages ──────┘
//! ```
//!
//! The medium classes have no cache then: all these sizes are large objects. A freed one keeps its
//! pages for a while, in a quarantine, so that writes to it are found. The quarantine is a ring;
//! the object that leaves it is checked, and its pages go back.

use super::classes::{Class, MAX_SMALL_BYTES};
use super::large::{self, Reclaim};
use super::list::head;
use super::medium::Medium;
use super::small;
use crate::cache::debugged::{self, Debug, Family, Large, Release, Request, Seen};
use crate::cache::registry::LARGE_ID;
use crate::pages::{self, PAGE_BYTES, PAGE_SHIFT, PageIndex, Temperature};
use crate::report::{self, leak::Allocation};
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};

/// Objects in the quarantine.
const PLACES: usize = 64;
/// Bytes that it keeps. The oldest objects leave it first.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Objects beyond the medium classes, for `USLAB_DEBUG`.
const NAME: &str = "malloc-large";

static QUARANTINE: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Whether there was a debugged object of this kind.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// The letters for an object of `size` bytes that is no small one; 0 for no debugging.
pub(super) fn letters(size: usize) -> u8 {
    if debugged::selects_malloc() && size > MAX_SMALL_BYTES { debugged::letters_for(name(size)) } else { 0 }
}

/// Whether the usable bytes of an object of `size` bytes are those that were asked for.
pub(super) fn keeps_size(size: usize) -> bool {
    match Class::of(size) {
        Some(class) => debugged::letters_for(small::NAMES[class.index()]) != 0,
        None => letters(size) != 0,
    }
}

fn name(size: usize) -> &'static str {
    Medium::of(size).map_or(NAME, Medium::name)
}

/// What a run's descriptor says of its debugging: pages before the first one, and letters.
fn note(before: usize, letters: u8) -> u32 {
    (before as u32) << 8 | u32::from(letters)
}

/// Allocates `size` bytes aligned to `align` with these letters. Also returns whether they are
/// known to be zero.
pub(super) fn alloc(
    size: usize,
    align: usize,
    letters: u8,
    family: Family,
    reclaim: Reclaim,
) -> Option<(*mut u8, bool)> {
    let count = size.checked_add(debugged::ZONE_BYTES)?.div_ceil(PAGE_BYTES);
    let before = (align.max(PAGE_BYTES)) >> PAGE_SHIFT;
    let run = large::take_pages(count.checked_add(before)?, before.trailing_zeros(), reclaim)?;
    let first = run.first.plus(before);
    large::adopt(pages::Run { first, pages: count, zeroed: run.zeroed });
    head(first).debugged.store(note(before, letters), Relaxed);
    let pointer = pages::address_of(first);
    with(first, |object, name| object.begin(name, Request { bytes: size, family }, run.zeroed));
    if !IS_USED.swap(true, Relaxed) {
        // The core finds these objects and the quarantine by the hooks, and checks objects only in
        // a process with detailed reports. No debugged cache may exist yet.
        super::install_hooks();
        report::set_detailed();
    }
    Some((pointer, run.zeroed))
}

/// Whether the run that starts at `page` is debugged.
pub(super) fn is_debugged(page: PageIndex) -> bool {
    head(page).debugged.load(Relaxed) != 0
}

/// Calls `use_object` with the debugged object of a run.
fn with<R>(page: PageIndex, use_object: impl FnOnce(&Large<'_>, &'static str) -> R) -> R {
    let letters = head(page).debugged.load(Relaxed) as u8;
    let bytes = large::bytes(page);
    let debug = Debug::of_run(letters, PAGE_BYTES, bytes);
    let object = Large::new(&debug, pages::address_of(page) as usize);
    let name = name(object.asked());
    use_object(&object, name)
}

/// The bytes that the program asked for, unless the object is free.
pub(super) fn asked(page: PageIndex) -> Option<usize> {
    with(page, |object, _| object.is_live().then(|| object.asked()))
}

/// The large object that starts at `page`: its pages, and its state if it is debugged.
pub(crate) fn seen_at(page: PageIndex) -> (usize, Option<Seen>) {
    let seen = is_debugged(page).then(|| with(page, |object, _| object.seen()));
    (large::bytes(page) / PAGE_BYTES, seen)
}

/// The allocation of the large object that starts at `page`, if it is debugged and in use.
pub(crate) fn allocation_at(page: PageIndex) -> Option<Allocation> {
    let is_live = pages::owner(page).id() == LARGE_ID && is_debugged(page);
    is_live.then(|| with(page, |object, name| object.is_live().then(|| object.allocation(name)))).flatten()
}

/// Reports a free of `pointer`, in the debugged run at `page`.
pub(super) fn report_misuse(page: PageIndex, pointer: *const u8) {
    with(page, |object, name| object.report_misuse(name, pointer as usize));
}

/// Frees the debugged run at `page`.
pub(super) fn free(page: PageIndex, release: Release) {
    if !with(page, |object, name| object.end(name, release)) {
        return;
    }
    large::count_freed(page);
    let this = u64::from(page.0) + 1;
    KEPT_BYTES.fetch_add(large::bytes(page), Relaxed);
    let next = NEXT.fetch_add(1, Relaxed);
    let_go(QUARANTINE[next % PLACES].swap(this, AcqRel));
    for place in next + 1..=next + PLACES {
        if KEPT_BYTES.load(Relaxed) <= MAX_KEPT_BYTES {
            break;
        }
        let_go(QUARANTINE[place % PLACES].swap(0, AcqRel));
    }
}

/// Checks an object that left the quarantine, and gives its pages back.
fn let_go(left: u64) {
    if left != 0 {
        let page = PageIndex((left - 1) as u32);
        KEPT_BYTES.fetch_sub(large::bytes(page), Relaxed);
        with(page, |object, name| {
            object.check_free(name);
            object.leave();
        });
        give_back(page);
    }
}

fn give_back(page: PageIndex) {
    let before = (head(page).debugged.swap(0, Relaxed) >> 8) as usize;
    let count = head(page).pages.load(Relaxed) as usize;
    pages::set_owner(page, 1, crate::rseq::Owner::NONE);
    pages::free(PageIndex(page.0 - before as u32), count + before, Temperature::Cold);
}

/// Checks the objects in the quarantine, and those in use; returns how many the program overwrote.
pub(crate) fn check_objects() -> usize {
    QUARANTINE.iter().filter(|place| check_place(place)).count() + check_live()
}

/// Checks the objects in use: it finds them by the page map. Returns how many were overwritten.
fn check_live() -> usize {
    // Nothing is debugged where the program has not allocated such an object.
    if !IS_USED.load(Relaxed) {
        return 0;
    }
    let pages = pages::arena::data().len() / PAGE_BYTES;
    let (mut page, mut count) = (0, 0);
    while page < pages {
        let index = PageIndex(page as u32);
        page += 1;
        if pages::owner(index).id() == LARGE_ID && is_debugged(index) {
            count += usize::from(with(index, |object, name| object.check_live(name)));
            page += (large::bytes(index) / PAGE_BYTES).saturating_sub(1);
        }
    }
    count
}

/// Checks the object in a place. The place is empty meanwhile, so no other thread gives the pages
/// of the object back.
fn check_place(place: &AtomicU64) -> bool {
    let kept = place.swap(0, AcqRel);
    if kept == 0 {
        return false;
    }
    let is_faulty = with(PageIndex((kept - 1) as u32), |object, name| object.check_free(name));
    if place.compare_exchange(0, kept, AcqRel, Relaxed).is_err() {
        let_go(kept);
    }
    is_faulty
}

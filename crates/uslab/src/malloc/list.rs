//! The lists of large objects: each heap has one, linked through the descriptors of the first
//! pages.

use crate::os::Lock;
use crate::pages::{self, PageIndex};
use crate::sync::Rank;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Guards the lists of all heaps: rare, and one lock is easy to hold over a fork.
static LISTS: Lock<()> = Lock::new(Rank::Heap, ());

pub(super) fn lock_for_fork() {
    LISTS.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { LISTS.reset_in_child() } else { LISTS.release_after_fork() }
}

/// No page follows.
const NO_PAGE: u32 = u32::MAX;

/// The descriptor of a run of pages that is one large object.
#[repr(C)]
pub(super) struct Head {
    pub pages: AtomicU32,
    /// Neighbours in the list, under its lock, as is `list`.
    next: AtomicU32,
    prev: AtomicU32,
    /// The list's address; 0 for `malloc`'s own objects, which are in none.
    list: AtomicU64,
}

const _: () = assert!(size_of::<Head>() <= pages::DESCRIPTOR_BYTES);

/// The descriptor of the run that starts at `page`.
pub(super) fn head(page: PageIndex) -> &'static Head {
    // SAFETY: descriptors of committed pages are mapped for ever; all fields are atomics.
    unsafe { &*pages::descriptor(page).cast::<Head>() }
}

impl Head {
    /// Of an object that is in no list.
    pub fn reset_links(&self) {
        self.next.store(NO_PAGE, Relaxed);
        self.prev.store(NO_PAGE, Relaxed);
        self.list.store(0, Relaxed);
    }

    /// Whether the object is a heap's.
    pub fn is_listed(&self) -> bool {
        self.list.load(Relaxed) != 0
    }
}

/// The large objects of a heap, at an address that does not change while there are any.
pub(super) struct List {
    /// First page of the newest.
    first: AtomicU32,
}

impl List {
    pub const fn new() -> List {
        List { first: AtomicU32::new(NO_PAGE) }
    }

    /// The newest object's first page.
    pub fn first(&self) -> Option<PageIndex> {
        let page = self.first.load(Relaxed);
        (page != NO_PAGE).then_some(PageIndex(page))
    }

    /// Adds the object whose first page is `page`.
    pub fn add(&self, page: PageIndex) {
        let head = head(page);
        let _lists = LISTS.lock();
        let next = self.first.load(Relaxed);
        head.list.store((&raw const *self).expose_provenance() as u64, Relaxed);
        head.next.store(next, Relaxed);
        head.prev.store(NO_PAGE, Relaxed);
        if next != NO_PAGE {
            self::head(PageIndex(next)).prev.store(page.0, Relaxed);
        }
        self.first.store(page.0, Relaxed);
    }
}

/// A large object is freed: takes it out of its list, if it is in one.
pub(super) fn forget(page: PageIndex) {
    let freed = head(page);
    if !freed.is_listed() {
        return;
    }
    let _lists = LISTS.lock();
    let list = freed.list.swap(0, Relaxed) as usize;
    let (next, prev) = (freed.next.load(Relaxed), freed.prev.load(Relaxed));
    if next != NO_PAGE {
        head(PageIndex(next)).prev.store(prev, Relaxed);
    }
    if prev != NO_PAGE {
        head(PageIndex(prev)).next.store(next, Relaxed);
    } else if list != 0 {
        // SAFETY: the heap lives while objects are in its list: dropping it empties that.
        unsafe { (*core::ptr::with_exposed_provenance::<List>(list)).first.store(next, Relaxed) };
    }
}

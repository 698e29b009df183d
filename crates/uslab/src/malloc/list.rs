//! The lists of large objects: each heap has one, linked through the descriptors of the first
//! pages.

use crate::cache::gdb;
use crate::os::Lock;
use crate::os::invariant::invariant;
use crate::pages::{self, PageIndex};
use crate::sync::list::{Linked, Links, List};
use crate::sync::{CachePadded, Rank};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Guards the lists of all heaps. Threads seldom take it, and a fork has one lock to hold. Padded:
/// every `malloc` reads the tables beside it.
static LISTS: CachePadded<Lock<()>> = CachePadded(Lock::new(Rank::Heap, ()));

pub(super) fn lock_for_fork() {
    LISTS.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { LISTS.reset_in_child() } else { LISTS.release_after_fork() }
}

/// The descriptor of a run of pages that is one large object.
#[repr(C)]
pub(super) struct Head {
    pub pages: AtomicU32,
    /// Letters and pages before the run, if it is debugged (`debugged`); else 0.
    pub debugged: AtomicU32,
    /// Neighbours in the list of a private heap, guarded by [`LISTS`].
    links: UnsafeCell<Links<u32>>,
    /// The list's address; 0 for `malloc`'s own objects, which stand in no list.
    list: AtomicU64,
    /// The record of a sampled object; 0 for none. See [`super::profiled`].
    pub sample: AtomicU32,
    /// Bytes of its size class, if the object stands for one of a class; else 0.
    pub class_bytes: AtomicU32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Head>() <= pages::DESCRIPTOR_BYTES);
    assert!(offset_of!(Head, pages) == gdb::LARGE_PAGES && offset_of!(Head, debugged) == gdb::LARGE_DEBUGGED);
};

impl Linked for Head {
    type Name = u32;

    unsafe fn links(page: u32) -> *mut Links<u32> {
        head(PageIndex(page)).links.get()
    }
}

/// The descriptor of the run that starts at `page`.
pub(super) fn head(page: PageIndex) -> &'static Head {
    // SAFETY: descriptors of committed pages are mapped for ever; its fields are atomics or a cell.
    unsafe { &*pages::descriptor(page).cast::<Head>() }
}

impl Head {
    /// Resets the links of an object that stands in no list.
    pub fn reset_links(&self) {
        // SAFETY: the run is the caller's, and stands in no list.
        unsafe { self.links.get().write(Links::OUTSIDE) };
        self.list.store(0, Relaxed);
        self.sample.store(0, Relaxed);
        self.class_bytes.store(0, Relaxed);
    }

    /// Whether the object belongs to a heap.
    pub fn is_listed(&self) -> bool {
        self.list.load(Relaxed) != 0
    }

    /// Makes the neighbours of the object disagree with it.
    #[cfg(test)]
    pub fn break_links(&self) {
        // SAFETY: a test has the object's list to itself.
        unsafe { self.links.get().write(Links::OUTSIDE) };
    }
}

/// The large objects of a heap. Its address must not change while it has any.
pub(super) struct Objects {
    list: UnsafeCell<List<Head>>,
}

// SAFETY: threads use the list only under `LISTS`.
unsafe impl Sync for Objects {}
// SAFETY: as above.
unsafe impl Send for Objects {}

impl Objects {
    pub const fn new() -> Objects {
        Objects { list: UnsafeCell::new(List::new()) }
    }

    /// The first page of the newest object.
    pub fn first(&self) -> Option<PageIndex> {
        let _lists = LISTS.lock();
        // SAFETY: the lock is held.
        let page = unsafe { (*self.list.get()).first() };
        (page != u32::MAX).then_some(PageIndex(page))
    }

    /// Writes the first pages of the objects with the least addresses beyond `page`, or of all if
    /// that is `None`, in order to `pages`; returns those. The cost grows with the number of
    /// objects.
    pub fn next_beyond<'a>(&self, page: Option<PageIndex>, pages: &'a mut [PageIndex]) -> &'a [PageIndex] {
        let mut n = 0;
        self.for_each(|found| {
            let is_meant = page.is_none_or(|page| found.0 > page.0);
            if is_meant && (n < pages.len() || found.0 < pages[n - 1].0) {
                let at = pages[..n].partition_point(|page| page.0 < found.0);
                n = (n + 1).min(pages.len());
                pages[at..n].rotate_right(1);
                pages[at] = found;
            }
        });
        &pages[..n]
    }

    /// Calls `visit` with the first page of each object, under the lock of all lists.
    pub fn for_each(&self, mut visit: impl FnMut(PageIndex)) {
        let _lists = LISTS.lock();
        // SAFETY: the lock is held.
        let list = unsafe { &*self.list.get() };
        let first = list.first();
        let mut at = first;
        while at != u32::MAX {
            visit(PageIndex(at));
            // SAFETY: a node of the list, whose lock is held.
            at = unsafe { list.after(at) };
            if at == first {
                break;
            }
        }
    }

    /// Whether the object whose first page is `page` is of this list, or was when it was last used.
    pub fn has(&self, page: PageIndex) -> bool {
        head(page).list.load(Relaxed) == self.name()
    }

    /// What the objects' descriptors have of the list.
    fn name(&self) -> u64 {
        (&raw const *self).expose_provenance() as u64
    }

    /// Adds the object whose first page is `page`.
    pub fn add(&self, page: PageIndex) {
        let _lists = LISTS.lock();
        let list = self.name();
        // SAFETY: the lock is held.
        let first = unsafe { (*self.list.get()).first() };
        invariant!(
            first == u32::MAX || head(PageIndex(first)).list.load(Relaxed) == list,
            "a heap's list has its own objects",
            first
        );
        head(page).list.store(list, Relaxed);
        // SAFETY: the lock is held; the object is new, and in no list.
        unsafe { (*self.list.get()).link_first(page.0) };
    }
}

/// Takes a large object that is being freed out of its list, if it stands in one.
pub(super) fn forget(page: PageIndex) {
    if !head(page).is_listed() {
        return;
    }
    let _lists = LISTS.lock();
    let list = core::ptr::with_exposed_provenance::<Objects>(head(page).list.swap(0, Relaxed) as usize);
    // SAFETY: the heap lives while objects are in its list: dropping it empties that. The lock is
    // held.
    if let Some(objects) = unsafe { list.as_ref() } {
        // SAFETY: the links are those of a list whose lock is held.
        let is_whole = || unsafe { List::<Head>::is_linked(page.0) && List::<Head>::is_whole(page.0) };
        invariant!(is_whole(), "the neighbours of a node link back to it", page.0);
        // SAFETY: as above; the word that was not 0 says that the object is in the list.
        unsafe { (*objects.list.get()).unlink(page.0) };
    }
}

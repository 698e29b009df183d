//! Bare slabs: a size class of a heap that is not busy yet is slabs alone, without a cache.
//!
//! A cache has a slot for each CPU, a barn and an entry in the registry, and destroying it takes a
//! barrier: too much for a heap of seven objects. So until a class has served [`BUSY_ALLOCS`]
//! objects, it has only slabs, and an owner that sends every `free` to them.
//!
//! ```text
//!   page map ──▶ owner { dummy, id of the class, context } ──▶ Bare { slabs } ──▶ pages
//! ```
//!
//! Then the heap makes a cache, which serves later objects. A free of an earlier object still goes
//! to its bare slab, which is released when it is empty.
//!
//! Only memory bounds the number of bare slabs. They have no id of their own. They share their
//! locks, so that a fork has few to take. They keep no empty slab, so the background thread has
//! nothing to release.

use super::classes::{CLASSES, Class};
use super::profiled::heaps;
use super::{owners, small};
use crate::cache::registry::{FIRST_HEAP_ID, HEAP_IDS};
use crate::cache::{class_geometry, gdb, hooks, publish_shared};
use crate::os;
use crate::os::invariant::invariant;
use crate::pages::{self, PAGE_BYTES, Temperature};
use crate::rseq::Owner;
use crate::slab::{GroupMemory, ListsLock, Misuse, Slabs};
use crate::sync::CachePadded;
use core::cell::UnsafeCell;
use core::ops::ControlFlow;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Allocations after which a class is busy. Without sheaves, so many allocations cost more by about
/// the cost of making a cache.
const BUSY_ALLOCS: u32 = 64;

/// The name of heaps in statistics and reports.
pub(super) const NAME: &str = "heap";

const _: () = assert!(CLASSES == HEAP_IDS as usize);

#[unsafe(link_section = "uslab_tables")]
static LOCKS: [CachePadded<ListsLock>; 64] = [const { CachePadded(ListsLock::new()) }; 64];

pub(super) fn lock_for_fork() {
    LOCKS.iter().for_each(|lock| lock.lock_for_fork());
}

pub(super) fn unlock_after_fork(child: bool) {
    LOCKS.iter().for_each(|lock| lock.unlock_after_fork(child));
}

/// The bare slabs of one size class of a heap.
#[repr(C)]
pub(super) struct Bare {
    slabs: Slabs,
    /// Allocations so far, or since [`Bare::count_alloc`] last returned true.
    allocs: AtomicU32,
    /// Samples of the heap profile among the objects in use.
    samples: AtomicU32,
    lists: UnsafeCell<Lists>,
}

const _: () = assert!(core::mem::offset_of!(Bare, slabs) == gdb::BARE_SLABS);

/// Memory for the lists of one group.
#[repr(align(64))]
struct Lists(#[allow(dead_code)] [u8; Slabs::group_bytes(1, 1)]);

// SAFETY: `lists` is memory of the slabs, which access it under its lock; the slabs and the count
// are `Sync`.
unsafe impl Sync for Bare {}

impl Bare {
    /// Makes the bare slabs of `class`, none yet. Reports call them `name`. `None` if there is no
    /// memory.
    pub fn new(class: Class, name: &'static str) -> Option<NonNull<Bare>> {
        let geometry = class_geometry(&small::options(NAME, class), class.bytes())?;
        let memory = super::aligned_alloc(align_of::<Bare>(), size_of::<Bare>());
        let bare = NonNull::new(memory.cast::<Bare>())?;
        let id = FIRST_HEAP_ID + class.index() as u16;
        let Some(owner) = owners::take(id, memory) else {
            // SAFETY: just allocated.
            unsafe { super::free(memory) };
            return None;
        };
        publish_shared(id, NAME, class.bytes(), &geometry);
        let lock = &LOCKS[(memory as usize >> 6).wrapping_mul(0x9e37_79b9) >> 16 & (LOCKS.len() - 1)];
        // SAFETY: fresh memory of the right size, which belongs to these slabs until `destroy`, as
        // does the owner.
        unsafe {
            let lists = UnsafeCell::raw_get(&raw const (*bare.as_ptr()).lists).cast();
            let memory = GroupMemory { start: lists, groups: 1, nodes: 1, shared: Some(lock), tallies: &[] };
            let slabs = Slabs::new(owner, name, geometry, Temperature::Hot, None, memory);
            (&raw mut (*bare.as_ptr()).slabs).write(slabs);
            (&raw mut (*bare.as_ptr()).allocs).write(AtomicU32::new(0));
            (&raw mut (*bare.as_ptr()).samples).write(AtomicU32::new(0));
        }
        Some(bare)
    }

    /// The bare slabs of `owner`, if it is an owner of bare slabs.
    pub fn of(owner: Owner) -> Option<&'static Bare> {
        let is_bare = (FIRST_HEAP_ID..FIRST_HEAP_ID + HEAP_IDS).contains(&owner.id());
        invariant!(
            !is_bare || !owner.context().is_null(),
            "an owner of bare slabs has a context",
            owner.id()
        );
        // SAFETY: the context of an owner with such an id is a `Bare`, which lives as long as it
        // has pages.
        is_bare.then(|| unsafe { &*owner.context().cast::<Bare>() })
    }

    /// Counts an allocation; returns true if the class is busy and should get a cache. If none can
    /// be made, it returns true again as many allocations later.
    pub fn count_alloc(&self) -> bool {
        // Two threads may lose a count here, which does no harm.
        let allocs = self.allocs.load(Relaxed) + 1;
        self.allocs.store(allocs % BUSY_ALLOCS, Relaxed);
        allocs >= BUSY_ALLOCS
    }

    /// Allocates an object. Reclaims if there is no memory; `None` if that did not help.
    pub fn alloc(&self) -> Option<NonNull<u8>> {
        let mut out = [core::ptr::null_mut()];
        let node = os::cpu::node_of(os::cpu::current());
        let mut take = || self.slabs.take(node, &mut out, 1) == 1;
        let slab_pages = self.slabs.geometry().pages();
        // Evict no entries for a request that can never succeed.
        let done = take()
            || pages::is_possible(slab_pages, 0) && (hooks::get().short)(slab_pages * PAGE_BYTES, &mut take);
        let object = NonNull::new(out[0]).filter(|_| done)?;
        if heaps::count_bare(self.slabs.owner(), self.slabs.name(), object.as_ptr(), self.object_bytes()) {
            self.samples.fetch_add(1, Relaxed);
        }
        Some(object)
    }

    /// The number of objects in use, and bytes of all slabs.
    pub fn count_live(&self) -> (usize, usize) {
        (self.slabs.taken(), self.slabs.all_bytes())
    }

    /// Calls `visit` for each object in use until it breaks off; see
    /// [`crate::RawCache::for_each_live`].
    pub fn for_each_live(&self, mut visit: impl FnMut(NonNull<u8>) -> ControlFlow<()>) {
        self.slabs.visit_taken(
            |_| true,
            |object| NonNull::new(object).is_some_and(|object| visit(object).is_continue()),
        );
    }

    /// Bytes from one object to the next.
    pub fn object_bytes(&self) -> usize {
        self.slabs.geometry().object_bytes
    }

    /// Frees an object.
    ///
    /// # Safety
    /// `object` must be an object of these slabs that no thread uses.
    pub unsafe fn free(&self, object: *mut u8) {
        if self.samples.load(Relaxed) != 0 && heaps::free_bare(self.slabs.owner(), object) {
            self.samples.fetch_sub(1, Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { self.slabs.free(&[object]) };
    }

    /// Bytes that the object at `pointer` may use; `None` if no object starts there.
    pub fn usable_bytes_of(&self, pointer: *const u8) -> Option<usize> {
        self.misuse_of(pointer).is_none().then(|| self.slabs.geometry().object_bytes)
    }

    /// The misuse that a free of `pointer`, which lies in one of these slabs, would be; `None` if
    /// the slab's bitmap allows it.
    pub fn misuse_of(&self, pointer: *const u8) -> Option<Misuse> {
        self.slabs.misuse_of(pointer)
    }

    /// Releases the slabs, with their objects in use too, and frees `this`.
    ///
    /// # Safety
    /// `this` must come from [`Bare::new`], and no thread may use it or its objects any more.
    pub unsafe fn destroy(this: NonNull<Bare>) {
        // SAFETY: the caller's promise. No page has the owner any more when it is freed.
        unsafe {
            let owner = this.as_ref().slabs.owner();
            if this.as_ref().samples.load(Relaxed) != 0 {
                heaps::end_bare(owner);
            }
            this.as_ref().slabs.free_all();
            owners::free(owner);
            super::free(this.as_ptr().cast());
        }
    }
}

//! The memory that sequences read and write: slots and sheaves, and the dummies that stand for
//! every special state.
//!
//! Offsets are part of the assembly; the assertions at the end keep both sides together.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

/// CPUs that the slot tables have room for; a machine with more possible CPUs runs locked.
pub const MAX_CPUS: usize = 1024;

/// Where a slot has its [`StartTest`].
#[allow(dead_code, reason = "read by sequences, which not every target has")]
pub(super) const START_TEST: usize = core::mem::offset_of!(Slot, start_test);

/// Bytes of a sheaf before its first object: count, capacity and the NULL sentinel.
pub const SHEAF_HEADER_BYTES: usize = 16;

/// An array of object pointers with its fill count; the header of it, the objects follow in memory.
///
/// `count` is the one word that sequences commit to. `capacity` never changes while the sheaf
/// stands in a slot.
#[repr(C)]
pub struct Sheaf {
    /// Objects in the sheaf.
    pub count: AtomicU32,
    /// Objects it has room for.
    pub capacity: AtomicU32,
    /// `objects[0]`: always NULL, what a pop of an empty sheaf reads.
    pub sentinel: AtomicUsize,
}

impl Sheaf {
    /// A sheaf without room: empty for pop, full for push.
    pub const fn without_room() -> Sheaf {
        Sheaf { count: AtomicU32::new(0), capacity: AtomicU32::new(0), sentinel: AtomicUsize::new(0) }
    }

    /// The place of object `index`, counted from 1.
    ///
    /// # Safety
    /// `sheaf` must point to a sheaf of at least `index` capacity.
    #[inline]
    pub unsafe fn object(sheaf: *mut Sheaf, index: usize) -> *mut *mut u8 {
        // SAFETY: the caller's promise; object 1 follows the header.
        unsafe { sheaf.cast::<*mut u8>().add(1 + index) }
    }

    /// The objects of a sheaf that the caller owns.
    ///
    /// # Safety
    /// `sheaf` must be valid and no other thread may change it while the slice lives.
    pub unsafe fn objects<'a>(sheaf: *mut Sheaf) -> &'a [*mut u8] {
        // SAFETY: the first `count` objects are initialised, and the caller excludes changes.
        unsafe { core::slice::from_raw_parts(Sheaf::object(sheaf, 1), (*sheaf).count.load(Relaxed) as usize) }
    }
}

/// One CPU's part of a cache: a cache line.
///
/// The fast path loads [`Slot::main`] and stores the count of a sheaf, the first word of some cache
/// line. Where two such addresses agree in their low twelve bits, processors take the load for one
/// of what was just stored, and wait. So `main` is the second word of its line: that of a sheaf's
/// first line is never stored to (ADR 0015).
#[repr(C, align(64))]
pub struct Slot {
    /// Lock word of the fallback; unused where sequences run.
    pub lock: AtomicU32,
    /// What the last visit to the barn was for; see `percpu`. A hint, written without order.
    pub last_miss: AtomicU32,
    /// The sheaf that the fast path works on; never null.
    pub main: AtomicPtr<Sheaf>,
    /// The sheaf behind it, exchanged for the main one when that is empty or full; never null.
    pub spare: AtomicPtr<Sheaf>,
    /// Objects in the two sheaves when a slow path last looked; for the statistics.
    pub counted: AtomicU32,
    /// In a cache's first slot: the cache's id. See [`Owner`].
    pub id: AtomicU32,
    /// The two sheaves while a fork copies the memory; null otherwise.
    pub hidden: [AtomicPtr<Sheaf>; 2],
    /// What the slot looked like when the background thread last came by; see `percpu::flush_idle`.
    pub seen: AtomicU32,
    /// The three words of the cache's [`StartTest`], the same in each of its slots.
    pub start_test: [AtomicU32; 3],
}

/// Tells the start of an object from any other address of its slab by one multiplication.
///
/// With `d` the bytes from one object to the next, `reciprocal = ⌊2^32 / d⌋ + 1` exceeds `2^32 / d`
/// by `e / d`, where `0 < e ≤ d`. Modulo `2^32` the offset `q·d + r` times the reciprocal is
/// `q·e + r·reciprocal`: at most `last`, which is `e` times the last object's index, where an
/// object starts there, and more at any other offset. `slab::Geometry` makes the words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartTest {
    /// Bytes of a slab, which lies on a multiple of them, less one.
    pub mask: u32,
    /// See above.
    pub reciprocal: u32,
    /// See above.
    pub last: u32,
}

impl StartTest {
    /// What the sequence computes.
    pub fn is_passed_by(self, address: usize) -> bool {
        (address as u32 & self.mask).wrapping_mul(self.reciprocal) <= self.last
    }
}

/// Which of a slot's two sheaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Which {
    /// [`Slot::main`].
    Main = 8,
    /// [`Slot::spare`].
    Spare = 16,
}

impl Slot {
    /// A slot with `sheaf` in both places.
    pub const fn holding(sheaf: *mut Sheaf) -> Slot {
        Slot {
            lock: AtomicU32::new(0),
            last_miss: AtomicU32::new(0),
            main: AtomicPtr::new(sheaf),
            spare: AtomicPtr::new(sheaf),
            counted: AtomicU32::new(0),
            id: AtomicU32::new(0),
            hidden: [const { AtomicPtr::new(core::ptr::null_mut()) }; 2],
            seen: AtomicU32::new(0),
            start_test: [const { AtomicU32::new(0) }; 3],
        }
    }

    /// Sets what [`super::push_tested`] asks of an address. Until then every address passes.
    pub fn set_start_test(&self, test: StartTest) {
        for (word, value) in self.start_test.iter().zip([test.mask, test.reciprocal, test.last]) {
            word.store(value, Relaxed);
        }
    }

    /// What the layer above keeps for an owner that has no registered cache. The slots of such an owner
    /// never hold sheaves, so none is ever hidden, and the word is free.
    pub fn context(&self) -> &AtomicPtr<Sheaf> {
        &self.hidden[0]
    }

    /// One of the two places.
    #[inline]
    pub fn place(&self, which: Which) -> &AtomicPtr<Sheaf> {
        match which {
            Which::Main => &self.main,
            Which::Spare => &self.spare,
        }
    }
}

/// A sheaf on a cache line of its own.
#[repr(align(64))]
struct OwnLine(Sheaf);

static DUMMY: OwnLine = OwnLine(Sheaf::without_room());

/// The sheaf that stands where a CPU has none: empty for pop, full for push, so that both take
/// their slow path.
#[inline(always)]
pub const fn dummy() -> *mut Sheaf {
    (&raw const DUMMY.0).cast_mut()
}

/// Whether `sheaf` is the dummy.
#[inline(always)]
pub fn is_dummy(sheaf: *mut Sheaf) -> bool {
    sheaf == dummy()
}

/// Owners of pages that are no caches: nobody, large objects, sheaves.
pub const PLAIN_OWNERS: usize = 16;

/// The slots of a cache that has none: not yet set up, without caching, or in a process that runs
/// locked.
///
/// Only slot 0 is filled in by the compiler: until [`super::init`] the area says CPU 0 to everyone.
/// `init` fills in the rest.
static DUMMY_SLOTS: [Slot; MAX_CPUS + PLAIN_OWNERS] = {
    let mut slots = [const { Slot::holding(core::ptr::null_mut()) }; MAX_CPUS + PLAIN_OWNERS];
    slots[0] = Slot::holding(dummy());
    slots
};

/// The shared slots in which every CPU has the dummy.
#[inline(always)]
pub const fn dummy_slots() -> *mut Slot {
    (&raw const DUMMY_SLOTS).cast::<Slot>().cast_mut()
}

/// Fills in the shared slots of CPUs `0 .. cpus`; idempotent.
pub(super) fn fill_dummy_slots(cpus: usize) {
    for (id, slot) in DUMMY_SLOTS[..cpus.min(MAX_CPUS) + PLAIN_OWNERS].iter().enumerate() {
        slot.main.store(dummy(), Relaxed);
        slot.spare.store(dummy(), Relaxed);
        slot.id.store(id as u32, Relaxed);
    }
}

/// Whose a page is, as the page map says it: by the slots that its objects are pushed to. So the
/// fast path of `free` goes from the page straight to its sequence.
///
/// Owners that are no caches have slots as well, in which every CPU has the dummy: windows on one
/// array, a slot apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(*mut Slot);

// SAFETY: an owner is an address to compare and to find atomics by.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    /// Nobody's pages.
    pub const NONE: Owner = Owner(dummy_slots());

    /// The owner number `id` that is no cache.
    pub const fn plain(id: u16) -> Owner {
        assert!((id as usize) < PLAIN_OWNERS);
        // SAFETY: the array has PLAIN_OWNERS slots beyond those of the CPUs.
        Owner(unsafe { dummy_slots().add(id as usize) })
    }

    /// The cache with these slots.
    ///
    /// # Safety
    /// They must be valid for every CPU that the area may name, for ever, and the first have the
    /// cache's id.
    pub const unsafe fn of_slots(slots: *mut Slot) -> Owner {
        Owner(slots)
    }

    /// The slots.
    #[inline(always)]
    pub const fn slots(self) -> *mut Slot {
        self.0
    }

    /// The id of the cache, or of the owner that is none.
    #[inline]
    pub fn id(self) -> u16 {
        // SAFETY: an owner's first slot is valid for ever.
        unsafe { (*self.0).id.load(Relaxed) as u16 }
    }

    /// What the layer above keeps for the owner, which has no registered cache; see
    /// [`Slot::context`].
    #[inline]
    pub fn context(self) -> *mut u8 {
        // SAFETY: as above.
        unsafe { (*self.0).context().load(Acquire).cast() }
    }
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Slot>() == 64);
    assert!(offset_of!(Slot, main) == Which::Main as usize);
    assert!(offset_of!(Slot, spare) == Which::Spare as usize);
    assert!(offset_of!(Sheaf, count) == 0);
    assert!(offset_of!(Sheaf, capacity) == 4);
    assert!(offset_of!(Sheaf, sentinel) == 8);
    assert!(size_of::<Sheaf>() == SHEAF_HEADER_BYTES);
};

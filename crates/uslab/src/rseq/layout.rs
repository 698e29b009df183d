//! The memory that sequences read and write: slots, sheaves, and the dummies that represent every
//! special state.
//!
//! The assembly contains these offsets; the assertions at the end of the file compare both sides.

use crate::os::facts::{Fact, facts};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

/// CPUs in the slot tables. A process on a machine with more possible CPUs runs locked.
pub const MAX_CPUS: usize = 1024;

/// Offset of the [`StartTest`] in a slot.
#[allow(dead_code, reason = "only sequences read it, and some targets have none")]
pub(super) const START_TEST: usize = core::mem::offset_of!(Slot, start_test);

/// Bytes of a sheaf before its first object: count, capacity and the NULL sentinel.
pub const SHEAF_HEADER_BYTES: usize = 16;

/// An array of object pointers with its count. This is its header; the objects follow it in memory.
///
/// A sequence that pops or pushes commits by its store to `count`. One that exchanges sheaves
/// commits to the slot. `capacity` never changes while the sheaf stands in a slot.
#[repr(C)]
pub struct Sheaf {
    /// Objects in the sheaf.
    pub count: AtomicU32,
    /// Objects that the sheaf has room for.
    pub capacity: AtomicU32,
    /// `objects[0]`: always NULL; a pop of an empty sheaf reads it.
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
/// `main` is the second word of its line, to avoid 4 KiB aliasing (ADR 0015). The fast path loads
/// [`Slot::main`] and stores a sheaf's count, the first word of its line. Where a load and an
/// earlier store agree in their low twelve address bits, processors let the load wait for the
/// store. The second word of a sheaf's first line is stored to only before the sheaf is in use.
#[repr(C, align(64))]
pub struct Slot {
    /// Lock word of locked mode; unused in rseq mode.
    pub lock: AtomicU32,
    /// The kind of the CPU's last misses, for objects or for room, and how many there were in a
    /// row; see `percpu`. A hint, stored relaxed. In a counted slot (`percpu::counted`), the state
    /// at the background thread's last visit.
    pub last_miss: AtomicU32,
    /// The sheaf that the fast path works on; never null.
    pub main: AtomicPtr<Sheaf>,
    /// The second sheaf, swapped with the main one when that is empty or full; never null.
    pub spare: AtomicPtr<Sheaf>,
    /// Objects in the two sheaves, as of the last slow path; for the statistics.
    pub counted: AtomicU32,
    /// In a cache's first slot: the cache's id. See [`Owner`].
    pub id: AtomicU32,
    /// In a cache's slot: the two sheaves while a fork copies the memory; null otherwise. In the
    /// first slot of an owner without a cache, word 0 is [`Slot::context`].
    pub parked: [AtomicPtr<Sheaf>; 2],
    /// The state of the slot at the background thread's last visit; see `percpu::flush_idle`. In a
    /// counted slot, the distance to the next sample.
    pub seen: AtomicU32,
    /// The three words of the cache's [`StartTest`], the same in each of its slots.
    pub start_test: [AtomicU32; 3],
}

/// Recognises the start of an object in a slab by one multiplication.
///
/// With `d` the bytes from one object to the next, `reciprocal = ⌊2^32 / d⌋ + 1` exceeds `2^32 / d`
/// by `e / d`, where `0 < e ≤ d`. Modulo `2^32` the offset `q·d + r` times the reciprocal is
/// `q·e + r·reciprocal`: at most `last`, which is `e` times the last object's index, where an
/// object starts there, and more at any other offset. `slab::Geometry` makes the words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartTest {
    /// Bytes of a slab minus 1; a slab is aligned to its size.
    pub mask: u32,
    /// See above.
    pub reciprocal: u32,
    /// See above.
    pub last: u32,
}

impl StartTest {
    /// Whether an object starts at `address`, as the sequence computes it.
    pub fn is_passed_by(self, address: usize) -> bool {
        (address as u32 & self.mask).wrapping_mul(self.reciprocal) <= self.last
    }
}

/// One of a slot's two sheaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Which {
    /// [`Slot::main`].
    Main = 8,
    /// [`Slot::spare`].
    Spare = 16,
}

impl Slot {
    /// A slot whose main and spare sheaf are both `sheaf`.
    pub const fn holding(sheaf: *mut Sheaf) -> Slot {
        Slot {
            lock: AtomicU32::new(0),
            last_miss: AtomicU32::new(0),
            main: AtomicPtr::new(sheaf),
            spare: AtomicPtr::new(sheaf),
            counted: AtomicU32::new(0),
            id: AtomicU32::new(0),
            parked: [const { AtomicPtr::new(core::ptr::null_mut()) }; 2],
            seen: AtomicU32::new(0),
            start_test: [const { AtomicU32::new(0) }; 3],
        }
    }

    /// Sets the test that [`super::push_tested`] applies. Before this call every address passes.
    pub fn set_start_test(&self, test: StartTest) {
        for (word, value) in self.start_test.iter().zip([test.mask, test.reciprocal, test.last]) {
            word.store(value, Relaxed);
        }
    }

    /// A word of the layer above, for an owner without a registered cache. The slots of such an
    /// owner never hold sheaves, so a fork parks none there, and `parked[0]` is free for this use.
    pub fn context(&self) -> &AtomicPtr<Sheaf> {
        &self.parked[0]
    }

    /// The pointer to one of the two sheaves.
    #[inline]
    pub fn place(&self, which: Which) -> &AtomicPtr<Sheaf> {
        match which {
            Which::Main => &self.main,
            Which::Spare => &self.spare,
        }
    }
}

/// Slots and sheaves, for a debugger.
pub const FACTS: &[&[Fact]] =
    &[facts!(Slot { main, spare, id, parked }), facts!(Sheaf { count, capacity, sentinel })];

/// A sheaf on a cache line of its own.
#[repr(align(64))]
struct OwnLine(Sheaf);

/// Dummies. CPUs share them by their number modulo this.
pub const DUMMIES: usize = 64;

/// Pop writes a zero over the dummy's zero. With one dummy for all, CPUs that allocate from a cache
/// without sheaves would take its line from each other with every call.
#[unsafe(link_section = ".bss.uslab_tables")]
static DUMMY: [OwnLine; DUMMIES + 1] = [const { OwnLine(Sheaf::without_room()) }; DUMMIES + 1];

/// The sheaf of a CPU that has none: empty for pop and full for push, so that both take their slow
/// path. Any dummy may stand in any slot; see [`dummy_of`].
#[inline(always)]
pub const fn dummy() -> *mut Sheaf {
    dummy_of(0)
}

/// The dummy that few other CPUs than `cpu` write.
#[inline(always)]
pub const fn dummy_of(cpu: usize) -> *mut Sheaf {
    (&raw const DUMMY[cpu % DUMMIES].0).cast_mut()
}

/// A dummy for slots that are only pushed to. No pop writes it, so all CPUs may read it.
#[inline(always)]
pub const fn dummy_for_pushes() -> *mut Sheaf {
    (&raw const DUMMY[DUMMIES].0).cast_mut()
}

/// Whether `sheaf` is a dummy.
#[inline(always)]
pub fn is_dummy(sheaf: *mut Sheaf) -> bool {
    sheaf.addr().wrapping_sub(dummy().addr()) < size_of_val(&DUMMY)
}

/// Number of ids for the library's own page owners, which [`Owner::plain`] makes: no owner, large
/// objects, sheaves. Not all are in use.
pub const PLAIN_OWNERS: usize = 16;

/// Slots before the first one of each row that sequences index. They hold dummies for ever.
///
/// Where the library registers threads (`own`), it does so at a thread's first slow call. Until
/// then the number that sequences read is -1, so they find this slot. Elsewhere there is none.
pub const LEAD: usize =
    cfg!(any(feature = "register-threads", all(target_env = "musl", target_feature = "crt-static"))) as usize;

/// Shared slots in which every CPU has the dummy: for caches that are not set up yet, and for
/// owners that are not caches. With [`LEAD`] of 1 the first is that of number -1, else of number 0.
///
/// The compiler fills in those up to number 0: before [`super::init`] every thread reads 0 or -1
/// from the area. `init` fills in the rest.
///
/// Large tables have sections of their own, initialised ones this, zeroed ones `.bss.uslab_tables`.
/// Small variables then share few pages. Each page that start-up writes costs every process a fault
/// and a copy.
#[unsafe(link_section = "uslab_tables")]
static DUMMY_SLOTS: [Slot; LEAD + MAX_CPUS + PLAIN_OWNERS] = {
    let mut slots = [const { Slot::holding(core::ptr::null_mut()) }; LEAD + MAX_CPUS + PLAIN_OWNERS];
    slots[0] = Slot::holding(dummy());
    slots[LEAD] = Slot::holding(dummy());
    slots
};

/// The shared slots in which every CPU has the dummy.
#[inline(always)]
pub const fn dummy_slots() -> *mut Slot {
    // SAFETY: the array has more slots behind these.
    unsafe { (&raw const DUMMY_SLOTS).cast::<Slot>().cast_mut().add(LEAD) }
}

/// Fills in the shared slots that CPUs `0 .. cpus` reach from any plain owner. May be called again.
pub(super) fn fill_dummy_slots(cpus: usize) {
    for (id, slot) in DUMMY_SLOTS[LEAD..][..cpus.min(MAX_CPUS) + PLAIN_OWNERS].iter().enumerate() {
        slot.main.store(dummy_of(id), Relaxed);
        slot.spare.store(dummy_of(id), Relaxed);
        slot.id.store(id as u32, Relaxed);
    }
}

/// The owner of a page, as the page map stores it: the address of the slots that its objects are
/// pushed to. So the fast path of `free` goes from the page map straight to its sequence.
///
/// Owners that are not caches have slots too, in which every CPU has the dummy: overlapping windows
/// on one array, one slot apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(*mut Slot);

// SAFETY: an owner is an address; it is compared, and the memory behind it is accessed by atomics.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    /// The owner of pages that have none.
    pub const NONE: Owner = Owner(dummy_slots());

    /// The owner with number `id`, which is not a cache.
    pub const fn plain(id: u16) -> Owner {
        assert!((id as usize) < PLAIN_OWNERS);
        // SAFETY: the array has PLAIN_OWNERS slots beyond those of the CPUs.
        Owner(unsafe { dummy_slots().add(id as usize) })
    }

    /// The owner with these slots: a cache, or an owner of bare slabs (`malloc::owners`).
    ///
    /// # Safety
    /// The slots must stay valid for ever, for every CPU that the area may name. The first must
    /// contain the owner's id.
    pub const unsafe fn of_slots(slots: *mut Slot) -> Owner {
        Owner(slots)
    }

    /// The owner's slots.
    #[inline(always)]
    pub const fn slots(self) -> *mut Slot {
        self.0
    }

    /// The id of the cache, or the number of an owner that is not a cache.
    #[inline]
    pub fn id(self) -> u16 {
        // SAFETY: an owner's first slot is valid for ever.
        unsafe { (*self.0).id.load(Relaxed) as u16 }
    }

    /// The word of the layer above, for an owner without a registered cache; see [`Slot::context`].
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

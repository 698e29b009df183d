//! The slots of guarded objects, and their life.
//!
//! ```text
//!   block, 128 KiB:  │ closed │ slot for more than 1 KiB … │ closed │ slot up to 1 KiB │ next block …
//!
//!   queue ──take──▶ opened, LIVE ──free──▶ FREEING ──canaries whole──▶ closed, FREED ──▶ queue
//! ```
//!
//! A block is as large as a slab of a size class, and the slot in its last page serves the sizes of
//! which a sized free looks nothing up: see [`crate::malloc::sampled`]. Every page is closed but
//! those that a live object touches. A freed slot goes to the end of its queue, the quarantine, and
//! is taken again when all slots before it were.
//!
//! The handler of faults reads slots without a lock, so their fields are atomics.

use super::trace::Trace;
use crate::cache::debugged::Family;
use crate::malloc::sampled::{BLOCK_BYTES, MAX_UNSEEN_BYTES, OWNER};
use crate::os::config::Side;
use crate::os::{self, Lock, memory};
use crate::pages::{self, CHUNK_BYTES, PAGE_BYTES, boot};
use crate::sync::Rank;
use core::ops::Range;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

/// The byte that fills what is open of a slot beside its object.
const CANARY: u8 = 0xa5;

/// Life of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Never in use.
    New = 0,
    Live,
    /// Between two lives: a thread is changing it.
    Changing,
    Freed,
}

impl State {
    fn of(word: u32) -> State {
        match word {
            0 => State::New,
            1 => State::Live,
            2 => State::Changing,
            _ => State::Freed,
        }
    }
}

/// The two kinds of slots; each block has one of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The last page of a block, for objects of up to [`MAX_UNSEEN_BYTES`].
    Small = 0,
    /// The pages before that, for larger ones.
    Large = 1,
}

/// States of the report of a slot's fault.
const UNREPORTED: u8 = 0;
const REPORTING: u8 = 1;
const REPORTED: u8 = 2;
/// How long a thread waits for another one's report.
const MAX_WAIT_MS: u32 = 1000;

/// What the library knows of a slot's object. Zeroed memory is a slot that was never used.
#[repr(C)]
pub struct Slot {
    state: AtomicU32,
    /// Whether a fault on it was reported: one of the three constants above.
    reported: AtomicU8,
    /// The family that allocated it.
    family: AtomicU8,
    /// Accesses to its live object that faulted and were repeated.
    repeats: AtomicU8,
    start: AtomicUsize,
    bytes: AtomicUsize,
    pub allocated: Trace,
    pub freed: Trace,
}

impl Slot {
    pub fn state(&self) -> State {
        State::of(self.state.load(Acquire))
    }

    /// The object's bytes, as the program asked for them.
    pub fn object(&self) -> Range<usize> {
        let start = self.start.load(Relaxed);
        start..start + self.bytes.load(Relaxed)
    }

    /// The function family that allocated the object.
    pub fn family(&self) -> Family {
        Family::of(self.family.load(Relaxed))
    }

    /// Calls `report`, unless a fault on the slot was reported before. Waits a little for a report
    /// that another thread makes at this moment: it is lost if this thread's access ends the
    /// process.
    pub fn report_once(&self, report: impl FnOnce()) {
        if self.reported.compare_exchange(UNREPORTED, REPORTING, Acquire, Acquire).is_ok() {
            report();
            // Meanwhile the slot may have got a new object, of which nothing was reported.
            let _ = self.reported.compare_exchange(REPORTING, REPORTED, Release, Relaxed);
            return;
        }
        for _ in 0..MAX_WAIT_MS {
            if self.reported.load(Acquire) != REPORTING {
                return;
            }
            os::sleep::pause(1);
        }
        // That thread is a parent's, or its callback panicked.
        if self.reported.compare_exchange(REPORTING, REPORTED, AcqRel, Acquire).is_ok() {
            report();
        }
    }

    /// Whether an access to the live object that faulted may be repeated, since the slot may have
    /// been taken meanwhile; false once the pages must be closed for another reason.
    pub fn may_repeat(&self) -> bool {
        const MAX_REPEATS: u8 = 100;
        self.repeats.fetch_update(Relaxed, Relaxed, |n| (n < MAX_REPEATS).then_some(n + 1)).is_ok()
    }

    fn change(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u32, to as u32, AcqRel, Acquire).is_ok()
    }
}

/// A slot's number, and the pages that it may open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub block: usize,
    pub kind: Kind,
}

static BASE: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static SYSTEM_PAGE: AtomicUsize = AtomicUsize::new(PAGE_BYTES);
static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());

/// The slots that may be taken, in the order in which they were freed.
struct Queue {
    places: *mut AtomicU32,
    first: usize,
    count: usize,
}

// SAFETY: the array is the queue's alone.
unsafe impl Send for Queue {}

static QUEUES: Lock<[Queue; 2]> =
    Lock::new(Rank::Heap, [const { Queue { places: core::ptr::null_mut(), first: 0, count: 0 } }; 2]);

impl Queue {
    fn place(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the array has a place for each block.
        unsafe { &*self.places.add(at % BLOCKS.load(Relaxed)) }
    }

    fn push(&mut self, block: usize) {
        self.place(self.first + self.count).store(block as u32, Relaxed);
        self.count += 1;
    }

    fn pop(&mut self) -> Option<usize> {
        self.count = self.count.checked_sub(1)?;
        let block = self.place(self.first).load(Relaxed);
        self.first = (self.first + 1) % BLOCKS.load(Relaxed);
        Some(block as usize)
    }
}

/// Makes `blocks` blocks, at least, each with a slot of either kind, in the order that `shuffle`
/// makes of their numbers. False if there is no memory. Called once.
pub fn make(blocks: usize, mut shuffle: impl FnMut(usize) -> usize) -> bool {
    let chunks = (blocks * BLOCK_BYTES).div_ceil(CHUNK_BYTES);
    let blocks = chunks * (CHUNK_BYTES / BLOCK_BYTES);
    let slots = boot::alloc(2 * blocks * size_of::<Slot>(), 64).cast::<Slot>();
    let places = boot::alloc(2 * blocks * size_of::<AtomicU32>(), 64).cast::<AtomicU32>();
    let Some(first) = pages::reserve(chunks).filter(|_| !slots.is_null() && !places.is_null()) else {
        return false;
    };
    SYSTEM_PAGE.store(memory::page_bytes(), Relaxed);
    SLOTS.store(slots, Relaxed);
    BASE.store(pages::address_of(first) as usize, Relaxed);
    BLOCKS.store(blocks, Release);
    for block in 0..blocks {
        for kind in [Kind::Small, Kind::Large] {
            let pages = Place { block, kind }.pages();
            if let Some(page) = pages::page_of(pages.start as *const u8) {
                pages::set_owner(page, pages.len() / PAGE_BYTES, OWNER);
            }
        }
    }
    let mut queues = QUEUES.lock();
    for (n, queue) in queues.iter_mut().enumerate() {
        queue.places = places.wrapping_add(n * blocks);
        // No guard page is behind the last small slot, which ends where the pool ends.
        let used = if n == Kind::Small as usize { blocks - 1 } else { blocks };
        (0..used).for_each(|block| queue.push(block));
        for at in (1..used).rev() {
            let (here, there) = (queue.place(at), queue.place(shuffle(at + 1)));
            let block = here.load(Relaxed);
            here.store(there.load(Relaxed), Relaxed);
            there.store(block, Relaxed);
        }
    }
    true
}

/// Blocks; 0 before [`make`]. Each has a slot of either kind, but the last has no small one.
pub fn blocks() -> usize {
    BLOCKS.load(Acquire)
}

/// Slots of both kinds.
pub fn slots() -> usize {
    (2 * blocks()).saturating_sub(1)
}

/// Slots of both kinds that are not in use.
pub fn free_slots() -> usize {
    QUEUES.lock().iter().map(|queue| queue.count).sum()
}

fn page_bytes() -> usize {
    SYSTEM_PAGE.load(Relaxed)
}

impl Place {
    /// The slot that `address` lies in; `None` in a guard page, and outside the pool.
    pub fn around(address: usize) -> Option<Place> {
        let (block, offset) = position(address)?;
        [Kind::Small, Kind::Large]
            .map(|kind| Place { block, kind })
            .into_iter()
            .find(|place| place.pages().contains(&(BASE.load(Relaxed) + block * BLOCK_BYTES + offset)))
    }

    /// The slots before and behind the guard page that `address` lies in.
    pub fn beside(address: usize) -> [Option<Place>; 2] {
        let Some((block, offset)) = position(address) else { return [None; 2] };
        let place = |block, kind| Some(Place { block, kind }).filter(|place| !place.pages().is_empty());
        if offset < page_bytes() {
            [block.checked_sub(1).and_then(|block| place(block, Kind::Small)), place(block, Kind::Large)]
        } else {
            [place(block, Kind::Large), place(block, Kind::Small)]
        }
    }

    /// The addresses that the slot may open.
    fn pages(self) -> Range<usize> {
        let start = BASE.load(Relaxed) + self.block * BLOCK_BYTES;
        let (page, end) = (page_bytes(), start + BLOCK_BYTES);
        match self.kind {
            Kind::Small => end - page..end,
            Kind::Large => start + page..(end - 2 * page).max(start + page),
        }
    }

    pub fn slot(self) -> &'static Slot {
        // SAFETY: `make` allocated two slots for each block, for ever; zeroed memory is a slot.
        unsafe { &*SLOTS.load(Relaxed).add(2 * self.block + self.kind as usize) }
    }

    /// Whole system pages around a range of the slot.
    fn pages_around(range: &Range<usize>) -> Range<usize> {
        let page = page_bytes();
        range.start / page * page..range.end.next_multiple_of(page)
    }

    /// The pages that are open for the object: at least one.
    fn open(self) -> Range<usize> {
        let object = self.slot().object();
        Place::pages_around(&(object.start..object.end.max(object.start + 1)))
    }
}

/// The block of an address, and the offset in it; `None` outside the pool.
fn position(address: usize) -> Option<(usize, usize)> {
    let offset = address.wrapping_sub(BASE.load(Relaxed));
    (offset < blocks() * BLOCK_BYTES).then_some((offset / BLOCK_BYTES, offset % BLOCK_BYTES))
}

/// Whether `address` lies in the pool, guard pages included.
pub fn contains(address: usize) -> bool {
    position(address).is_some()
}

fn protect(range: &Range<usize>, is_open: bool) -> bool {
    // SAFETY: pages of the pool, which the library mapped; the caller owns their slot.
    unsafe { memory::protect(range.start as *mut u8, range.len(), is_open) }
}

/// Allocates `bytes` bytes on a boundary of `align` in a slot; null if none fits or is free.
pub fn alloc(bytes: usize, align: usize, side: Side, family: Family) -> *mut u8 {
    let kind = if bytes <= MAX_UNSEEN_BYTES { Kind::Small } else { Kind::Large };
    let room = Place { block: 0, kind }.pages().len();
    if bytes > room || align > page_bytes() {
        return core::ptr::null_mut();
    }
    let Some(block) = QUEUES.lock()[kind as usize].pop() else { return core::ptr::null_mut() };
    let place = Place { block, kind };
    let (slot, pages) = (place.slot(), place.pages());
    slot.state.store(State::Changing as u32, Relaxed);
    let start = if side == Side::Left { pages.start } else { (pages.end - bytes.max(1)) & !(align - 1) };
    slot.start.store(start, Relaxed);
    slot.bytes.store(bytes, Relaxed);
    slot.reported.store(UNREPORTED, Relaxed);
    slot.repeats.store(0, Relaxed);
    slot.family.store(family as u8, Relaxed);
    let open = place.open();
    if !protect(&open, true) {
        slot.state.store(State::Freed as u32, Release);
        QUEUES.lock()[kind as usize].push(block);
        return core::ptr::null_mut();
    }
    for range in [open.start..start, start + bytes..open.end] {
        // SAFETY: just opened, and no other code's.
        unsafe { (range.start as *mut u8).write_bytes(CANARY, range.len()) };
    }
    slot.allocated.record();
    slot.freed.clear();
    slot.state.store(State::Live as u32, Release);
    start as *mut u8
}

/// The fault of a pointer that was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The object is free already.
    Twice,
    /// The pointer lies elsewhere in the slot of a live object.
    Inside,
    /// The slot was never in use.
    Unused,
}

/// Begins to free the object at `pointer`, which lies in a slot: no other thread can free it now.
pub fn begin_free(pointer: usize) -> Result<Place, (Option<Place>, Fault)> {
    let Some(place) = Place::around(pointer) else { return Err((None, Fault::Unused)) };
    let slot = place.slot();
    let is_start = slot.object().start == pointer;
    // A wrong pointer must not change the slot: a correct free of the object at that moment would
    // be taken for the second one.
    if is_start && slot.change(State::Live, State::Changing) {
        if slot.object().start == pointer {
            return Ok(place);
        }
        // The slot had another object meanwhile.
        slot.state.store(State::Live as u32, Release);
        return Err((Some(place), Fault::Inside));
    }
    let fault = match slot.state() {
        State::New => Fault::Unused,
        _ if is_start => Fault::Twice,
        _ => Fault::Inside,
    };
    Err((Some(place), fault))
}

/// The first byte beside the object, if any, that the program overwrote, and the pages that can be
/// read there. The caller must have begun to free the object.
pub fn overwritten(place: Place) -> Option<(usize, Range<usize>)> {
    let (open, object) = (place.open(), place.slot().object());
    // From the object outwards: the nearest byte names the fault best.
    let is_changed = |&address: &usize| {
        // SAFETY: the slot's open pages are readable.
        unsafe { (address as *const u8).read_volatile() != CANARY }
    };
    let mut behind = object.end..open.end;
    let found = behind.find(is_changed).or_else(|| (open.start..object.start).rev().find(is_changed));
    found.map(|address| (address, open))
}

/// Ends [`begin_free`]: closes the slot, and puts it at the end of its queue.
pub fn end_free(place: Place) {
    place.slot().freed.record();
    let open = place.open();
    if protect(&open, false) && place.kind == Kind::Large {
        // SAFETY: the contents of a freed object; a fault there tells the address alone.
        unsafe { memory::purge(open.start as *mut u8, open.len()) };
    }
    place.slot().state.store(State::Freed as u32, Release);
    QUEUES.lock()[place.kind as usize].push(place.block);
}

/// Opens the page around `address`, so that a reported access can be repeated. Guard pages then
/// stay open, and a slot does until its next life ends.
pub fn open(address: usize) -> bool {
    protect(&Place::pages_around(&(address..address + 1)), true)
}

/// Calls `visit` with each slot whose object is in use. Takes no lock.
pub fn for_each_live(visit: &mut dyn FnMut(&Slot)) {
    for block in 0..blocks() {
        for kind in [Kind::Small, Kind::Large] {
            let slot = Place { block, kind }.slot();
            if slot.state() == State::Live {
                visit(slot);
            }
        }
    }
}

/// The slot around `address` whose object is in use.
pub fn live_around(address: usize) -> Option<&'static Slot> {
    Some(Place::around(address)?.slot()).filter(|slot| slot.state() == State::Live)
}

/// The requested bytes of the object that starts at `pointer`, if one does.
pub fn bytes_at(pointer: usize) -> Option<usize> {
    let slot = Place::around(pointer)?.slot();
    let object = slot.object();
    (slot.state() == State::Live && object.start == pointer).then(|| object.len())
}

pub fn lock_for_fork() {
    QUEUES.acquire_for_fork();
}

pub fn unlock_after_fork(child: bool) {
    if child { QUEUES.reset_in_child() } else { QUEUES.release_after_fork() }
}

//! Counted rows: a second row of slots, from which allocations pop while their cache is profiled.
//!
//! ```text
//!   malloc ── table ─────▶ counted row: sheaf of n objects, without room ── empty ──▶ charge(), refill
//!   free ──── page map ──▶ the cache's own row, as usual
//!   sized free ── table ─▶ counted row: full for every push ──▶ slow path ──▶ the cache's own row
//! ```
//!
//! With one sheaf for both, a pair of `malloc` and `free` leaves it as it was, so no slow path
//! would ever count the pair. Here frees do not fill the sheaf that allocations empty: its capacity
//! is 0, so each push finds it full. A sheaf of `n` objects therefore serves exactly `n`
//! allocations. The refill charges these before it installs the sheaf, and never charges beyond the
//! next sample. So the sampled allocation finds an empty sheaf, and takes the slow path.
//!
//! A drain, or another thread's refill, may take out a sheaf whose objects were charged but not
//! served. It credits them again: otherwise the next sample would come too early.
//!
//! Rows exist in rseq mode only. In locked mode each call takes the slow path anyway. On a machine
//! of several nodes each cache has such a row from the start, the lending row ([`super::rows`]): a
//! profile finds a few objects there that it did not charge.

use super::CpuCache;
use super::access::{Access, Sequences};
use super::rows::alloc_row;
use super::sheaf::{self, Owned, Size};
use crate::os;
use crate::os::facts::Fact;
use crate::os::region::Region;
use crate::rseq::{self, Exchanged, Mode, SHEAF_HEADER_BYTES, Sheaf, Slot, Which, dummy_of, is_dummy, mode};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of small objects that a refill serves. They go round before one is served again: more of
/// them would push other memory out of the first cache.
const SERVED_BYTES: usize = 4 << 10;
/// Objects of any size that a refill serves, unless they take more than [`MAX_SERVED_BYTES`].
const USUAL_SERVED: usize = Size(2).capacity() + 1;
const MAX_SERVED_BYTES: usize = 16 << 10;
/// The size of the largest sheaf of a lending row.
pub(super) const LENDING_SIZE: Size = Size(4);
/// The room of the largest counted sheaf, whose own word says 0, for a debugger.
pub(super) const FACTS: &[Fact] = &[Fact::new("counted.capacity", LENDING_SIZE.capacity())];
/// Objects that a refill serves at most: a sheaf's, and one for the caller.
pub const MAX_COUNTED: usize = Size(4).capacity() + 1;

/// Objects of `bytes` bytes that a refill serves: a sheaf's, and one for the caller.
pub fn most_counted(bytes: usize) -> usize {
    const HALF: usize = MAX_COUNTED / 2;
    const MAX_WHOLE_BYTES: usize = SERVED_BYTES / MAX_COUNTED;
    const MAX_HALF_BYTES: usize = SERVED_BYTES / HALF;
    const MAX_USUAL_BYTES: usize = MAX_SERVED_BYTES / USUAL_SERVED;
    if bytes <= MAX_WHOLE_BYTES {
        MAX_COUNTED
    } else if bytes <= MAX_HALF_BYTES {
        HALF
    } else if bytes <= MAX_USUAL_BYTES {
        USUAL_SERVED
    } else {
        // Small sizes need no division.
        (MAX_SERVED_BYTES / bytes).max(1)
    }
}

/// Whether the fast path serves from the sheaves of caches that do not hide them. If it does not,
/// each call can be counted one by one.
pub fn needs_counted_row() -> bool {
    mode() == Mode::Rseq
}

impl CpuCache {
    /// Makes the counted row, if there is none; returns its first slot, or `None` in locked mode,
    /// where sheaves are hidden, and without memory. The caller holds the registry's lock.
    pub fn make_counted_row(&self) -> Option<*mut Slot> {
        if !needs_counted_row() || self.hides {
            return None;
        }
        if self.counted.load(Acquire).is_null() {
            let row = alloc_row(self.cpus);
            if row.is_null() {
                return None;
            }
            // SAFETY: fresh memory for so many slots.
            (0..self.cpus).for_each(|cpu| unsafe { row.add(cpu).write(Slot::holding(dummy_of(cpu))) });
            self.counted.store(row, Release);
        }
        Some(self.counted.load(Acquire))
    }

    /// Notes whether a profile counts what allocations pop from the counted row. While it does, the
    /// lending row lends nothing, as every object that an allocation pops must be charged.
    pub fn set_counted(&self, is_counted: bool) {
        self.is_counted.store(is_counted, Relaxed);
    }

    /// Whether the slow path may put objects, which no profile charges, into the lending row.
    pub(super) fn may_lend(&self) -> bool {
        self.lends() && !self.is_hiding() && !self.is_counted.load(Relaxed)
    }

    /// The first slot of the counted row; null before it is made.
    pub fn counted_row(&self) -> *mut Slot {
        self.counted.load(Acquire)
    }

    /// The slots of the counted row; none before [`CpuCache::make_counted_row`].
    pub(super) fn counted_slots(&self) -> &[Slot] {
        let row = self.counted.load(Acquire);
        let (start, count) = if row.is_null() { (self.slots, 0) } else { (row.cast_const(), self.cpus) };
        // SAFETY: a row has a slot for each CPU, and lives for ever.
        unsafe { core::slice::from_raw_parts(start, count) }
    }

    /// The cache's own slots and the hidden ones: all but those of the counted row.
    pub(super) fn storing_slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots().iter().chain(self.hidden_slots())
    }

    /// All slots: the cache's own, the hidden and the counted ones.
    pub(super) fn all_slots(&self) -> impl Iterator<Item = &Slot> {
        self.storing_slots().chain(self.counted_slots())
    }

    /// Forgets the distances to the next samples: they are drawn anew.
    pub fn forget_distances(&self) {
        self.counted_slots().iter().for_each(|slot| slot.seen.store(0, Relaxed));
    }

    /// Charges up to `most` allocations to this CPU's distance; returns how many. 0: the calling
    /// allocation is the sample. `draw` returns a new distance, 1 or more: the sample is the
    /// allocation with that number.
    ///
    /// The thread may leave its CPU at any time. Every CPU has a distance with the same
    /// distribution, so it does not matter which one is charged.
    pub fn charge(&self, most: usize, mut draw: impl FnMut() -> u32) -> usize {
        let slots = self.counted_slots();
        let Some(slot) = rseq::Cpu::current().shared(slots) else { return 1 };
        loop {
            let seen = slot.seen.load(Relaxed);
            let distance = if seen == 0 { draw().max(1) } else { seen };
            let n = (distance - 1).min(most as u32);
            let left = if n == 0 { draw().max(1) } else { distance - n };
            if slot.seen.compare_exchange(seen, left, Relaxed, Relaxed).is_ok() {
                return n as usize;
            }
        }
    }

    /// Undoes the charge of `n` allocations that were not served. A CPU that has no distance yet
    /// forgets them.
    pub(super) fn credit(&self, n: usize) {
        if let Some(slot) = rseq::Cpu::current().shared(self.counted_slots())
            && n > 0
        {
            let longer = |seen: u32| (seen != 0).then(|| seen.saturating_add(n as u32));
            let _ = slot.seen.fetch_update(Relaxed, Relaxed, longer);
        }
    }

    /// Takes the objects for `charged` allocations: returns one, and leaves the others in the
    /// counted sheaf of this CPU. Null without memory.
    ///
    /// The sheaf is taken out, filled in its place, and put back: the objects are copied once.
    pub fn take_counted(&self, charged: usize) -> *mut u8 {
        let node = self.this_node();
        // SAFETY: the counted row has a slot for each CPU, and exists in rseq mode only.
        let Some(access) = (unsafe { Sequences::new(self.counted_slots(), Some(node)) }) else {
            return self.take_one_counted(charged);
        };
        self.used.add_cpu(access.cpu());
        let have = match exchange_main(&access, dummy_of(access.cpu().number())) {
            // A corrupted one is lost.
            Exchanged::Old(sheaf) if !is_dummy(sheaf) && reopen_taken(sheaf) => sheaf,
            _ => sheaf::alloc(self.counted_size(), node),
        };
        if have.is_null() {
            return self.take_one_counted(charged);
        }
        let mut sheaf = Owned(have);
        // Usually 0; another thread may have filled it meanwhile.
        let count = sheaf.count();
        let n = if self.is_bypassed() { 1 } else { sheaf.capacity() - count + 1 };
        let n = charged.min(n);
        let rest = &mut sheaf.places()[count..count + n - 1];
        let row = self.slots()[node * self.row_distance..].as_ptr();
        // SAFETY: the row is the cache's, and `rest` has room for so many.
        let (mut object, mut got) = unsafe {
            // The one that was freed last.
            let object = rseq::pop(row);
            (object, rseq::pop_bulk(row, rest.len(), rest.as_mut_ptr()))
        };
        if object.is_null() || got < rest.len() {
            (object, got) = self.fill_counted(object, rest, got);
        }
        self.credit(charged - got - usize::from(!object.is_null()));
        sheaf.set_count(count + got);
        self.put_counted(&access, have);
        os::sleep::note_activity();
        object
    }

    #[cold]
    fn counted_size(&self) -> Size {
        Size::holding(most_counted(self.slabs().geometry().object_bytes) - 1)
    }

    /// Completes what a refill lacks: `object`, unless it has one, and `rest` beyond the first
    /// `got`. Returns the object, and how many are in `rest`.
    #[cold]
    #[inline(never)]
    fn fill_counted(&self, object: *mut u8, rest: &mut [*mut u8], got: usize) -> (*mut u8, usize) {
        let mut objects = [core::ptr::null_mut(); MAX_COUNTED];
        let lacks_one = object.is_null();
        let fresh = &mut objects[..rest.len() - got + usize::from(lacks_one)];
        // A pair loop needs as many objects as a refill serves, or it refills again too soon.
        if !self.alloc_from_rows(fresh) {
            let last = if lacks_one { got.checked_sub(1) } else { None };
            return last.map_or((object, got), |last| (rest[last], last));
        }
        let more = rest.len() - got;
        // Those that the sheaf held are served first, as without a profile.
        rest.copy_within(..got, more);
        rest[..more].copy_from_slice(&fresh[..more]);
        (fresh.get(more).copied().unwrap_or(object), rest.len())
    }

    /// Serves one object where no counted sheaf can be had.
    #[cold]
    fn take_one_counted(&self, charged: usize) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        let is_filled = self.alloc_from_rows(&mut out);
        self.credit(charged - usize::from(is_filled));
        if is_filled { out[0] } else { core::ptr::null_mut() }
    }

    /// Puts a counted sheaf that the thread owns, and that has its capacity, into its slot. Objects
    /// that find no place are freed.
    pub(super) fn put_counted(&self, access: &Sequences<'_>, sheaf: *mut Sheaf) {
        // SAFETY: the thread owns the sheaf.
        unsafe { (*sheaf).capacity.store(0, Relaxed) };
        let left_over = match exchange_main(access, sheaf) {
            Exchanged::Old(old) => old,
            Exchanged::GateClosed | Exchanged::Taken => sheaf,
        };
        self.recount(access.slot());
        if !is_dummy(left_over) {
            self.discard_sheaf(left_over);
        }
        if self.is_bypassed() || self.is_hiding() {
            self.drain_whole();
        }
    }

    /// Frees a counted sheaf that the thread owns, and its objects.
    #[cold]
    #[inline(never)]
    fn discard_sheaf(&self, sheaf: *mut Sheaf) {
        if !reopen_taken(sheaf) {
            return;
        }
        let mut owned = Owned(sheaf);
        self.discard(owned.objects());
        owned.set_count(0);
        // SAFETY: empty and owned.
        unsafe { sheaf::free(sheaf) };
    }

    /// Frees objects of this cache that were charged, and that the thread owns.
    fn discard(&self, objects: &[*mut u8]) {
        if !objects.is_empty() {
            self.credit(objects.len());
            // SAFETY: free objects of this cache, which the thread owns.
            unsafe { self.free_slow(objects) };
        }
    }
}

/// Exchanges the main sheaf of a counted slot. The table of owners does not know counted sheaves:
/// they have no capacity.
pub(super) fn exchange_main(access: &Sequences<'_>, new: *mut Sheaf) -> Exchanged {
    // SAFETY: the dummy, or a sheaf of this cache that the caller owns.
    unsafe { access.exchange(Which::Main, new) }
}

/// Whether a sheaf comes from a counted row.
pub(super) fn is_counted(sheaf: *mut Sheaf) -> bool {
    // SAFETY: sheaves stay mapped, and the word is an atomic.
    !is_dummy(sheaf) && unsafe { (*sheaf).capacity.load(Relaxed) } == 0
}

/// The memory of a sheaf, a counted one too; none of a dummy.
pub(super) fn sheaf_region(sheaf: *mut Sheaf) -> Option<Region> {
    if sheaf.is_null() || is_dummy(sheaf) {
        return None;
    }
    let room = if is_counted(sheaf) { sheaf::room(sheaf) } else { Owned(sheaf).capacity() };
    let bytes = SHEAF_HEADER_BYTES + room * size_of::<*mut u8>();
    Some(Region { kind: "sheaf", start: sheaf.addr(), bytes })
}

/// Gives a counted sheaf that the caller owns its capacity back; returns false for others.
pub(super) fn reopen(sheaf: *mut Sheaf) -> bool {
    let is_counted = is_counted(sheaf);
    if is_counted {
        // SAFETY: the caller owns it, and it was made with this capacity.
        unsafe { (*sheaf).capacity.store(sheaf::room(sheaf) as u32, Relaxed) };
    }
    is_counted
}

/// Gives a sheaf that the caller took out of a counted slot its capacity back. False, with a
/// report, if it is no sheaf any more.
pub(super) fn reopen_taken(sheaf: *mut Sheaf) -> bool {
    // First: a wild pointer leads to no memory.
    if sheaf::room(sheaf) > 0 {
        reopen(sheaf);
    }
    sheaf::is_sheaf(sheaf)
}

//! The slow path where allocations pop from a lending row ([`super::rows`]): it moves objects of
//! the CPU's own node there, and frees to the row that the page map names.
//!
//! ```text
//!   alloc   lending sheaf ◀─ up to MAX_LENT ─ main sheaf of the CPU's node ◀─ refill
//!   free    page map ─▶ main sheaf for the object's node
//! ```
//!
//! Frees do not fill the lending sheaf that allocations empty: they push to the main sheaf of the
//! object's node. So even a loop of pairs takes this path each time the lending sheaf is empty.
//! This path is short: while the main sheaf has an object, it moves objects from sheaf to sheaf,
//! and visits neither spare, barn nor slabs. A free that names its cache finds the lending sheaf
//! full, and takes the steps of a free that does not.
//!
//! If the main sheaf fills less than half of a lending sheaf, the slow path adds objects from the
//! spare, the barn or the slabs. Otherwise a loop over a few objects would come here every few
//! calls.
//!
//! The counted row of a heap profile is the same row. While a profile counts, the slow path lends
//! nothing: lent objects would not be charged to the distance to the next sample.
//!
//! A lending sheaf holds at most [`LENT_BYTES`] of objects: loops of pairs go round these objects,
//! which should stay in the first-level cache.

use super::CpuCache;
use super::access::{Access, Sequences};
use super::counted::{self, LENDING_SIZE, exchange_main};
use super::sheaf::{self, Owned, Size};
use crate::counters::SlowCall;
use crate::os::{self, invariant::invariant};
use crate::pages;
use crate::rseq::{self, Cpu, Exchanged, Pushed, Sheaf, dummy_of, is_dummy};
use core::sync::atomic::Ordering::Relaxed;

/// Objects that a lending sheaf holds at most.
const MAX_LENT: usize = LENDING_SIZE.capacity();
/// Objects of any size that a lending sheaf may hold.
const USUAL_LENT: usize = Size(2).capacity();
/// Bytes of objects that a lending sheaf holds at most, but for [`USUAL_LENT`] objects.
const LENT_BYTES: usize = 8 << 10;

impl CpuCache {
    /// Takes an object, and leaves some more in the lending row of this CPU. Null without memory.
    pub(super) fn take_and_lend(&self) -> *mut u8 {
        let _errno = os::errno::Preserved::new();
        let node = self.this_node();
        if self.slabs().geometry().is_run() {
            return self.take_run(node);
        }
        // SAFETY: both rows have a slot for each CPU, and exist in rseq mode only.
        let accesses = unsafe {
            let own = &self.slots()[node * self.row_distance..][..self.cpus];
            (Sequences::new(self.counted_slots(), Some(node)), Sequences::new(own, Some(node)))
        };
        let (Some(lending), Some(own)) = accesses else { return self.take_one() };
        if !self.has_sheaves() || self.is_hiding() {
            return self.take_one();
        }
        self.used.add_cpu(lending.cpu());
        let have = match exchange_main(&lending, dummy_of(lending.cpu().number())) {
            // A corrupted one is lost, with its objects.
            Exchanged::Old(sheaf) if !is_dummy(sheaf) && counted::reopen_taken(sheaf) => sheaf,
            _ => core::ptr::null_mut(),
        };
        let have = self.roomy(have, node);
        if have.is_null() {
            return self.take_one();
        }
        let mut sheaf = Owned(have);
        // One that has objects still may be smaller than it should be.
        let most = self.most_lent().min(sheaf.capacity());
        let count = self.lend(&own, &mut sheaf, most);
        let few = most.div_ceil(2);
        if count < few {
            self.top_up(&mut sheaf, few - count);
            self.lend(&own, &mut sheaf, most);
        } else {
            self.count(Some(own.cpu()), SlowCall::Alloc);
        }
        let object = sheaf.pop();
        self.recount(own.slot());
        self.put_counted(&lending, have);
        object
    }

    /// Takes a run out of this CPU's sheaf. Runs are never lent, since they may be large. A sheaf
    /// without objects takes the place of the dummy in the lending row. CPUs share dummies, and a
    /// pop writes to them.
    fn take_run(&self, node: usize) -> *mut u8 {
        // SAFETY: the row is this cache's, for every possible CPU, and the mode is rseq.
        let run = unsafe { rseq::pop(self.row(node).as_ptr()) };
        let lending = Cpu::current().own(self.counted_slots());
        if run.is_null() || lending.is_none_or(|slot| is_dummy(slot.main.load(Relaxed))) {
            self.replace_dummy(node);
        }
        if run.is_null() { self.take_one() } else { run }
    }

    /// Puts a sheaf without objects into this CPU's slot of the lending row, if that has a dummy.
    #[cold]
    #[inline(never)]
    fn replace_dummy(&self, node: usize) {
        // SAFETY: the row has a slot for each CPU, and exists in rseq mode only.
        let Some(lending) = (unsafe { Sequences::new(self.counted_slots(), Some(node)) }) else { return };
        if is_dummy(lending.slot().main.load(Relaxed)) && self.has_sheaves() && !self.is_hiding() {
            let sheaf = sheaf::alloc(Size(0), node);
            if !sheaf.is_null() {
                self.used.add_cpu(lending.cpu());
                self.put_counted(&lending, sheaf);
            }
        }
    }

    /// Returns a lending sheaf that the thread owns, for as many objects as the cache lends now:
    /// `have` (null for none), or a new one in its place, if it is smaller and has no object. Null
    /// without memory for any.
    fn roomy(&self, have: *mut Sheaf, node: usize) -> *mut Sheaf {
        let most = self.most_lent();
        if !have.is_null() {
            let sheaf = Owned(have);
            if sheaf.count() > 0 || sheaf.capacity() >= most {
                return have;
            }
        }
        let larger = sheaf::alloc(Size::holding(most), node);
        if larger.is_null() {
            return have;
        }
        if !have.is_null() {
            // SAFETY: empty, and the thread owns it.
            unsafe { sheaf::free(have) };
        }
        larger
    }

    /// Adds `wanted` objects, from wherever the CPU's node has some, to a lending sheaf that the
    /// thread owns, and that has room for them. Where memory is short, adds one if it has none.
    fn top_up(&self, sheaf: &mut Owned, wanted: usize) {
        let mut objects = [core::ptr::null_mut(); MAX_LENT.div_ceil(2)];
        let objects = &mut objects[..wanted];
        let added = if self.alloc_from_rows(objects) {
            wanted
        } else {
            usize::from(sheaf.count() == 0 && self.alloc_from_rows(&mut objects[..1]))
        };
        let put = sheaf.push_from(&objects[..added]);
        invariant!(put == added, "a lending sheaf has room for what it lacks", sheaf.0);
    }

    /// Moves objects of this CPU's main sheaf to a lending sheaf that the thread owns, up to `most`
    /// in all; returns how many that sheaf has then.
    fn lend(&self, own: &Sequences<'_>, sheaf: &mut Owned, most: usize) -> usize {
        let count = sheaf.count();
        let room = most.min(sheaf.capacity()).max(count);
        let got = own.pop_bulk(&mut sheaf.places()[count..room]);
        let lent = &sheaf.places()[count..count + got];
        if self.slabs().may_have(lent) {
            sheaf.set_count(count + got);
        } else {
            // SAFETY: this CPU's sheaf had them. The slabs check each, and report those that are no
            // free objects of theirs.
            unsafe { self.slabs().free(lent) };
        }
        sheaf.count()
    }

    /// Takes one object out of the slots of the CPU's node. Null without memory.
    fn take_one(&self) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        if self.alloc_from_rows(&mut out) { out[0] } else { core::ptr::null_mut() }
    }

    /// Objects that a lending sheaf is to hold: no more than the main sheaf takes back.
    fn most_lent(&self) -> usize {
        let bytes = self.slabs().geometry().object_bytes;
        let most = if bytes <= LENT_BYTES / MAX_LENT {
            MAX_LENT
        } else {
            (LENT_BYTES / bytes).clamp(USUAL_LENT, MAX_LENT)
        };
        self.capacity().clamp(1, most)
    }

    /// Frees an object to this CPU's sheaf for its node, by the row that the page map names.
    /// [`Pushed::Slow`]: nothing changed, also where there is no lending row.
    ///
    /// If all calls of the cache are to take the slow path, the row has dummies, as all rows have.
    ///
    /// # Safety
    /// `object` must be an object of this cache that is not used any more.
    #[inline]
    pub unsafe fn push_by_page_map(&self, object: *mut u8) -> Pushed {
        match pages::direct_owner_of(object) {
            // SAFETY: an owner of this cache is a row of it; the mode is rseq where rows lend.
            Some(owner) if self.slabs().is_owned_by_a_row(owner) => unsafe {
                rseq::push_tested(owner.slots(), object)
            },
            _ => Pushed::Slow,
        }
    }
}

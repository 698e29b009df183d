//! Refills: how a CPU without objects in its main sheaf gets some.
//!
//! A refill tries the spare, a full sheaf of the barn or of a richer one of the node, and the
//! slabs. The sheaf that has objects becomes the main one, and the old main sheaf the spare.
//!
//! In a long streak of allocations the spare is empty and the barn has no full sheaf. Then a refill
//! takes the main sheaf itself, fills it from the slabs and puts it back:
//!
//! ```text
//!   usually          take the spare, ask the barn, fill, install, old main to the spare
//!   in a long streak take main, fill, install
//! ```
//!
//! The program is about to write these objects one by one. It has not touched them since their
//! frees, so each write may wait for memory. A refill of this kind that follows another one
//! prefetches the first of the objects, so that these waits overlap.
//!
//! [`super::saturated`] is the same for long streaks of frees.

use super::CpuCache;
use super::access::{Access, Home, home_of};
use super::adapt::{self, Miss, Streak};
use super::cpu_cache::PIECE;
use super::drain::Keep;
use super::hidden;
use super::sheaf::Owned;
use crate::os::{invariant::invariant, probe};
use crate::rseq::{Sheaf, Which, is_dummy};
use crate::sync::prefetch_for_write;
use core::sync::atomic::Ordering::Relaxed;

/// Upper bound on the objects that a refill prefetches: as many misses as a processor has under way
/// at once, so that the refill itself does not wait. Prefetchers of the processor follow these.
const MAX_PREFETCHED: usize = 16;

impl CpuCache {
    /// Serves objects to `out`; returns how many, and 0 only if there is no memory. Leaves this CPU
    /// with a filled main sheaf where it can.
    pub(super) fn refill(&self, access: &impl Access, out: &mut [*mut u8]) -> usize {
        let got = access.pop_bulk(out);
        if got > 0 {
            // SAFETY: this CPU's sheaf had them.
            if unsafe { self.may_serve_these(&out[..got]) } {
                return got;
            }
        }
        if self.slabs().geometry().is_run() {
            return self.take_runs(access, out);
        }
        let home = home_of(access);
        if out.len() < self.capacity()
            && self.is_exhausted(access, home)
            && let Some(got) = self.refill_main(access, out, home)
        {
            return got;
        }
        let spare = self.take_out(access, Which::Spare);
        let mut spare = if is_dummy(spare) { core::ptr::null_mut() } else { spare };
        let mut source = if !spare.is_null() && Owned(spare).count() > 0 {
            adapt::note_spare_objects(self.slabs().tally_of(access.cpu()));
            self.resized(Owned(spare), home.node)
        } else {
            let taken = self.take_full(&mut spare, home);
            self.note_miss(access, Miss::Underflow, taken.is_some());
            match taken {
                Some(full) => {
                    if !spare.is_null() {
                        self.flush_and_free(&mut Owned(spare), Keep::Target);
                    }
                    let n = Owned(full).count() as i64;
                    self.slabs().tally_of(access.cpu()).sheaf_free.fetch_sub(n, Relaxed);
                    Owned(full)
                }
                None => match self.fill_from_slabs(spare, home, out) {
                    Filled::Sheaf(sheaf) => Owned(sheaf),
                    Filled::Direct(got) => return got,
                },
            }
        };
        invariant!(source.count() > 0, "a refill serves from a sheaf with an object", source.0);
        if !self.slabs().may_have(source.objects()) {
            self.flush_and_free(&mut source, Keep::Target);
            return self.slabs().take(home.node, out, out.len());
        }
        let got = source.pop_into(out);
        // SAFETY: a sheaf of this cache had them.
        if !unsafe { self.may_serve_these(&out[..got]) } {
            self.flush_and_free(&mut source, Keep::Target);
            return self.slabs().take(home.node, out, out.len());
        }
        self.install(access, source.0, home);
        got
    }

    /// Whether `objects`, which come out of a sheaf, may be objects of this cache. One object is
    /// looked up in the page map, several are compared with the arena's bounds. If not, the slabs
    /// get them, check each, and report those that are no free objects of theirs.
    ///
    /// # Safety
    /// A sheaf of this cache must have had the objects, and the caller must own them.
    #[inline]
    pub(super) unsafe fn may_serve_these(&self, objects: &[*mut u8]) -> bool {
        let may_serve = match objects {
            &[object] => self.slabs().has_object_at(object),
            _ => self.slabs().may_have(objects),
        };
        if !may_serve {
            // SAFETY: the caller's promise.
            unsafe { self.slabs().free(objects) };
        }
        may_serve
    }

    /// Whether neither the spare nor the barn has an object, and no other barn of the node has
    /// many. A hint: the thread owns neither.
    fn is_exhausted(&self, access: &impl Access, home: Home) -> bool {
        let spare = access.slot().spare.load(Relaxed);
        // SAFETY: sheaves lie in the arena or are the dummy; both stay mapped, and the counts are
        // atomics.
        let (count, capacity) = unsafe { ((*spare).count.load(Relaxed), (*spare).capacity.load(Relaxed)) };
        // The ordinary path replaces a spare of another size, or the dummy.
        count == 0
            && capacity as usize == self.capacity()
            && self.barn(home.group).fulls() == 0
            && self.rich_neighbour(home).is_none()
    }

    /// Serves objects to `out`, out of the main sheaf after that was filled from the slabs; returns
    /// how many, and 0 only if there is no memory. Returns `None` if the slot has no main sheaf.
    fn refill_main(&self, access: &impl Access, out: &mut [*mut u8], home: Home) -> Option<usize> {
        let main = self.take_out(access, Which::Main);
        if is_dummy(main) {
            return None;
        }
        self.note_miss(access, Miss::Underflow, false);
        let mut main = Owned(main);
        if main.count() == 0 {
            main = match self.fill_from_slabs(main.0, home, out) {
                Filled::Sheaf(sheaf) => Owned(sheaf),
                Filled::Direct(got) => return Some(got),
            };
        }
        let got = main.pop_into(out);
        if Streak(access.slot().last_miss.load(Relaxed)).is_under_way(Miss::Underflow) {
            let next = main.objects().iter().rev();
            next.take(MAX_PREFETCHED).for_each(|&object| prefetch_for_write(object));
        }
        self.install(access, main.0, home);
        Some(got)
    }

    /// Fills an empty sheaf from the slabs. If `out` would take the whole sheaf, or there is no
    /// sheaf, serves `out` directly from the slabs.
    fn fill_from_slabs(&self, have: *mut Sheaf, home: Home, out: &mut [*mut u8]) -> Filled {
        self.tally().refills.fetch_add(1, Relaxed);
        if out.len() >= self.capacity() {
            if !have.is_null() {
                self.put_in_barn(have, home);
            }
            return Filled::Direct(self.slabs().take(home.node, out, out.len()));
        }
        let sheaf = self.fitting(have, home.node);
        if sheaf.is_null() {
            return Filled::Direct(self.slabs().take(home.node, out, out.len()));
        }
        let mut owned = Owned(sheaf);
        let places = owned.places();
        let piece = places.len().min(PIECE.max(out.len()));
        // The capacity may have fallen since it was compared: the sheaf may have fewer places.
        let n = self.slabs().take(home.node, &mut places[..piece], piece.min(out.len()));
        hidden::shuffle(&mut owned.places()[..n]);
        owned.set_count(n);
        if n == 0 {
            self.flush_and_free(&mut owned, Keep::Target);
            return Filled::Direct(0);
        }
        probe::refill(|| (self.slabs().name(), [n]));
        Filled::Sheaf(sheaf)
    }
}

/// The result of [`CpuCache::fill_from_slabs`]: a filled sheaf, or the number of objects served.
enum Filled {
    Sheaf(*mut Sheaf),
    Direct(usize),
}

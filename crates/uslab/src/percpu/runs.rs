//! The slow path of caches whose objects are runs of pages: one sheaf for each CPU, no spare, no
//! barn.
//!
//! ```text
//!   no main sheaf    ── a new sheaf; without memory for one, to the slabs
//!   main sheaf empty ── one run from the slabs, which is one from the buddy; if the CPU gave one
//!                       away before, a larger sheaf from now on
//!   main sheaf full  ── its older half to the slabs
//! ```
//!
//! A run is many pages. So what a CPU holds is bounded in bytes over all classes, and each object
//! counts ([`super::adapt`]). The older half goes because a program uses again what it freed last.

use super::CpuCache;
use super::access::{Access, exchange, home_of};
use super::adapt::Miss;
use super::drain::Keep;
use super::sheaf::Owned;
use crate::os::{invariant::invariant, probe};
use crate::rseq::{Exchanged, Which, is_dummy};
use core::sync::atomic::Ordering::Relaxed;

impl CpuCache {
    /// Takes runs from the slabs into `out`; returns how many: 0 without memory.
    pub(super) fn take_runs(&self, access: &impl Access, out: &mut [*mut u8]) -> usize {
        self.note_miss(access, Miss::Underflow, false);
        self.slabs().take(home_of(access).node, out, out.len())
    }

    /// Frees at least one of `objects`. Leaves this CPU with a main sheaf that has room, if it can.
    ///
    /// # Safety
    /// As [`CpuCache::free_slow`].
    pub(super) unsafe fn put_runs(&self, access: &impl Access, objects: &[*mut u8]) -> usize {
        let node = home_of(access).node;
        let taken = self.take_out(access, Which::Main);
        let main = if is_dummy(taken) { self.fitting(core::ptr::null_mut(), node) } else { taken };
        if main.is_null() {
            self.note_miss(access, Miss::Overflow, false);
            // SAFETY: the caller's promise.
            unsafe { self.slabs().free(objects) };
            return objects.len();
        }
        let mut main = Owned(main);
        if main.count() == main.capacity() {
            self.note_miss(access, Miss::Overflow, false);
            main = self.resized(main, node);
        }
        if main.count() == main.capacity() {
            self.flush_older_half(&mut main);
        }
        let put = main.push_from(objects);
        invariant!(put > 0, "a sheaf whose older half went has room", main.0);
        // SAFETY: the thread owns the sheaf, which is of this cache.
        let in_the_way = match unsafe { exchange(access, Which::Main, main.0) } {
            Exchanged::Old(old) => Some(old).filter(|&old| !is_dummy(old)),
            Exchanged::GateClosed | Exchanged::Taken => Some(main.0),
        };
        if let Some(sheaf) = in_the_way {
            self.flush_and_free(&mut Owned(sheaf), Keep::Target);
        }
        self.settle(access);
        put
    }

    fn flush_older_half(&self, sheaf: &mut Owned) {
        let (count, older) = (sheaf.count(), sheaf.count().div_ceil(2));
        // SAFETY: objects in a sheaf of this cache are free objects of it; the count forgets those
        // that were given.
        unsafe { self.slabs().free(&sheaf.objects()[..older]) };
        sheaf.objects().copy_within(older.., 0);
        sheaf.set_count(count - older);
        probe::flush(|| (self.slabs().name(), [older]));
        self.tally().flushes.fetch_add(1, Relaxed);
    }
}

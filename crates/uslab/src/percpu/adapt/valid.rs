//! Invariants of the capacities of all caches, and the functions that check them under the ring's
//! lock.

use super::{Adapt, RING, Ring, USED};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use crate::percpu::CpuCache;
use crate::sync::list::List;
use core::sync::atomic::Ordering::Relaxed;

/// Upper bound on the caches that a sampled walk visits.
const MAX_WALKED: usize = 64;

impl Adapt {
    fn check(&self) -> Checked {
        let subject = Subject::new("capacity", self);
        subject.at_most(self.size().0, self.most.0, "a cache's sheaves are no larger than allowed")?;
        Ok(())
    }
}

impl Ring {
    /// Asserts, in debug builds, what holds after the size of `cache` changed.
    #[inline(always)]
    pub(super) fn assert_valid(&self, cache: &CpuCache) {
        assert_valid(|| {
            cache.adapt().check()?;
            self.check_neighbours(cache)
        });
        if is_sampled() {
            assert_valid(|| self.check(MAX_WALKED).map(drop));
        }
    }

    fn check_neighbours(&self, cache: &CpuCache) -> Checked {
        let subject = Subject::new("capacity", cache.adapt());
        // SAFETY: the cache lives, and its links are those of this list, whose lock is held.
        let (is_linked, is_whole) =
            unsafe { (List::<CpuCache>::is_linked(cache), List::<CpuCache>::is_whole(cache)) };
        subject.holds(is_whole, "the neighbours of a cache link back to it")?;
        let is_charged = cache.adapt().charge(cache.adapt().size()) > 0;
        subject.equal(is_linked, is_charged, "a cache stands in the ring while charged")
    }

    /// Checks up to `most` caches of the ring, and the sum of charges if these are all; returns how
    /// many it checked.
    pub(super) fn check(&self, most: usize) -> Checked<usize> {
        let (mut seen, mut charged) = (0, 0);
        let last = self.0.last();
        // SAFETY: caches in the ring are valid: each leaves the ring before it goes away.
        let mut at = unsafe { last.as_ref() };
        while let Some(cache) = at.filter(|_| seen < most) {
            cache.adapt().check()?;
            self.check_neighbours(cache)?;
            charged += cache.adapt().charge(cache.adapt().size());
            seen += 1;
            // SAFETY: a cache of the ring, and so is the one before it.
            at = unsafe { self.0.before(cache).as_ref() }.filter(|&next| !core::ptr::eq(next, last));
        }
        let subject = Subject::new("ring of capacities", self);
        if at.is_none() {
            subject.equal(USED.load(Relaxed), charged, "the charges of caches are summed up")?;
        }
        Ok(seen)
    }
}

/// Checks the ring while `change` alters the sum of charges, for a test.
#[cfg(test)]
pub(in crate::percpu) fn check_broken(change: impl Fn(usize) -> usize) -> Checked<usize> {
    let ring = RING.lock();
    let used = USED.load(Relaxed);
    USED.store(change(used), Relaxed);
    let result = ring.check(usize::MAX);
    USED.store(used, Relaxed);
    result
}

/// Checks the ring; returns how many caches are beyond their default.
pub fn check() -> Checked<usize> {
    RING.lock().check(usize::MAX)
}

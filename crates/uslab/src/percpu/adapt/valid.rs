//! What always holds of the capacities of all caches, under the ring's lock.

use super::{Adapt, OUTSIDE, RING, Ring, USED};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use crate::percpu::CpuCache;
use core::sync::atomic::Ordering::Relaxed;

/// Caches that a sampled walk visits.
const MAX_WALKED: usize = 64;

impl Adapt {
    fn check(&self) -> Checked {
        let subject = Subject::new("capacity", self);
        subject.at_most(self.size().0, self.most.0, "a cache's sheaves are no larger than allowed")?;
        let links = self.links.get();
        let is_outside = links.next == OUTSIDE.next;
        subject.equal(links.prev == OUTSIDE.prev, is_outside, "a cache has two neighbours or none")?;
        subject.equal(self.charge(self.size()) > 0, !is_outside, "a cache stands in the ring while charged")
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
        let links = cache.adapt().links.get();
        // SAFETY: caches in the ring are valid: each is taken out before it goes.
        let (next, prev) = unsafe { (links.next.as_ref(), links.prev.as_ref()) };
        if let (Some(next), Some(prev)) = (next, prev) {
            let is_next = core::ptr::eq(next.adapt().links.get().prev, cache);
            subject.holds(is_next, "the next cache of the ring links back")?;
            let is_prev = core::ptr::eq(prev.adapt().links.get().next, cache);
            subject.holds(is_prev, "the cache before links here")?;
            subject.holds(!self.hand.is_null(), "a ring with caches has a hand")?;
        }
        Ok(())
    }

    /// Checks up to `most` caches of the ring, and the sum of charges where these are all; returns
    /// how many.
    pub(super) fn check(&self, most: usize) -> Checked<usize> {
        let (mut seen, mut charged) = (0, 0);
        // SAFETY: as above.
        let mut at = unsafe { self.hand.as_ref() };
        while let Some(cache) = at.filter(|_| seen < most) {
            cache.adapt().check()?;
            self.check_neighbours(cache)?;
            charged += cache.adapt().charge(cache.adapt().size());
            seen += 1;
            let next = cache.adapt().links.get().next;
            // SAFETY: as above.
            at = unsafe { next.as_ref() }.filter(|_| !core::ptr::eq(next, self.hand));
        }
        let subject = Subject::new("ring of capacities", self);
        if at.is_none() {
            subject.equal(USED.load(Relaxed), charged, "what caches are charged is summed up")?;
        }
        Ok(seen)
    }
}

/// Checks the ring while `change` says what is charged, for a test.
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

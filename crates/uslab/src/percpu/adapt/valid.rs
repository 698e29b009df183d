//! Invariants of the capacities of all caches, and the functions that check them under the rings'
//! lock.

use super::{Adapt, RINGS, Ring};
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use crate::percpu::CpuCache;
use crate::sync::list::List;
use core::sync::atomic::Ordering::Relaxed;

/// Upper bound on the caches that a sampled walk visits.
const MAX_WALKED: usize = 64;

impl Adapt {
    fn check(&self) -> Checked {
        let subject = Subject::new("capacity", self);
        subject.at_most(self.level().0, self.most.0, "a cache's sheaves are no larger than allowed")?;
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
        subject.equal(is_linked, cache.adapt().charged() > 0, "a cache stands in the ring while charged")
    }

    /// Checks up to `most` caches of the ring, and the sum of charges if these are all; returns how
    /// many it checked.
    pub(super) fn check(&self, most: usize) -> Checked<usize> {
        let (mut seen, mut charged) = (0, 0);
        let last = self.caches.last();
        // SAFETY: caches in the ring are valid: each leaves the ring before it goes away.
        let mut at = unsafe { last.as_ref() };
        while let Some(cache) = at.filter(|_| seen < most) {
            cache.adapt().check()?;
            self.check_neighbours(cache)?;
            charged += cache.adapt().charged();
            seen += 1;
            // SAFETY: a cache of the ring, and so is the one before it.
            at = unsafe { self.caches.before(cache).as_ref() }.filter(|&next| !core::ptr::eq(next, last));
        }
        let subject = Subject::new("ring of capacities", self);
        if at.is_none() {
            subject.equal(self.kind.used().load(Relaxed), charged, "the charges of caches are summed up")?;
        }
        Ok(seen)
    }
}

/// Checks the rings while `change` alters the sum of charges of the first, for a test.
#[cfg(test)]
pub(in crate::percpu) fn check_broken(change: impl Fn(usize) -> usize) -> Checked<usize> {
    let rings = RINGS.lock();
    let sum = rings[0].kind.used();
    let used = sum.load(Relaxed);
    sum.store(change(used), Relaxed);
    let result = check_all(&*rings);
    sum.store(used, Relaxed);
    result
}

fn check_all(rings: &[Ring]) -> Checked<usize> {
    rings.iter().try_fold(0, |seen, ring| Ok(seen + ring.check(usize::MAX)?))
}

/// Checks the rings; returns how many caches are beyond their default.
pub fn check() -> Checked<usize> {
    check_all(&*RINGS.lock())
}

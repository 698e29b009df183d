//! What all caches of a record have counted together, those that are gone included.
//!
//! The counters of a cache go with it. A sum over the caches of one sample therefore falls when a
//! cache goes, and says nothing about what happened. This sum takes what each cache gained from
//! sample to sample, and never falls.

use super::format::CacheFigures;

/// Counters, as sums over all caches since the record's first sample, at which they are what the
/// caches had counted before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub drains: u64,
    pub grows: u64,
    pub shrinks: u64,
    pub failures: u64,
}

impl Counts {
    /// Adds what the cache of one id counted from one sample to the next; `then` is zero for a new
    /// cache. A counter never falls: where one did, the id is another cache's, which counts from
    /// zero.
    pub fn add(&mut self, then: &CacheFigures, now: &CacheFigures) {
        let has_fallen = counters(then).iter().zip(counters(now)).any(|(then, now)| now < *then);
        let then = if has_fallen { CacheFigures::default() } else { *then };
        for (sum, now, then) in [
            (&mut self.drains, now.drains, then.drains),
            (&mut self.grows, now.grows, then.grows),
            (&mut self.shrinks, now.shrinks, then.shrinks),
            (&mut self.failures, now.failures, then.failures),
        ] {
            *sum = sum.saturating_add(now - then);
        }
    }
}

/// The figures of a cache that count from its start.
fn counters(of: &CacheFigures) -> [u64; 7] {
    [of.slow, of.refills, of.flushes, of.drains, of.grows, of.shrinks, of.failures]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_added_and_a_cache_of_the_same_id_counts_from_zero() {
        let figures = |slow, grows| CacheFigures { slow, grows, ..CacheFigures::default() };
        let mut counts = Counts::default();
        counts.add(&figures(0, 0), &figures(10, 4));
        counts.add(&figures(10, 4), &figures(12, 5));
        assert_eq!(counts.grows, 5);
        // Fewer slow paths than before: the 7 slabs are all of another cache.
        counts.add(&figures(12, 5), &figures(9, 7));
        assert_eq!(counts, Counts { grows: 12, ..Counts::default() });
    }
}

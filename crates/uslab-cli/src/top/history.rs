//! What a process's figures were at each look, oldest first.

use std::collections::{HashMap, VecDeque};

use crate::accounts::{Division, Parts};
use crate::process;
use crate::snapshot::{Cache, Snapshot};

/// Looks that are kept; the oldest goes first. Ten minutes of one look a second.
pub const MAX_POINTS: usize = 600;

/// The figures of one look that later looks are compared with.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// Seconds since the first look.
    pub at_s: f64,
    pub parts: Parts,
    /// Bytes of large objects, whose figures are always up to date.
    pub large_bytes: u64,
    /// Caches that had a slab.
    pub caches: HashMap<u32, CachePoint>,
}

/// The figures of one cache at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachePoint {
    pub live_objects: u64,
    pub live_bytes: u64,
    pub slab_bytes: u64,
    pub slow: u64,
    pub refills: u64,
    pub drains: u64,
    /// Bytes by which live and free bytes may be wrong at most: other processes see what a CPU's
    /// sheaves hold as of its last slow path, and a CPU's slow paths in lots.
    pub unsure_bytes: u64,
}

/// Objects that a CPU may have taken or freed unseen: those of its two sheaves, and of the slow
/// calls that it counts together. In a process without a background thread these are at most 16,
/// and the counts of objects in slabs and of those in sheaves each lag by 4096 objects at most
/// (`counters/tally.rs` of the library).
fn unseen_objects(sheaf_capacity: u32) -> u64 {
    let sheaf = u64::from(sheaf_capacity);
    2 * sheaf + (16 * sheaf).min(2 * 4096)
}

impl CachePoint {
    /// The point of a cache that runs on so many CPUs.
    fn of(cache: &Cache, cpus: u64) -> CachePoint {
        let unseen = unseen_objects(cache.sheaf_capacity).saturating_mul(cache.object_bytes.into());
        CachePoint {
            unsure_bytes: cache.slab_bytes().min(cpus.saturating_mul(unseen)),
            live_objects: cache.active_objects(),
            live_bytes: Division::of(cache).live,
            slab_bytes: cache.slab_bytes(),
            slow: cache.alloc_slow.saturating_add(cache.free_slow),
            refills: cache.refills,
            drains: cache.drains,
        }
    }
}

impl Point {
    /// The point of one look.
    pub fn of(snapshot: &Snapshot, parts: Parts, at_s: f64) -> Point {
        let used = snapshot.live_caches().filter(|cache| cache.was_used());
        // One thread is on one CPU at a time; what it left behind on others does not change.
        let threads = i32::try_from(snapshot.pid).ok().and_then(process::threads);
        let cpus = u64::from(threads.map_or(snapshot.cpus, |threads| threads.min(snapshot.cpus)).max(1));
        let caches = used.map(|cache| (cache.id, CachePoint::of(cache, cpus))).collect();
        Point { at_s, parts, large_bytes: snapshot.large_bytes, caches }
    }
}

/// Changes of a cache in a second, between two looks.
///
/// The fast path counts nothing: the net rate is the change of the live objects, and the other
/// rates count slow paths, each of which moves up to a sheaf of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub net: f64,
    pub slow: f64,
    pub refills: f64,
    pub drains: f64,
}

/// Looks at one process.
#[derive(Default)]
pub struct History(VecDeque<Point>);

impl History {
    /// Adds a look.
    pub fn push(&mut self, point: Point) {
        if self.0.len() == MAX_POINTS {
            self.0.pop_front();
        }
        self.0.push_back(point);
    }

    /// The looks, oldest first.
    pub fn points(&mut self) -> &[Point] {
        self.0.make_contiguous()
    }

    /// The rates of a cache between the last two looks; zero before the second.
    pub fn rates(&self, id: u32) -> Rates {
        let Some((last, before)) = self.0.back().zip(self.0.iter().nth_back(1)) else {
            return Rates::default();
        };
        let Some((now, then)) = last.caches.get(&id).zip(before.caches.get(&id)) else {
            return Rates::default();
        };
        let seconds = (last.at_s - before.at_s).max(1e-3);
        // A counter that fell is another cache's with the same id.
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Rates {
            net: (now.live_objects as f64 - then.live_objects as f64) / seconds,
            slow: rate(now.slow, then.slow),
            refills: rate(now.refills, then.refills),
            drains: rate(now.drains, then.drains),
        }
    }

    /// One figure of a cache at the last `count` looks, oldest first.
    pub fn series(&self, id: u32, count: usize, figure: fn(&CachePoint) -> u64) -> Vec<u64> {
        let skipped = self.0.len().saturating_sub(count);
        let points = self.0.iter().skip(skipped);
        points.map(|point| point.caches.get(&id).map_or(0, figure)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::Image;

    fn history() -> History {
        let mut snapshot = Image::sample().parse().expect("whole");
        let mut history = History::default();
        for look in 0..3 {
            history.push(Point::of(&snapshot, Parts::default(), f64::from(look) * 2.0));
            snapshot.caches[0].slab_free -= 100;
            snapshot.caches[0].refills += 30;
            snapshot.caches[1].slab_free += 10;
        }
        history
    }

    #[test]
    fn rates_are_differences_over_time() {
        let history = history();
        let expected = Rates { net: 50.0, slow: 0.0, refills: 15.0, drains: 0.0 };
        assert_eq!(history.rates(0), expected);
        assert_eq!(history.rates(1).net, -5.0);
        assert_eq!(history.rates(99), Rates::default());
    }

    #[test]
    fn a_series_ends_at_the_last_look() {
        let history = history();
        assert_eq!(history.series(0, 2, |point| point.live_objects), [73_000, 73_100]);
        assert_eq!(history.series(0, 9, |point| point.live_objects).len(), 3);
        assert_eq!(history.series(2, 9, |point| point.live_objects), [0, 0, 0]);
    }

    #[test]
    fn a_long_history_forgets_its_beginning() {
        let mut history = History::default();
        for look in 0..2 * MAX_POINTS {
            history.push(Point { at_s: look as f64, ..Point::default() });
        }
        assert_eq!(history.points().len(), MAX_POINTS);
        assert_eq!(history.points()[0].at_s, MAX_POINTS as f64);
    }
}

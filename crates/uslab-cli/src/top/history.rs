//! What a process's figures were at each sample, oldest first.
//!
//! ```text
//!   samples  │ 0 │ 1 │ 2 │ … │ 599 │    time, parts of the memory
//!   cache 7  │ 0 ─────── 2 ─── 599 │    what it held, noted when that changed
//! ```
//!
//! Of thousands of caches most rest, so changes take little memory, and a sample costs the same
//! after ten minutes as at first. The last two samples are kept whole, for rates.

use std::collections::VecDeque;

use crate::accounts::{Division, Parts};
use crate::process;
use crate::snapshot::{Cache, Snapshot};

/// Samples that are kept; the oldest goes first. Ten minutes of one sample a second.
pub const MAX_POINTS: usize = 600;

/// The figures of the whole process at one sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Seconds since the first sample.
    pub at_s: f64,
    pub parts: Parts,
    /// Bytes of large objects, whose figures are always up to date.
    pub large_bytes: u64,
}

/// All figures of one sample.
#[derive(Clone, Debug, Default)]
pub struct Point {
    pub sample: Sample,
    /// Caches that had a slab, by id, in order.
    pub caches: Vec<(u32, CachePoint)>,
}

/// The figures of one cache at one sample.
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
    /// The point of one sample.
    pub fn of(snapshot: &Snapshot, parts: Parts, at_s: f64) -> Point {
        let used = snapshot.live_caches().filter(|cache| cache.was_used());
        // One thread is on one CPU at a time; what it left behind on others does not change.
        let threads = i32::try_from(snapshot.pid).ok().and_then(process::threads);
        let cpus = u64::from(threads.map_or(snapshot.cpus, |threads| threads.min(snapshot.cpus)).max(1));
        let caches = used.map(|cache| (cache.id, CachePoint::of(cache, cpus))).collect();
        Point { sample: Sample { at_s, parts, large_bytes: snapshot.large_bytes }, caches }
    }

    /// The figures of a cache.
    pub fn cache(&self, id: u32) -> Option<&CachePoint> {
        let at = self.caches.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(&self.caches[at].1)
    }
}

/// What of a cache's figures is kept for each sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub live_bytes: u64,
    pub slab_bytes: u64,
}

/// What one cache held, sample after sample.
#[derive(Default)]
struct Track {
    /// The numbers of the samples where that changed, and the new figures. Nothing is held before.
    changes: VecDeque<(u64, Held)>,
    /// The number of the last sample where its slow paths had counted something new.
    used_at: u64,
}

impl Track {
    /// Notes what the cache holds at sample `now`; forgets what it held before sample `first`.
    fn note(&mut self, held: Held, now: u64, first: u64) {
        if self.at(now) == held {
            return;
        }
        while self.changes.get(1).is_some_and(|(number, _)| *number <= first) {
            self.changes.pop_front();
        }
        self.changes.push_back((now, held));
    }

    /// The number of changes up to sample `number`.
    fn changes_until(&self, number: u64) -> usize {
        self.changes.partition_point(|(changed_at, _)| *changed_at <= number)
    }

    /// What the cache held at sample `number`.
    fn at(&self, number: u64) -> Held {
        let until = self.changes_until(number);
        until.checked_sub(1).map_or_else(Held::default, |at| self.changes[at].1)
    }

    /// The least live bytes of the samples `first` to `last`.
    fn lowest(&self, first: u64, last: u64) -> u64 {
        let changed = self.changes.range(self.changes_until(first)..self.changes_until(last));
        changed.map(|(_, held)| held.live_bytes).fold(self.at(first).live_bytes, u64::min)
    }
}

/// Changes of a cache in a second, between two samples.
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

/// The samples of one process.
#[derive(Default)]
pub struct History {
    samples: VecDeque<Sample>,
    /// Samples that were forgotten: the number of the first that is kept.
    forgotten: u64,
    /// What caches held, by id.
    tracks: Vec<Track>,
    last: Point,
    before: Point,
}

impl History {
    /// Adds a sample.
    pub fn push(&mut self, point: Point) {
        if self.samples.len() == MAX_POINTS {
            self.samples.pop_front();
            self.forgotten += 1;
        }
        self.samples.push_back(point.sample);
        self.samples.make_contiguous();
        self.before = std::mem::replace(&mut self.last, point);
        let (first, now) = (self.forgotten, self.last_number());
        let most = self.last.caches.last().map_or(0, |(id, _)| *id as usize + 1);
        if self.tracks.len() < most {
            self.tracks.resize_with(most, Track::default);
        }
        for (id, _) in self.before.caches.iter().filter(|(id, _)| self.last.cache(*id).is_none()) {
            self.tracks[*id as usize].note(Held::default(), now, first);
        }
        for (id, cache) in &self.last.caches {
            let track = &mut self.tracks[*id as usize];
            let held = Held { live_bytes: cache.live_bytes, slab_bytes: cache.slab_bytes };
            track.note(held, now, first);
            if self.before.cache(*id).is_none_or(|then| then.slow != cache.slow) {
                track.used_at = now;
            }
        }
    }

    /// The samples, oldest first.
    pub fn samples(&self) -> &[Sample] {
        self.samples.as_slices().0
    }

    /// The figures of the caches at the last sample.
    pub fn caches(&self) -> impl Iterator<Item = (u32, &CachePoint)> {
        self.last.caches.iter().map(|(id, cache)| (*id, cache))
    }

    fn last_number(&self) -> u64 {
        self.forgotten + (self.samples.len() as u64).saturating_sub(1)
    }

    fn track(&self, id: u32) -> Option<&Track> {
        self.tracks.get(id as usize)
    }

    /// Whether the slow paths of a cache counted something new after the first sample.
    pub fn was_used(&self, id: u32) -> bool {
        self.track(id).is_some_and(|track| track.used_at > self.forgotten)
    }

    /// The lowest live bytes of a cache in the first `count` samples, and in the last `count`.
    pub fn lowest_live_bytes(&self, id: u32, count: usize) -> (u64, u64) {
        let (Some(track), Some(further)) = (self.track(id), (count as u64).checked_sub(1)) else {
            return (0, 0);
        };
        let (first, last) = (self.forgotten, self.last_number());
        (track.lowest(first, first + further), track.lowest(last.saturating_sub(further), last))
    }

    /// The rates of a cache between the last two samples; zero before the second.
    pub fn rates(&self, id: u32) -> Rates {
        let Some((now, then)) = self.last.cache(id).zip(self.before.cache(id)) else {
            return Rates::default();
        };
        let seconds = (self.last.sample.at_s - self.before.sample.at_s).max(1e-3);
        // A counter that fell is another cache's with the same id.
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Rates {
            net: (now.live_objects as f64 - then.live_objects as f64) / seconds,
            slow: rate(now.slow, then.slow),
            refills: rate(now.refills, then.refills),
            drains: rate(now.drains, then.drains),
        }
    }

    /// One figure of a cache at the last `count` samples, oldest first.
    pub fn series(&self, id: u32, count: usize, figure: fn(&Held) -> u64) -> Vec<u64> {
        let numbers = self.forgotten..self.forgotten + self.samples.len() as u64;
        let skipped = self.samples.len().saturating_sub(count);
        let held = |number| self.track(id).map(|track| track.at(number)).unwrap_or_default();
        numbers.skip(skipped).map(|number| figure(&held(number))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::Image;

    fn history() -> History {
        let mut snapshot = Image::sample().parse().expect("whole");
        let mut history = History::default();
        for sample in 0..3 {
            history.push(Point::of(&snapshot, Parts::default(), f64::from(sample) * 2.0));
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
    fn a_series_ends_at_the_last_sample() {
        let history = history();
        assert_eq!(history.series(0, 2, |held| held.live_bytes), [73_000 * 64, 73_100 * 64]);
        assert_eq!(history.series(0, 9, |held| held.live_bytes).len(), 3);
        assert_eq!(history.series(2, 9, |held| held.live_bytes), [0, 0, 0]);
    }

    #[test]
    fn a_long_history_forgets_its_beginning() {
        let mut history = History::default();
        for sample in 0..2 * MAX_POINTS {
            history.push(Point {
                sample: Sample { at_s: sample as f64, ..Sample::default() },
                ..Point::default()
            });
        }
        assert_eq!(history.samples().len(), MAX_POINTS);
        assert_eq!(history.samples()[0].at_s, MAX_POINTS as f64);
    }

    /// A cache's figures at a sample; none where it has no slab.
    fn staged(id: u32, sample: u64) -> Option<CachePoint> {
        let chance = (sample * 31 + u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let live_bytes = match id {
            // One that rests, one that always changes, one that changes now and then, one that
            // comes and goes.
            0 => 64,
            1 => 64 * chance,
            2 => 64 * (sample / 70),
            _ => {
                return (!chance.is_multiple_of(4))
                    .then_some(CachePoint { slab_bytes: 4096, ..CachePoint::default() });
            }
        };
        Some(CachePoint {
            live_bytes,
            slab_bytes: 4096 + live_bytes,
            slow: live_bytes,
            ..CachePoint::default()
        })
    }

    #[test]
    fn changes_tell_what_every_sample_found() {
        let mut history = History::default();
        let mut all = VecDeque::new();
        for sample in 0..2 * MAX_POINTS as u64 + 77 {
            let caches: Vec<_> = (0..4).filter_map(|id| Some((id, staged(id, sample)?))).collect();
            history.push(Point { caches, ..Point::default() });
            all.push_back(sample);
            if all.len() > MAX_POINTS {
                all.pop_front();
            }
            if sample % 50 != 3 && sample < 2 * MAX_POINTS as u64 {
                continue;
            }
            for id in 0..4 {
                let was = |sample: &u64| staged(id, *sample).unwrap_or_default();
                let slabs: Vec<u64> = all.iter().map(|sample| was(sample).slab_bytes).collect();
                assert_eq!(history.series(id, MAX_POINTS, |held| held.slab_bytes), slabs, "{id} {sample}");
                let live: Vec<u64> = all.iter().map(|sample| was(sample).live_bytes).collect();
                for count in [1, live.len() / 4, live.len()].into_iter().filter(|count| *count > 0) {
                    let lowest = |part: &[u64]| part.iter().copied().min().expect("some");
                    let expected = (lowest(&live[..count]), lowest(&live[live.len() - count..]));
                    assert_eq!(history.lowest_live_bytes(id, count), expected, "{id} {sample} {count}");
                }
            }
            let used = [0, 1, 2].map(|id| history.was_used(id));
            let changed = [0, 1, 2].map(|id| staged(id, all[0]) != staged(id, sample));
            assert_eq!(used, changed, "{sample}");
        }
        assert!(history.tracks[0].changes.len() == 1 && history.tracks[1].changes.len() <= MAX_POINTS + 1);
    }
}

//! What a page draws: a record as at most [`MAX_POINTS`] points, caches by name and size.

use std::collections::BTreeMap;
use std::io::{self, Read};

use crate::input::invalid;
use crate::record::counts::Counts;
use crate::record::format::{CacheFigures, Definition, Header, ProcessFigures, Reader};

/// Points of a chart; a longer record loses every second one until it fits.
pub const MAX_POINTS: usize = 720;
/// Events that the page lists.
const MAX_EVENTS: usize = 100;
/// Figures of one cache at one point; of a record with more, every second point is lost.
const MAX_CELLS: usize = 500_000;
/// Ten samples a second make so many in 11 days.
const MAX_SAMPLES: u64 = 10_000_000;

/// The figures at one instant.
#[derive(Clone, Debug)]
pub struct Point {
    pub at_ms: u64,
    pub process: ProcessFigures,
    pub caches: BTreeMap<Definition, CacheFigures>,
    /// Counters of all caches together, of those too that are gone.
    pub counts: Counts,
    /// Counters of the process began anew since the point before.
    pub is_new: bool,
}

/// A record, ready to be drawn.
pub struct Series {
    pub header: Header,
    pub points: Vec<Point>,
    pub samples: u64,
    /// What happened, with its time in milliseconds.
    pub events: Vec<(u64, String)>,
    pub is_cut: bool,
    /// The most that was resident at any sample, also at those that are not drawn.
    pub peak_rss_bytes: u64,
}

impl Point {
    /// The point of the frame that was read last.
    fn of(reader: &Reader<impl Read>, is_new: bool) -> Point {
        let frame = reader.frame();
        let mut caches: BTreeMap<Definition, CacheFigures> = BTreeMap::new();
        for (definition, figures) in frame.caches.values() {
            caches.entry(definition.clone()).or_default().sum(figures);
        }
        Point { at_ms: frame.at_ms, process: frame.process, caches, counts: reader.counts, is_new }
    }

    /// Bytes that the allocator holds: in use, and free with memory behind them.
    pub fn held(&self) -> u64 {
        self.process.used_bytes.saturating_add(self.process.dirty_bytes)
    }

    /// One figure, of all caches together.
    pub fn total(&self, figure: impl Fn(&CacheFigures) -> u64) -> u64 {
        self.caches.values().map(figure).fold(0, u64::saturating_add)
    }
}

/// Reads a record.
pub fn read(input: impl Read) -> io::Result<Series> {
    let mut reader = Reader::new(input)?;
    let mut points: Vec<Point> = Vec::new();
    let (mut events, mut samples, mut stride, mut peak) = (Vec::new(), 0_u64, 1, 0);
    let (mut is_new, mut is_last_drawn) = (false, false);
    while let Some(frame) = reader.next()? {
        if let Some(event) = &frame.event
            && events.len() < MAX_EVENTS
        {
            events.push((frame.at_ms, event.clone()));
        }
        peak = peak.max(frame.process.rss_bytes);
        is_new |= frame.event.is_some();
        is_last_drawn = samples.is_multiple_of(stride);
        samples += 1;
        if samples > MAX_SAMPLES {
            return Err(invalid(&format!("it has more than {MAX_SAMPLES} samples")));
        }
        if !is_last_drawn {
            continue;
        }
        points.push(Point::of(&reader, is_new));
        is_new = false;
        let cells: usize = points.iter().map(|point| point.caches.len()).sum();
        if points.len() > MAX_POINTS || (cells > MAX_CELLS && points.len() > 2) {
            (points, is_new) = halved(points);
            stride *= 2;
        }
    }
    // The end is the moment that the reader wants to see most.
    if samples > 0 && !is_last_drawn {
        points.push(Point::of(&reader, is_new));
    }
    if points.is_empty() {
        return Err(invalid("it holds no sample"));
    }
    let is_cut = reader.is_cut;
    Ok(Series { header: reader.header, points, samples, events, is_cut, peak_rss_bytes: peak })
}

/// Every second point. A break in the counters stays one; returns whether one is left for the point
/// that comes next.
fn halved(points: Vec<Point>) -> (Vec<Point>, bool) {
    let mut kept: Vec<Point> = Vec::with_capacity(points.len() / 2 + 1);
    let mut is_new = false;
    for (index, mut point) in points.into_iter().enumerate() {
        is_new |= point.is_new;
        if index.is_multiple_of(2) {
            point.is_new = is_new;
            is_new = false;
            kept.push(point);
        }
    }
    (kept, is_new)
}

impl Series {
    pub fn first(&self) -> &Point {
        &self.points[0]
    }

    pub fn last(&self) -> &Point {
        &self.points[self.points.len() - 1]
    }

    /// One figure at each point.
    pub fn values(&self, figure: impl Fn(&Point) -> u64) -> Vec<f64> {
        self.points.iter().map(|point| figure(point) as f64).collect()
    }

    /// What a counter gained in a second, at each point since the one before. It must not be a sum
    /// over the caches of a point, which falls when caches go: [`Point::counts`] has those.
    pub fn rates(&self, counter: impl Fn(&Point) -> u64) -> Vec<f64> {
        let pairs = self.points.windows(2);
        let rates = pairs.map(|pair| {
            let seconds = (pair[1].at_ms.saturating_sub(pair[0].at_ms) as f64 / 1000.0).max(1e-3);
            let (then, now) = (counter(&pair[0]), counter(&pair[1]));
            // A program that was just executed counts from zero.
            let gained = if pair[1].is_new && now < then { now } else { now.saturating_sub(then) };
            gained as f64 / seconds
        });
        std::iter::once(0.0).chain(rates).collect()
    }

    /// Caches, those first whose slabs took most at their peak.
    pub fn largest(&self) -> Vec<Definition> {
        let mut peaks: BTreeMap<&Definition, u64> = BTreeMap::new();
        for (definition, figures) in self.points.iter().flat_map(|point| &point.caches) {
            let peak = peaks.entry(definition).or_default();
            *peak = figures.slab_bytes.max(*peak);
        }
        let mut order: Vec<(&Definition, u64)> = peaks.into_iter().collect();
        order.sort_by_key(|&(_, peak)| std::cmp::Reverse(peak));
        order.into_iter().map(|(definition, _)| definition.clone()).collect()
    }

    /// Caches with their figures at the first and the last point, the largest growth first.
    pub fn growth(&self) -> Vec<(Definition, CacheFigures, CacheFigures)> {
        let at = |point: &Point, name: &Definition| point.caches.get(name).copied().unwrap_or_default();
        let mut rows: Vec<_> = self
            .largest()
            .into_iter()
            .map(|name| {
                let (first, last) = (at(self.first(), &name), at(self.last(), &name));
                (name, first, last)
            })
            .collect();
        let change = |then: u64, now: u64| i128::from(then) - i128::from(now);
        rows.sort_by_key(|(_, first, last)| {
            (change(first.slab_bytes, last.slab_bytes), change(first.live_bytes, last.live_bytes))
        });
        rows
    }
}

impl CacheFigures {
    fn sum(&mut self, other: &CacheFigures) {
        for (sum, figure) in [
            (&mut self.slab_bytes, other.slab_bytes),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.cached_bytes, other.cached_bytes),
            (&mut self.partial_bytes, other.partial_bytes),
            (&mut self.empty_bytes, other.empty_bytes),
            (&mut self.live_objects, other.live_objects),
            (&mut self.slow, other.slow),
            (&mut self.refills, other.refills),
            (&mut self.flushes, other.flushes),
            (&mut self.drains, other.drains),
            (&mut self.grows, other.grows),
            (&mut self.shrinks, other.shrinks),
            (&mut self.failures, other.failures),
        ] {
            *sum = sum.saturating_add(figure);
        }
    }

    /// Bytes of slabs that are neither objects in use nor free ones.
    pub fn slack_bytes(&self) -> u64 {
        [self.live_bytes, self.cached_bytes, self.partial_bytes, self.empty_bytes]
            .into_iter()
            .fold(self.slab_bytes, u64::saturating_sub)
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::record::format::tests::{frames, largest, record, record_of_rest};

    pub fn sample(count: u64) -> Series {
        read(&record(&frames(count))[..]).expect("a record")
    }

    #[test]
    fn a_long_record_keeps_its_ends_and_its_events() {
        let series = sample(3000);
        assert!(series.points.len() <= MAX_POINTS + 1, "{}", series.points.len());
        assert_eq!((series.first().at_ms, series.last().at_ms, series.samples), (0, 2_999_000, 3000));
        assert_eq!(series.events, [(3000, "process 7 became another program".to_owned())]);
        assert_eq!(series.points.iter().filter(|point| point.is_new).count(), 1);
        let rates = series.rates(|point| point.process.purged_bytes);
        assert!(rates[2..].iter().all(|&rate| rate == 65_536.0));
    }

    #[test]
    fn rates_of_caches_that_come_and_go_are_what_each_of_them_counted() {
        let rates = sample(12).rates(|point| point.counts.drains);
        // malloc-64 drains 9 sheaves a second; each session table 300 before it goes.
        let expected = (1..12).map(|n| if n % 4 == 1 { 309.0 } else { 9.0 });
        assert_eq!(rates[1..], expected.collect::<Vec<_>>());
    }

    #[test]
    fn the_mark_of_a_point_that_is_discarded_goes_to_the_next_one() {
        let mut points = sample(2).points;
        points[1].is_new = true;
        let (kept, is_new) = halved(points.clone());
        assert_eq!((kept.len(), kept[0].is_new, is_new), (1, false, true));
        points.push(points[0].clone());
        let (kept, is_new) = halved(points);
        assert_eq!((kept.len(), kept[1].is_new, is_new), (2, true, false));
    }

    #[test]
    fn samples_that_are_not_drawn_cost_nothing_for_each_cache() {
        let record = record_of_rest(largest(20_000), 50_000);
        let start = Instant::now();
        let series = read(&record[..]).expect("a record");
        assert_eq!((series.samples, series.last().at_ms), (50_001, 5_000_000));
        // A copy of the frame for each sample takes some minutes.
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }

    #[test]
    fn growth_comes_first() {
        let series = sample(12);
        let growth = series.growth();
        assert_eq!(growth[0].0.name, "malloc-64");
        assert_eq!((growth[0].1.live_objects, growth[0].2.live_objects), (25_600, 199 * 256));
        assert_eq!(series.largest().len(), 4, "one name with three sizes, and malloc-64");
    }

    #[test]
    fn a_record_without_a_sample_is_refused() {
        assert!(read(&record(&[])[..]).is_err());
    }
}

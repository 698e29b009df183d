//! Names the cause of a process's memory use, with reasons, or says that it is not known.
//!
//! Growth comes first: a part of the memory that rises through the whole time of watching, by more
//! than noise and more than the figures may lag by, is the cause. Without growth, a part that holds
//! much of the resident memory is. Everything else is *not known*: a wrong verdict costs an
//! operator more than none.

use serde::Serialize;

use super::history::{CachePoint, History, Sample};
use crate::text::bytes;

/// Growth is judged after so many seconds and samples.
pub const MIN_WATCHED_S: f64 = 60.0;
const MIN_SAMPLES: usize = 12;
/// Growth below this, or below this part of the resident memory, is noise.
const MIN_GROWTH_BYTES: u64 = 256 << 10;
const MIN_GROWTH_DIVISOR: u64 = 200;
/// A part stands out above this size and this share of the resident memory.
const MIN_SHARE_BYTES: u64 = 4 << 20;
const MIN_SHARE_PERCENT: u64 = 25;
/// A cache that filled and stays is a cause above this part of the resident size, and above the
/// size that stands out: figures of a small load lag by about as much.
const MIN_FILLED_DIVISOR: u64 = 10;
/// Of a growth at least this part must be certain: more than what the figures may lag by.
const MIN_CERTAIN_DIVISOR: u64 = 4;
/// A part that grows is the cause if it explains at least this part of the resident size's growth.
const MIN_EXPLAINED_DIVISOR: u64 = 4;
/// The time of watching is judged in so many parts.
const STRETCHES: usize = 4;

/// The cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The program holds more and more objects.
    Leak,
    /// Free objects share slabs with objects in use.
    Fragmentation,
    /// The allocator keeps free memory for reuse, or the program filled a cache and stopped.
    Cache,
    /// Memory that is not the allocator's.
    Elsewhere,
    NotKnown,
}

impl Cause {
    /// The word that stands on the line.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Leak => "leak",
            Cause::Fragmentation => "fragmentation",
            Cause::Cache => "cache",
            Cause::Elsewhere => "elsewhere",
            Cause::NotKnown => "not known",
        }
    }
}

/// A cause and the figures that speak for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub cause: Cause,
    pub reasons: Vec<String>,
}

/// How a figure moved while it was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trend {
    /// It rose in each stretch.
    Rises(u64),
    /// It rose, and hardly in the last stretch.
    LevelledOff(u64),
    Other,
}

/// Judges the samples. `name` returns the name of a cache.
pub fn verdict(history: &History, name: &dyn Fn(u32) -> String) -> Verdict {
    let samples = history.samples();
    let Some((first, last)) = samples.first().zip(samples.last()) else {
        return Verdict { cause: Cause::NotKnown, reasons: vec!["nothing was seen".to_owned()] };
    };
    let watched_s = last.at_s - first.at_s;
    let may_judge_growth = watched_s >= MIN_WATCHED_S && samples.len() >= MIN_SAMPLES;
    if may_judge_growth && let Some(found) = of_growth(history, name) {
        return found;
    }
    // A load that comes and goes leaves free memory for moments.
    let recent = &samples[samples.len() - (samples.len() / STRETCHES).max(1)..];
    let unsure = unsure_bytes(history);
    let is_same = |sample, cause| of_shares(sample, unsure).is_some_and(|then| then.cause == cause);
    if let Some(found) = of_shares(last, unsure)
        && recent.iter().all(|sample| is_same(sample, found.cause))
    {
        return found;
    }
    let reason = if may_judge_growth {
        format!("no part grew through {watched_s:.0} s, and none stands out")
    } else {
        format!("no part stands out; growth shows after {MIN_WATCHED_S:.0} s, seen {watched_s:.0} s")
    };
    Verdict { cause: Cause::NotKnown, reasons: vec![reason] }
}

/// The part that grew most, if its growth is steady.
fn of_growth(history: &History, name: &dyn Fn(u32) -> String) -> Option<Verdict> {
    let samples = history.samples();
    let (then, now) = (samples.first()?.parts.rss, samples.last()?.parts.rss);
    let noise = MIN_GROWTH_BYTES.max(now / MIN_GROWTH_DIVISOR);
    let of = |figure: fn(&Sample) -> u64| trend(samples, figure, noise);
    let explained = rise(samples, |sample| sample.parts.rss) / MIN_EXPLAINED_DIVISOR;
    let live = of_live(history, noise);
    // The resident size decides whether growth is real: fresh slabs and large objects are not
    // resident before the program touches them.
    let grows = [
        (Cause::Leak, "live objects", live),
        (Cause::Fragmentation, "free objects in partial slabs", of(|sample| sample.parts.partial)),
        (Cause::Cache, "free memory kept for reuse", of(kept)),
        (Cause::Elsewhere, "memory that is not the allocator's", of(|sample| sample.parts.not_ours)),
    ];
    let is_growth = |cause, growth: u64| match cause {
        Cause::Leak => is_certain(history, growth, noise),
        Cause::Elsewhere => true,
        // Free memory grows too where a program gives memory up, and the resident size sinks.
        _ => now >= then && is_enough(growth.saturating_sub(unsure_bytes(history)), growth, noise),
    };
    let rising = grows.into_iter().filter_map(|(cause, what, trend)| match trend {
        Trend::Rises(growth) if growth >= explained && is_growth(cause, growth) => {
            Some((growth, cause, what))
        }
        _ => None,
    });
    if let Some((growth, cause, what)) = rising.max_by_key(|(growth, ..)| *growth) {
        let mut reasons = vec![format!("{what} grew by {} in {:.0} s", bytes(growth), growth_s(samples))];
        if cause == Cause::Leak {
            reasons.extend(fastest(history, name));
            reasons.push("a cache that still fills looks the same".to_owned());
        }
        return Some(Verdict { cause, reasons });
    }
    if let Trend::LevelledOff(growth) = live
        && growth >= MIN_SHARE_BYTES.max(now / MIN_FILLED_DIVISOR)
        && is_certain(history, growth, noise)
    {
        let reason = format!("live objects grew by {}, then stayed: a cache that is full", bytes(growth));
        return Some(Verdict { cause: Cause::Cache, reasons: vec![reason] });
    }
    None
}

/// Whether enough of `growth`, that of the live objects, is more than what the figures of caches
/// may lag by. A load of a few objects that comes and goes in sheaves looks like growth now and
/// then.
fn is_certain(history: &History, growth: u64, noise: u64) -> bool {
    let samples = history.samples();
    // A rise cannot exceed what is live; there may be thousands of small caches.
    let caches = history.caches().filter(|(_, last)| last.live_bytes > last.unsure_bytes);
    let of_caches = caches.map(|(id, last)| {
        let (lowest, lowest_now) = history.lowest_live_bytes(id, samples.len() / STRETCHES);
        lowest_now.saturating_sub(lowest).saturating_sub(last.unsure_bytes)
    });
    let certain = of_caches.fold(rise(samples, |sample| sample.large_bytes), u64::saturating_add);
    is_enough(certain, growth, noise)
}

/// Whether the `certain` part of a growth is large enough to name it.
fn is_enough(certain: u64, growth: u64, noise: u64) -> bool {
    certain >= noise.max(growth / MIN_CERTAIN_DIVISOR)
}

/// How the live objects moved. The figures of a load that comes and goes in sheaves lag, and catch
/// up all at once. Where the lag explains why growth is not steady, the resident size tells.
fn of_live(history: &History, noise: u64) -> Trend {
    let samples = history.samples();
    let live = |sample: &Sample| sample.parts.live;
    let seen = trend(samples, live, noise);
    if seen != Trend::Other || !matches!(trend(samples, |sample| sample.parts.rss, noise), Trend::Rises(_)) {
        return seen;
    }
    let (lowest, growth) = (lows(samples, live), rise(samples, live));
    let steady = |stretch: usize| lowest[0] + growth / (STRETCHES as u64 - 1) * stretch as u64;
    let lag = unsure_bytes(history);
    if (0..STRETCHES).all(|stretch| lowest[stretch].abs_diff(steady(stretch)) <= lag) {
        Trend::Rises(growth)
    } else {
        seen
    }
}

/// The lowest value of a figure in each stretch, so that a load that comes and goes is no growth.
fn lows(samples: &[Sample], figure: fn(&Sample) -> u64) -> [u64; STRETCHES] {
    let stretch = samples.len() / STRETCHES;
    let recent = &samples[samples.len() - stretch * STRETCHES..];
    let lowest = |at: usize| recent[at * stretch..][..stretch].iter().map(figure).min().unwrap_or(0);
    std::array::from_fn(lowest)
}

/// The rise of a figure's lowest value from the first stretch to the last.
fn rise(samples: &[Sample], figure: fn(&Sample) -> u64) -> u64 {
    let lowest = lows(samples, figure);
    lowest[STRETCHES - 1].saturating_sub(lowest[0])
}

/// Bytes by which the figures may take live objects for free ones, in caches that were used while
/// the process was watched.
fn unsure_bytes(history: &History) -> u64 {
    let used = history.caches().filter(|(id, _)| history.was_used(*id));
    used.fold(0, |sum, (_, cache)| sum.saturating_add(cache.unsure_bytes))
}

/// The part that holds much of the resident memory now. Of the free objects `unsure` bytes may be
/// live.
fn of_shares(last: &Sample, unsure: u64) -> Option<Verdict> {
    let parts = &last.parts;
    let stands_out = |part: u64| {
        part >= MIN_SHARE_BYTES
            && u128::from(part) * 100 >= u128::from(parts.rss) * u128::from(MIN_SHARE_PERCENT)
    };
    // What is not resident cannot be in the resident size: it may belong to any of the allocator's
    // free parts.
    let absent = u64::try_from(parts.absent).unwrap_or(0);
    let certain = |part: u64| part.saturating_sub(absent).saturating_sub(unsure);
    let found = [
        (Cause::Fragmentation, parts.partial, certain(parts.partial), "free objects in partial slabs"),
        (Cause::Cache, kept(last), certain(kept(last)), "free memory kept for reuse"),
        (Cause::Elsewhere, parts.not_ours, parts.not_ours, "memory that is not the allocator's"),
    ]
    .into_iter()
    .filter(|(cause, _, certain, _)| {
        stands_out(*certain) && !(*cause == Cause::Elsewhere && parts.is_estimated)
    })
    .max_by_key(|(_, _, certain, _)| *certain);
    let (cause, part, _, what) = found?;
    // Every program has some memory elsewhere: its code and its stacks.
    if cause == Cause::Elsewhere && part < parts.rss / 2 {
        return None;
    }
    let percent = u128::from(part) * 100 / u128::from(parts.rss.max(1));
    let reason = format!("{what}: {}, {percent}% of the resident memory", bytes(part));
    Some(Verdict { cause, reasons: vec![reason] })
}

/// Free memory that the allocator keeps, and gives back under pressure.
fn kept(sample: &Sample) -> u64 {
    sample.parts.cached.saturating_add(sample.parts.empty).saturating_add(sample.parts.dirty)
}

/// How a figure moved, by its lowest value in each stretch.
fn trend(samples: &[Sample], figure: fn(&Sample) -> u64, noise: u64) -> Trend {
    let lowest = lows(samples, figure);
    let growth = rise(samples, figure);
    // Samples seldom find a load that comes and goes at its lowest, so that the lowest values of
    // stretches differ by chance.
    let last = samples[samples.len() - samples.len() / STRETCHES..].iter().map(figure);
    let swing = last.max().unwrap_or(0).saturating_sub(lowest[STRETCHES - 1]);
    if growth < noise.max(swing / 2) || lowest.windows(2).any(|pair| pair[1] < pair[0]) {
        return Trend::Other;
    }
    let mean_step = growth / (STRETCHES as u64 - 1);
    let last_step = lowest[STRETCHES - 1] - lowest[STRETCHES - 2];
    let slowest = lowest.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(0);
    // The last stretch moves by itself: what it holds must have stayed as well.
    if last_step < mean_step / 10 && swing < mean_step / 10 {
        Trend::LevelledOff(growth)
    } else if slowest >= mean_step / 4 {
        Trend::Rises(growth)
    } else {
        Trend::Other
    }
}

/// The time in which a figure that rises steadily grew as [`trend`] finds: from the first sample of
/// the first stretch, which has its lowest value, to the first sample of the last stretch.
fn growth_s(samples: &[Sample]) -> f64 {
    let stretch = samples.len() / STRETCHES;
    samples[samples.len() - stretch].at_s - samples[samples.len() - stretch * STRETCHES].at_s
}

/// The cache whose live objects grew most, by its lowest values in the first and the last stretch.
fn fastest(history: &History, name: &dyn Fn(u32) -> String) -> Option<String> {
    let stretch = history.samples().len() / STRETCHES;
    let growth = |(id, _): (u32, &CachePoint)| {
        let (then, now) = history.lowest_live_bytes(id, stretch);
        (now.saturating_sub(then), id)
    };
    let (growth, id) = history.caches().map(growth).max()?;
    (growth > 0).then(|| format!("most in {}: {}", name(id), bytes(growth)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Parts;
    use crate::top::history::{CachePoint, Point, Sample};

    const MIB: u64 = 1 << 20;

    /// Judges these samples.
    fn verdict_of(points: impl Iterator<Item = Point>) -> Verdict {
        let mut history = History::default();
        points.for_each(|point| history.push(point));
        verdict(&history, &|id| format!("cache {id}"))
    }

    fn point(sample: u64, parts: Parts, large_bytes: u64, caches: &[(u32, CachePoint)]) -> Point {
        Point { sample: Sample { at_s: sample as f64, parts, large_bytes }, caches: caches.to_vec() }
    }

    /// A process of 100 MiB, mostly live, watched for `samples` seconds.
    fn staged(samples: u64, change: impl Fn(u64, &mut Parts)) -> Cause {
        judged(samples, change).cause
    }

    fn judged(samples: u64, change: impl Fn(u64, &mut Parts)) -> Verdict {
        let staged = |sample: u64| {
            let mut parts = Parts { live: 80 * MIB, not_ours: 15 * MIB, ..Parts::default() };
            change(sample, &mut parts);
            parts.rss = parts.named().iter().map(|(_, bytes)| bytes).sum();
            let live_bytes = parts.live;
            let cache = CachePoint { live_bytes, ..CachePoint::default() };
            let still = CachePoint { live_bytes: MIB, ..CachePoint::default() };
            point(sample, parts, 0, &[(3, cache), (5, still)])
        };
        verdict_of((0..samples).map(staged))
    }

    #[test]
    fn a_fast_and_a_slow_leak() {
        let fast = judged(120, |sample, parts| parts.live += sample * MIB);
        assert_eq!(fast.cause, Cause::Leak);
        assert_eq!(fast.reasons[0], "live objects grew by 90 MiB in 90 s");
        assert_eq!(fast.reasons[1], "most in cache 3: 90 MiB");
        assert_eq!(staged(300, |sample, parts| parts.live += sample * 8 * 1024), Cause::Leak);
    }

    #[test]
    fn a_leak_below_a_load_that_comes_and_goes() {
        let cause = staged(240, |sample, parts| parts.live += sample * 100_000 + sample % 20 * MIB);
        assert_eq!(cause, Cause::Leak);
    }

    #[test]
    fn a_leak_below_a_load_whose_figures_lag() {
        let judged = |unsure_bytes: u64, leaks: bool| {
            let staged = |sample: u64| {
                let leak = if leaks { sample * MIB / 10 } else { sample.min(30) * MIB / 3 };
                // The program holds 8 MiB now and then. Its figures stand still for a stretch.
                let load = if sample / 30 == 2 { 8 * MIB } else { 0 };
                let (live, rss) = (80 * MIB + leak + load, 100 * MIB + leak);
                let of_leak = CachePoint { live_bytes: leak, ..CachePoint::default() };
                let of_load = CachePoint { live_bytes: load, unsure_bytes, slow: sample, ..of_leak };
                let parts = Parts { live, rss, ..Parts::default() };
                point(sample, parts, 0, &[(3, of_leak), (5, of_load)])
            };
            verdict_of((0..120).map(staged)).cause
        };
        assert_eq!(judged(9 * MIB, true), Cause::Leak);
        assert_eq!(judged(MIB, true), Cause::NotKnown);
        assert_eq!(judged(9 * MIB, false), Cause::NotKnown);
    }

    #[test]
    fn a_load_that_comes_and_goes_is_none() {
        assert_eq!(staged(240, |sample, parts| parts.live += sample % 20 * 4 * MIB), Cause::NotKnown);
    }

    #[test]
    fn a_load_whose_lows_the_samples_seldom_see_is_none() {
        for seed in 1..200 {
            // Levels by chance, of 16 MiB in all.
            let load = |sample: u64| (sample + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            assert_eq!(staged(80, |sample, parts| parts.live += load(sample)), Cause::NotKnown, "{seed}");
        }
    }

    #[test]
    fn growth_that_the_lag_of_figures_explains_is_none() {
        let judged = |unsure_bytes: u64, large: bool| {
            let staged = |sample: u64| {
                let live = 80 * MIB + sample * MIB / 10;
                let parts = Parts { live, rss: 100 * MIB + sample * MIB / 10, ..Parts::default() };
                let live_bytes = if large { 0 } else { live };
                let cache = CachePoint { live_bytes, unsure_bytes, slow: sample, ..CachePoint::default() };
                let large_bytes = if large { live } else { 0 };
                point(sample, parts, large_bytes, &[(3, cache)])
            };
            verdict_of((0..120).map(staged)).cause
        };
        assert_eq!(judged(9 * MIB, false), Cause::NotKnown);
        assert_eq!(judged(4 * MIB, false), Cause::Leak);
        assert_eq!(judged(9 * MIB, true), Cause::Leak);
        // Free memory, too.
        let kept = |unsure_bytes: u64| {
            let staged = |sample: u64| {
                let empty = sample * MIB / 10;
                let parts = Parts { empty, live: 80 * MIB, rss: 90 * MIB + empty, ..Parts::default() };
                let cache = CachePoint { unsure_bytes, slow: sample, ..CachePoint::default() };
                point(sample, parts, 0, &[(3, cache)])
            };
            verdict_of((0..120).map(staged)).cause
        };
        assert_eq!([8, 0].map(|unsure| kept(unsure * MIB)), [Cause::NotKnown, Cause::Cache]);
    }

    #[test]
    fn free_objects_that_the_lag_of_figures_explains_do_not_stand_out() {
        let judged = |unsure_bytes: u64, is_used: bool| {
            let staged = |sample: u64| {
                let parts = Parts { cached: 40 * MIB, live: 50 * MIB, rss: 90 * MIB, ..Parts::default() };
                let slow = if is_used { sample } else { 7 };
                let cache = CachePoint { unsure_bytes, slow, ..CachePoint::default() };
                point(sample, parts, 0, &[(3, cache)])
            };
            verdict_of((0..80).map(staged)).cause
        };
        assert_eq!(judged(30 * MIB, true), Cause::NotKnown);
        assert_eq!([judged(4 * MIB, true), judged(30 * MIB, false)], [Cause::Cache; 2]);
    }

    #[test]
    fn a_cache_that_fills_and_stays() {
        let fill = |sample: u64, parts: &mut Parts| parts.live += sample.min(100) * MIB;
        assert_eq!(staged(240, fill), Cause::Cache);
    }

    #[test]
    fn a_little_growth_that_stays_is_none() {
        let fill = |sample: u64, parts: &mut Parts| parts.live += sample.min(100) * 64 * 1024;
        assert_eq!(staged(240, fill), Cause::NotKnown);
    }

    #[test]
    fn free_memory_of_a_process_that_shrinks_is_no_growth() {
        let sinks = |sample: u64, parts: &mut Parts| {
            parts.live -= sample * 64 * 1024;
            parts.dirty += sample * 32 * 1024;
        };
        assert_eq!(staged(240, sinks), Cause::NotKnown);
    }

    #[test]
    fn a_start_that_is_too_young_to_judge() {
        let young = judged(30, |sample, parts| parts.live += sample * MIB);
        assert_eq!(young.cause, Cause::NotKnown);
        assert!(young.reasons[0].contains("seen 29 s"), "{:?}", young.reasons);
        assert_eq!(verdict_of(std::iter::empty()).cause, Cause::NotKnown);
    }

    #[test]
    fn holes_in_slabs() {
        assert_eq!(staged(2, |_, parts| parts.partial = 60 * MIB), Cause::Fragmentation);
        assert_eq!(staged(120, |sample, parts| parts.partial += sample * MIB), Cause::Fragmentation);
        // Pages of the holes that were never touched, or that went back.
        let absent = |_, parts: &mut Parts| (parts.partial, parts.absent) = (60 * MIB, 55 << 20);
        assert_eq!(staged(2, absent), Cause::NotKnown);
    }

    #[test]
    fn free_memory_between_two_waves_is_none() {
        let waves = |sample: u64, parts: &mut Parts| {
            (parts.live, parts.empty) = if sample % 4 == 3 { (9 * MIB, 40 * MIB) } else { (49 * MIB, 0) };
        };
        assert_eq!(staged(80, waves), Cause::NotKnown);
    }

    #[test]
    fn free_memory_that_is_kept() {
        let kept =
            |_, parts: &mut Parts| (parts.live, parts.dirty, parts.empty) = (9 * MIB, 40 * MIB, 9 * MIB);
        assert_eq!(staged(2, kept), Cause::Cache);
    }

    #[test]
    fn mappings_and_stacks_beside_the_allocator() {
        assert_eq!(staged(120, |sample, parts| parts.not_ours += sample * MIB), Cause::Elsewhere);
        let big = |_, parts: &mut Parts| (parts.live, parts.not_ours) = (9 * MIB, 90 * MIB);
        assert_eq!(staged(2, big), Cause::Elsewhere);
        let guessed = |sample, parts: &mut Parts| {
            big(sample, parts);
            parts.is_estimated = true;
        };
        assert_eq!(staged(2, guessed), Cause::NotKnown);
    }

    #[test]
    fn a_part_that_explains_little_of_the_growth_is_none() {
        let grows = |elsewhere: u64| {
            staged(120, |sample, parts| {
                parts.slack += sample * MIB;
                parts.not_ours += sample * elsewhere;
            })
        };
        assert_eq!([grows(MIB / 8), grows(MIB)], [Cause::NotKnown, Cause::Elsewhere]);
    }

    #[test]
    fn an_idle_process_and_a_small_one() {
        assert_eq!(staged(300, |_, _| {}), Cause::NotKnown);
        let small = |_, parts: &mut Parts| (parts.live, parts.not_ours, parts.partial) = (MIB, 2 * MIB, MIB);
        assert_eq!(staged(300, small), Cause::NotKnown);
        assert_eq!(staged(300, |sample, parts| parts.live += sample % 3 * 4096), Cause::NotKnown);
    }

    #[test]
    fn growth_that_turns_is_not_judged() {
        let turns = |sample: u64, parts: &mut Parts| parts.live += sample.min(240 - sample) * MIB;
        assert_eq!(staged(240, turns), Cause::NotKnown);
    }
}

//! Suite `latency`: the duration of single calls of malloc and free, from the median to the
//! slowest.
//!
//! All contestants of a row make the same calls in segments, in turn (rounds/latency.rs). Each has
//! a histogram for malloc and one for free. A row's value is the 99.99th percentile of the worse of
//! the two calls; the other percentiles stand beside it. One call in ten thousand is slower than
//! the 99.99th percentile. A busy machine's timer interrupts about as often, so the lane that
//! allocates nothing shows the machine's part.

use super::{Context, RowPlan, Suite, Tables, everyone};
use crate::asm::ticks;
use crate::clock::Clock;
use crate::lineup::{MALLOC, NOTHING, caches};
use crate::measure::{Lane, Method, Sample};
use crate::results::{Role, Row};
use crate::rounds::Entry;
use crate::rounds::latency::{Course, Pattern, Plan};
use crate::stop;
use crate::turns;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// "The peak of latency p99.99 no worse than the best peer's."
const TARGET: f64 = 1.0;

/// The reported percentiles, by name and as a fraction; and the judged one.
const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999), ("max", 1.0)];
const JUDGED: f64 = 0.9999;

/// Pattern, objects live at once, smallest and largest size.
const ROWS: [(Pattern, usize, usize, usize); 4] = [
    (Pattern::Steady, 1_000, 64, 64),
    (Pattern::Steady, 1_000, 16, 1_024),
    (Pattern::Waves, 100_000, 64, 64),
    (Pattern::Waves, 100_000, 16, 1_024),
];

pub const LATENCY: Suite = Suite {
    tables: Tables::Lines,
    notes: |_| {
        vec!["a figure is the p99.99 of the worse call, with two readings of the counter in it".into()]
    },
    ..Suite::new(
        "latency",
        "single calls of malloc and free, p50 to p99.99 and maximum: a steady live set, and waves",
        |context| ROWS.iter().map(|&row| plan(context, row)).collect(),
    )
};

fn plan(
    context: &Context,
    (pattern, live, smallest_bytes, largest_bytes): (Pattern, usize, usize, usize),
) -> RowPlan {
    // At 99.99 %, a million calls leave a hundred above it.
    let (segments, runs) = context.pick((3, 1), (100, 1), (500, 3));
    // Calls of a segment that are recorded, and those before them.
    let (calls, warm_calls) = context.pick((2_000, 100), (20_000, 1_000), (20_000, 1_000));
    let height = context.pick(live.min(1_000), live, live);
    let plan = Plan { pattern, live: height, smallest_bytes, largest_bytes, calls, warm_calls };
    let one_size = smallest_bytes == largest_bytes;
    let mut entries: Vec<(Entry, Role)> = everyone(MALLOC).chain([(NOTHING, Role::Floor)]).collect();
    if let (true, Some([cache, _])) = (one_size, caches(largest_bytes)) {
        entries.insert(1, (cache, Role::Ours));
    }
    let together = Rc::new(Together {
        entries: entries.iter().map(|entry| entry.0).collect(),
        plan,
        segments,
        samples: RefCell::new(entries.iter().map(|_| VecDeque::new()).collect()),
    });
    let lanes = entries
        .iter()
        .enumerate()
        .map(|(at, &(entry, role))| {
            let together = Rc::clone(&together);
            Lane::of_runs(entry.name, role, move || Ok(together.sample(at)))
        })
        .collect();
    let (name, words) = match pattern {
        Pattern::Steady => ("steady", format!("{live} live, one replaced at random")),
        Pattern::Waves => ("waves", format!("up to {live} live, then all freed")),
    };
    let size =
        if one_size { format!("{largest_bytes}") } else { format!("{smallest_bytes}-{largest_bytes}") };
    let row = Row::new(
        format!("latency/{name}/{size}"),
        "single calls of malloc and of free",
        format!("{name}, {size} B: {words}"),
    );
    let size_bytes = if one_size { largest_bytes } else { 0 };
    Row { size_bytes, live, target: Some(TARGET), ..row }.by(Method::Runs(runs, lanes))
}

/// The contestants of a row. The first lane that runs measures all of them, in turn, segment by
/// segment; the other lanes take their samples from it.
struct Together {
    entries: Vec<Entry>,
    plan: Plan,
    segments: usize,
    samples: RefCell<Vec<VecDeque<Sample>>>,
}

impl Together {
    fn sample(&self, at: usize) -> Sample {
        if let Some(sample) = self.samples.borrow_mut()[at].pop_front() {
            return sample;
        }
        let taken = self.measure();
        let mut samples = self.samples.borrow_mut();
        samples.iter_mut().zip(taken).for_each(|(samples, sample)| samples.push_back(sample));
        samples[at].pop_front().expect("every contestant has a sample of the run just made")
    }

    fn measure(&self) -> Vec<Sample> {
        let ns_per_tick = Clock::calibrate().ns_per_tick;
        let step_ns = counter_step() as f64 * ns_per_tick;
        let mut courses: Vec<Course> =
            self.entries.iter().map(|entry| Course::start(entry, self.plan)).collect();
        for segment in 0..self.segments {
            // An interrupted row is not reported.
            if stop::asked() {
                break;
            }
            for turn in 0..self.entries.len() {
                let at = turns::contestant(segment, turn, self.entries.len());
                courses[at].segment(&self.entries[at]);
            }
        }
        courses
            .iter_mut()
            .zip(&self.entries)
            .map(|(course, entry)| {
                course.finish(entry);
                sample(course, ns_per_tick, step_ns)
            })
            .collect()
    }
}

/// The step of the counter in ticks. Many counters move in steps of a slower clock; that step is
/// the resolution of all figures here.
fn counter_step() -> u64 {
    let first = ticks();
    let apart = (0..1_000).map(|_| ticks() - first);
    apart.fold(0, |mut a, mut b| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    })
}

fn sample(course: &Course, ns_per_tick: f64, step_ns: f64) -> Sample {
    let ns = |histogram: &Histogram<u64>, q: f64| histogram.value_at_quantile(q) as f64 * ns_per_tick;
    let mut sample = Sample::of(ns(&course.mallocs, JUDGED).max(ns(&course.frees, JUDGED)));
    sample.extra.insert("counter_step_ns".into(), step_ns);
    for (call, histogram) in [("malloc", &course.mallocs), ("free", &course.frees)] {
        for (name, q) in QUANTILES {
            sample.extra.insert(format!("{call}_{name}_ns"), ns(histogram, q));
        }
        // By the number of nines: 1 is 90 %, 4 is 99.99 %.
        let points = (0..=20).map(|quarters| f64::from(quarters) / 4.0);
        let points = points.map(|nines| [nines, ns(histogram, 1.0 - 10_f64.powf(-nines))]).collect();
        sample.series.insert(format!("{call}_ns_by_nines"), points);
    }
    sample
}

//! Suite `latency`: how long single calls of malloc and free take, from the usual one to the slowest.
//!
//! All contestants of a row go through the same calls in segments, in turn (rounds/latency.rs), and each has
//! one histogram for malloc and one for free over all its segments. A row's value is the 99.99th percentile of
//! the worse of the two calls; the others stand beside it. With 99.99 % one call in ten thousand is slower,
//! which on a busy machine is about as often as its timer interrupts: what the lane that allocates nothing
//! shows there is the machine, not an allocator.

use super::{Context, RowPlan, Suite, run_lane};
use crate::asm::ticks;
use crate::child;
use crate::clock::Clock;
use crate::contestants::{self, Entry, none::NoAllocator, uslab_cache, uslab_malloc};
use crate::measure::{Method, Sample};
use crate::results::{Figure, Role, Row, Run};
use crate::rounds::latency::{Course, Pattern, Plan};
use crate::table::{self, Grid};
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write;
use std::rc::Rc;

/// "The peak of latency p99.99 no worse than the best peer's."
const TARGET: f64 = 1.0;

/// The percentiles that are told, as part of names and as a part of one. The last but the maximum is judged.
const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];
const JUDGED: (&str, f64) = QUANTILES[4];

/// Pattern, objects live at once, smallest and largest size.
const ROWS: [(Pattern, usize, usize, usize); 4] = [
    (Pattern::Steady, 1_000, 64, 64),
    (Pattern::Steady, 1_000, 16, 1_024),
    (Pattern::Waves, 100_000, 64, 64),
    (Pattern::Waves, 100_000, 16, 1_024),
];

/// Calls of a segment that are recorded, and those before them.
const SEGMENT: (usize, usize) = (20_000, 1_000);

/// How far the counter moves at once.
const STEP: &str = "counter_step_ns";

const GROUP: &str = "single calls of malloc and of free";

pub struct Latency;

impl Suite for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn summary(&self) -> &'static str {
        "single calls of malloc and free, p50 to p99.99 and maximum: a steady live set, and waves"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        ROWS.iter().map(|&row| plan(context, row)).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        run.rows.iter().try_for_each(|row| render(row, &run.mode, out))?;
        table::skipped(&run.rows, out)
    }
}

fn plan(
    context: &Context,
    (pattern, live, smallest_bytes, largest_bytes): (Pattern, usize, usize, usize),
) -> RowPlan {
    // At 99.99 %, a million calls leave a hundred above it.
    let (segments, runs) = match (context.options.check, context.quick()) {
        (true, _) => (3, 1),
        (_, true) => (100, 1),
        _ => (500, 3),
    };
    let (calls, warm_calls) = if context.options.check { (2_000, 100) } else { SEGMENT };
    let height = if context.options.check { live.min(1_000) } else { live };
    let plan = Plan { pattern, live: height, smallest_bytes, largest_bytes, calls, warm_calls };
    let mut entries = vec![(uslab_malloc::CALLED, Role::Subject)];
    let one_size = smallest_bytes == largest_bytes;
    if let (true, Some([cache, _])) = (one_size, uslab_cache::entries(largest_bytes)) {
        entries.push((cache, Role::Ours));
    }
    entries.extend(contestants::peers().iter().map(|&peer| (peer, Role::Peer)));
    entries.push((Entry::of::<NoAllocator>(), Role::Floor));
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
            run_lane(entry.name, role, move || Ok(together.sample(at)))
        })
        .collect();
    let (name, words) = match pattern {
        Pattern::Steady => ("steady", format!("{live} live, one replaced at random")),
        Pattern::Waves => ("waves", format!("up to {live} live, then all freed")),
    };
    let size =
        if one_size { format!("{largest_bytes}") } else { format!("{smallest_bytes}-{largest_bytes}") };
    RowPlan {
        size_bytes: if one_size { largest_bytes } else { 0 },
        live,
        target: Some(TARGET),
        ..RowPlan::new(
            format!("latency/{name}/{size}"),
            GROUP,
            format!("{name}, {size} B: {words}"),
            Method::Runs(runs, lanes),
        )
    }
}

/// The contestants of a row. A run of the first of them that is asked runs them all, in turn, segment by
/// segment; the others find their sample there.
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
            // A row that is cut short is not told.
            if child::stop_asked() {
                break;
            }
            for turn in 0..self.entries.len() {
                let at = (segment + turn) % self.entries.len();
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

/// How many ticks the counter moves at once: many count in steps of a slower clock, which is the resolution of
/// all figures here.
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
    let mut sample = Sample::of(ns(&course.mallocs, JUDGED.1).max(ns(&course.frees, JUDGED.1)));
    sample.extra.insert(STEP.into(), step_ns);
    for (call, histogram) in [("malloc", &course.mallocs), ("free", &course.frees)] {
        for (name, q) in QUANTILES {
            sample.extra.insert(extra_name(call, name), ns(histogram, q));
        }
        // By the number of nines: 1 is 90 %, 4 is 99.99 %.
        let points = (0..=20).map(|quarters| f64::from(quarters) / 4.0);
        let points = points.map(|nines| [nines, ns(histogram, 1.0 - 10_f64.powf(-nines))]).collect();
        sample.series.insert(format!("{call}_ns_by_nines"), points);
    }
    sample
}

/// "malloc_p99_99_ns".
fn extra_name(call: &str, quantile: &str) -> String {
    format!("{call}_{}_ns", quantile.replace('.', "_"))
}

fn render(row: &Row, mode: &str, out: &mut dyn Write) -> std::fmt::Result {
    let step = row.figures.first().and_then(|figure| figure.extra.get(STEP));
    let steps =
        step.filter(|&&ns| ns >= 1.0).map_or(String::new(), |ns| format!(", in its steps of {ns:.0}"));
    writeln!(out, "\n{} · uslab in {mode} mode · ns, with two readings of the counter{steps}", row.title)?;
    let mut header = vec!["".to_owned()];
    for call in ["malloc", "free"] {
        let first = |at: usize| if at == 0 { format!("{call} ") } else { String::new() };
        header.extend(QUANTILES.iter().enumerate().map(|(at, (name, _))| format!("{}{name}", first(at))));
    }
    header.extend(["worse p99.99".into(), "to the best".into(), String::new()]);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut grid = Grid::new(&header);
    for figure in &row.figures {
        let mut cells = vec![figure.contestant.clone()];
        for call in ["malloc", "free"] {
            let cell = |name| figure.extra.get(&extra_name(call, name)).copied();
            cells.extend(QUANTILES.iter().map(|(name, _)| whole(cell(name))));
        }
        cells.extend([whole(Some(figure.value.min)), table::ratio(figure.ratio), verdict(row, figure)]);
        grid.row(cells);
    }
    grid.write(out)
}

fn verdict(row: &Row, figure: &Figure) -> String {
    match figure.role {
        Role::Subject => format!("{} {}", table::target(row.target), table::mark(row.verdict)),
        Role::Peer if row.best_peer.as_ref() == Some(&figure.contestant) => "*".into(),
        _ => String::new(),
    }
}

/// Nanoseconds without a point: what is compared here differs by more.
fn whole(ns: Option<f64>) -> String {
    ns.map_or("–".into(), |ns| format!("{ns:.0}"))
}

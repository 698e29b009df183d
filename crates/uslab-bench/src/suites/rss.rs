//! Suite `rss`: how much memory a load takes, and how much of it the allocator has returned to the
//! kernel after an idle time.
//!
//! Every contestant runs each load in a process of its own (child.rs, rounds/memory.rs); the rows
//! of a load are readings of the same processes. A value is the resident set above what the process
//! had before the contestant's first call. Most of the time these processes sleep, so several run
//! at once, as many as memory allows. One load has objects of many sizes, of which a random 90 % or
//! all are freed. The second has small objects of one size, where uslab's typed cache takes part.
//! The third frees all but every twentieth of 400 000 objects of 500 bytes.
//!
//! The requirements are absolute, not ratios to a peer, and stand beside the figures of every
//! contestant:
//!
//! | reading | at most |
//! |---|---|
//! | 1 GiB of one size, all live | 1.03 times the live bytes |
//! | all freed, after the idle time | 4 MiB |
//! | a random 90 % freed, after the idle time | 1.1 times the pages that hold a live object |
//! | every twentieth kept, after two seconds | 95 MB |
//!
//! After a random 90 % of small objects are freed, most pages still hold one, and an allocator that
//! moves no objects cannot return such pages. How many they are follows from where it put them.

use super::{Context, RowPlan, Suite};
use crate::child;
use crate::lineup::{MALLOC, caches, peers};
use crate::measure::{Errand, Lane, Method, Sample};
use crate::results::{LIMIT_BYTES, Role, Row, Unit};
use crate::rounds::memory::{ASKED, FREED, IDLE, LEFT, LEFT_PAGES, LIVE, Load};
use crate::task::Task;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

/// Sizes of the mixed load, and that of the load of one size.
const MIXED: (usize, usize) = (16, 1024);
const ONE_SIZE: usize = 64;

/// The load of which every twentieth object stays: objects, their size, the percentage that is
/// freed, and the idle time.
const SPACED: (usize, usize, usize, u64) = (400_000, 500, 95, 2_000);

/// Limits on resident memory; see above. The first is for a load of that size: in a small one the
/// allocator's own tables and sheaves show.
const MAX_LIVE_RATIO: f64 = 1.03;
const MAX_LIVE_FROM_BYTES: usize = 1 << 30;
const MAX_IDLE_BYTES: f64 = (4 << 20) as f64;
const MAX_PAGES_RATIO: f64 = 1.1;
const MAX_SPACED_BYTES: f64 = 95e6;

/// The least figure, since a process may return more than the load took.
const MIN_BYTES: f64 = 4096.0;

/// Upper bound on the live bytes of all loads that run at once, and the fraction of the machine's
/// memory that they may take.
const AT_ONCE_BYTES: usize = 4 << 30;
const PART_OF_MEMORY: usize = 4;

/// A child's time limit, besides its idle time.
const PATIENCE: Duration = Duration::from_secs(120);

const MIXED_GROUP: &str = "memory of objects of 16 to 1024 B";
const ONE_SIZE_GROUP: &str = "memory of objects of 64 B, typed cache";
const SPACED_GROUP: &str = "memory of objects of 500 B, all but every twentieth freed";
const FLOOR: &str = "the objects alone";

pub const RSS: Suite = Suite {
    notes: |_| vec![format!("90 % freed: the limit is {MAX_PAGES_RATIO} × the pages with a live object")],
    ..Suite::new(
        "rss",
        "resident memory of a load: live, after freeing 90 % at random or all but every twentieth, \
         and after 2 to 10 s without any call",
        rows,
    )
};

fn rows(context: &Context) -> Vec<RowPlan> {
    const MIB: usize = 1 << 20;
    let (mixed_bytes, one_size_bytes, idle_ms, runs) = context.pick(
        (4 * MIB, 4 * MIB, 100, 1),
        (64 * MIB, 64 * MIB, 2_000, 1),
        (256 * MIB, 1024 * MIB, 10_000, 3),
    );
    let load = |live_bytes, (smallest_bytes, largest_bytes)| Load {
        live_bytes,
        smallest_bytes,
        largest_bytes,
        freed_percent: 100,
        evenly: false,
        idle_ms,
    };
    // Three seconds of ten: by then a sleeping program should have returned the memory that it
    // freed.
    let soon_ms = idle_ms * 3 / 10;
    let one_size_load = load(one_size_bytes, (ONE_SIZE, ONE_SIZE));
    let (mixed, all, one_size, soon) = (
        Scenario::new(Load { freed_percent: 90, ..load(mixed_bytes, MIXED) }),
        Scenario::new(load(mixed_bytes, MIXED)),
        Scenario::new(one_size_load.clone()),
        Scenario::new(Load { idle_ms: soon_ms, ..one_size_load }),
    );
    let (objects, size, freed_percent, spaced_ms) = SPACED;
    let (objects, spaced_ms) = context.pick((objects / 100, 100), (objects, spaced_ms), (objects, spaced_ms));
    let spaced = Scenario::new(Load {
        freed_percent,
        evenly: true,
        idle_ms: spaced_ms,
        ..load(objects * size, (size, size))
    });
    let after = |freed: &str, ms| format!("{freed} freed, {} idle", seconds(ms));
    let idle = |freed: &str| after(freed, idle_ms);
    vec![
        mixed.row(runs, "mixed/live", mib(mixed_bytes), Reading::Live),
        mixed.row(runs, "mixed/freed90", "a random 90 % freed", Reading::Freed),
        mixed.row(runs, "mixed/idle90", idle("90 %"), Reading::Idle),
        all.row(runs, "mixed/idle100", idle("all"), Reading::Idle),
        one_size.row(runs, "cache/64/live", mib(one_size_bytes), Reading::Live),
        soon.row(runs, "cache/64/soon100", after("all", soon_ms), Reading::Idle),
        one_size.row(runs, "cache/64/idle100", idle("all"), Reading::Idle),
        spaced.row(runs, "spaced/500/live", mib(objects * size), Reading::Live),
        spaced.row(runs, "spaced/500/idle95", after("95 %", spaced_ms), Reading::Idle),
    ]
}

/// The memory for loads that run at once; 0 where the kernel does not report its memory.
fn room_bytes() -> usize {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    AT_ONCE_BYTES.min(total.unwrap_or(0) * 1024 / PART_OF_MEMORY)
}

fn mib(bytes: usize) -> String {
    format!("{} MiB live", bytes >> 20)
}

fn seconds(ms: u64) -> String {
    format!("{} s", ms as f64 / 1e3)
}

/// The reading of a child that a row shows.
#[derive(Clone, Copy, PartialEq)]
enum Reading {
    Live,
    Freed,
    Idle,
}

impl Reading {
    /// The names of the reading, and of the bytes that are live then.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Reading::Live => (LIVE, ASKED),
            Reading::Freed => (FREED, LEFT),
            Reading::Idle => (IDLE, LEFT),
        }
    }
}

/// A load, and the samples of its children so far, by contestant.
struct Scenario {
    load: Load,
    contestants: Vec<&'static str>,
    /// A map a run.
    runs: RefCell<Vec<BTreeMap<&'static str, Result<Sample, String>>>>,
}

impl Scenario {
    fn new(load: Load) -> Rc<Self> {
        let caches = caches(load.largest_bytes).filter(|_| load.smallest_bytes == load.largest_bytes);
        let ours = caches.map(|[inlined, _]| inlined).into_iter().chain([MALLOC]);
        let contestants = ours.chain(peers().iter().copied()).map(|entry| entry.name).collect();
        Rc::new(Self { load, contestants, runs: RefCell::default() })
    }

    /// The sample of a contestant's run of that number. The first call runs all contestants.
    fn sample(&self, contestant: &'static str, run: usize) -> Result<Sample, String> {
        if self.runs.borrow().len() <= run {
            let taken = self.run_all();
            self.runs.borrow_mut().push(taken);
        }
        self.runs.borrow()[run].get(contestant).cloned().expect("every contestant of the scenario ran")
    }

    fn run_all(&self) -> BTreeMap<&'static str, Result<Sample, String>> {
        let limit = PATIENCE + Duration::from_millis(self.load.idle_ms);
        let at_once = (room_bytes() / self.load.live_bytes).clamp(1, self.contestants.len());
        let load = &self.load;
        let one = move |contestant: &'static str| {
            let task = Task::Rss { contestant: contestant.into(), load: load.clone() };
            (contestant, child::run(&task, limit))
        };
        let several = |few: &[&'static str]| {
            thread::scope(|scope| {
                let waits: Vec<_> = few.iter().map(|&name| scope.spawn(move || one(name))).collect();
                waits.into_iter().map(|wait| wait.join().expect("waiting does not fail")).collect::<Vec<_>>()
            })
        };
        self.contestants.chunks(at_once).flat_map(several).collect()
    }

    fn is_one_size(&self) -> bool {
        self.load.smallest_bytes == self.load.largest_bytes
    }

    fn group(&self) -> &'static str {
        match (self.load.evenly, self.is_one_size()) {
            (true, _) => SPACED_GROUP,
            (false, true) => ONE_SIZE_GROUP,
            (false, false) => MIXED_GROUP,
        }
    }

    /// The limit on a reading, where there is one.
    fn limit_bytes(&self, reading: Reading, sample: &Sample) -> Option<f64> {
        match reading {
            Reading::Live if self.is_one_size() && self.load.live_bytes >= MAX_LIVE_FROM_BYTES => {
                Some(MAX_LIVE_RATIO * sample.extra[ASKED])
            }
            Reading::Idle if self.load.evenly => Some(MAX_SPACED_BYTES),
            Reading::Idle if self.load.freed_percent < 100 => {
                Some(MAX_PAGES_RATIO * sample.extra[LEFT_PAGES])
            }
            Reading::Idle => Some(MAX_IDLE_BYTES),
            Reading::Live | Reading::Freed => None,
        }
    }

    fn row(self: &Rc<Self>, runs: usize, id: &str, title: impl Into<String>, reading: Reading) -> RowPlan {
        let role = |name: &str| match name {
            _ if peers().iter().any(|peer| peer.name == name) => Role::Peer,
            _ if name == self.contestants[0] => Role::Subject,
            _ => Role::Ours,
        };
        let lane = |&name: &&'static str| self.lane(name, role(name), reading);
        let mut lanes: Vec<Lane<Errand>> = self.contestants.iter().map(lane).collect();
        let left = reading == Reading::Live || self.load.freed_percent < 100;
        lanes.extend(left.then(|| self.objects_alone(reading)));
        let size_bytes = if self.is_one_size() { self.load.largest_bytes } else { 0 };
        let live = self.load.live_bytes.checked_div(size_bytes).unwrap_or(0);
        let row = Row::new(format!("rss/{id}"), self.group(), title);
        Row { size_bytes, live, unit: Unit::Bytes, ..row }.by(Method::Runs(runs, lanes))
    }

    fn lane(self: &Rc<Self>, contestant: &'static str, role: Role, reading: Reading) -> Lane<Errand> {
        let (scenario, mut run) = (Rc::clone(self), 0);
        Lane::of_runs(contestant, role, move || {
            let mut sample = scenario.sample(contestant, run)?;
            run += 1;
            sample.value = sample.extra[reading.names().0].max(MIN_BYTES);
            let limit = scenario.limit_bytes(reading, &sample);
            sample.extra.extend(limit.map(|limit| (LIMIT_BYTES.to_owned(), limit)));
            if reading != Reading::Idle {
                // One row of a load has the course.
                sample.series.clear();
            }
            Ok(sample)
        })
    }

    /// The bytes of the row's objects: a lower bound for every allocator.
    fn objects_alone(self: &Rc<Self>, reading: Reading) -> Lane<Errand> {
        let (scenario, mut run) = (Rc::clone(self), 0);
        Lane::of_runs(FLOOR, Role::Floor, move || {
            let sample = scenario.sample(scenario.contestants[0], run)?;
            run += 1;
            Ok(Sample::of(sample.extra[reading.names().1]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reading_has_the_limit_of_its_load() {
        let figures = [(ASKED, 1000.0), (LEFT_PAGES, 100.0)];
        let sample =
            Sample { extra: figures.map(|(name, value)| (name.to_owned(), value)).into(), ..Sample::of(0.0) };
        let limit = |reading, live_bytes, (smallest_bytes, largest_bytes), freed_percent, evenly| {
            let load = Load { live_bytes, smallest_bytes, largest_bytes, freed_percent, evenly, idle_ms: 0 };
            Scenario::new(load).limit_bytes(reading, &sample)
        };
        let one_size = (ONE_SIZE, ONE_SIZE);
        assert_eq!(limit(Reading::Live, 1 << 30, one_size, 100, false), Some(1030.0));
        assert_eq!(limit(Reading::Live, 1 << 26, one_size, 100, false), None);
        assert_eq!(limit(Reading::Live, 1 << 30, MIXED, 90, false), None);
        assert_eq!(limit(Reading::Freed, 1 << 30, MIXED, 90, false), None);
        assert_eq!(limit(Reading::Idle, 1 << 30, one_size, 100, false), Some(MAX_IDLE_BYTES));
        assert_eq!(limit(Reading::Idle, 1 << 30, MIXED, 90, false), Some(MAX_PAGES_RATIO * 100.0));
        assert_eq!(limit(Reading::Idle, 1 << 28, (500, 500), 95, true), Some(MAX_SPACED_BYTES));
    }
}

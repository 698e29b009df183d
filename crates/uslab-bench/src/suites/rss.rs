//! Suite `rss`: how much memory a load takes, and how much of it the allocator has returned to the
//! kernel after an idle time.
//!
//! Every contestant runs each load in a process of its own (child.rs, rounds/memory.rs); the rows
//! of a load are readings of the same processes. A value is the resident set above what the process
//! had before the contestant's first call. Most of the time these processes sleep, so several run
//! at once, as many as memory allows. One load has objects of many sizes, of which a random 90 % or
//! all are freed. The other has small objects of one size, where uslab's typed cache takes part.
//!
//! The requirement is absolute, not a ratio to a peer: after the idle time at most 1.1 times the
//! live bytes, and 4 MiB. It stands beside the figures of every contestant, and is judged where an
//! allocator can meet it. After a random 90 % of small objects are freed, most pages still hold
//! one, and an allocator that moves no objects cannot return such pages. Their number stands beside
//! the figures.

use super::{Context, RowPlan, Suite};
use crate::child;
use crate::lineup::{MALLOC, caches, peers};
use crate::measure::{Errand, Lane, Method, Sample};
use crate::results::{LIMIT_BYTES, Role, Row, Unit};
use crate::rounds::memory::{ASKED, FREED, IDLE, LEFT, LIVE, Load};
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

/// The limit on resident memory after the idle time: a multiple of the live bytes, and a constant.
const LIMIT: (f64, f64) = (1.1, (4 << 20) as f64);

/// The limit's name where no allocator can meet it; see above.
const UNJUDGED_LIMIT: &str = "unjudged_limit_bytes";

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
const FLOOR: &str = "the objects alone";

pub const RSS: Suite = Suite {
    notes: |_| {
        let (times, mib) = (LIMIT.0, LIMIT.1 / (1 << 20) as f64);
        vec![format!("after the idle time the limit is {times} × the live bytes + {mib:.0} MiB")]
    },
    ..Suite::new(
        "rss",
        "resident memory of a load: live, after freeing 90 % at random, and after 10 s without any call",
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

    fn one_size(&self) -> bool {
        self.load.smallest_bytes == self.load.largest_bytes
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
        let count = if self.one_size() { self.load.live_bytes / ONE_SIZE } else { 0 };
        let row =
            Row::new(format!("rss/{id}"), if self.one_size() { ONE_SIZE_GROUP } else { MIXED_GROUP }, title);
        let size_bytes = if self.one_size() { ONE_SIZE } else { 0 };
        Row { size_bytes, live: count, unit: Unit::Bytes, ..row }.by(Method::Runs(runs, lanes))
    }

    fn lane(self: &Rc<Self>, contestant: &'static str, role: Role, reading: Reading) -> Lane<Errand> {
        let (scenario, mut run) = (Rc::clone(self), 0);
        Lane::of_runs(contestant, role, move || {
            let mut sample = scenario.sample(contestant, run)?;
            run += 1;
            let (name, live) = reading.names();
            sample.value = sample.extra[name].max(MIN_BYTES);
            if reading == Reading::Idle {
                let limit = LIMIT.0 * sample.extra[live] + LIMIT.1;
                let name = if scenario.load.freed_percent < 100 { UNJUDGED_LIMIT } else { LIMIT_BYTES };
                sample.extra.insert(name.into(), limit);
            } else {
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

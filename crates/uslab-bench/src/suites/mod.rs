//! The suites: each says which rows it has and how their table reads; nothing here measures.
//!
//! A new suite is a file with a type that implements [`Suite`] and a line in [`SUITES`]. Rows are plans: who
//! takes part, doing what work, against what target. Must never: run anything while planning, so that listing
//! and filtering cost nothing.

pub mod baseline;
pub mod batch10000;
pub mod bulk;
pub mod cache_scratch;
pub mod capi;
pub mod churn4k;
pub mod containers;
pub mod crewed;
pub mod larson;
pub mod latency;
pub mod mstress;
pub mod order;
pub mod pair;
pub mod programs;
pub mod published;
pub mod remote;
pub mod rss;
pub mod shape;
pub mod threads;
pub mod xmalloc;

use crate::contestants::{self, Entry};
use crate::cpu::Cpus;
use crate::measure::{Lane, Method, RunLane, Sample};
use crate::results::{Role, Run, RunOptions, Unit};
use crate::rounds::crew::Crew;
use crate::rounds::remote::Consumer;
use crate::rounds::{LocalRound, LocalWork, RemoteWork, Work};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

pub trait Suite: Sync {
    fn name(&self) -> &'static str;

    /// One line for the help.
    fn summary(&self) -> &'static str;

    fn rows(&self, context: &Context) -> Vec<RowPlan>;

    /// Writes the run as tables.
    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result;
}

pub const SUITES: &[&dyn Suite] = &[
    &pair::Pair,
    &bulk::Bulk,
    &batch10000::Batch10000,
    &churn4k::Churn4k,
    &order::Order,
    &programs::Programs,
    &capi::Capi,
    &containers::Containers,
    &remote::Remote,
    &threads::Threads,
    &larson::Larson,
    &xmalloc::Xmalloc,
    &cache_scratch::CacheScratch,
    &mstress::Mstress,
    &latency::Latency,
    &rss::Rss,
];

/// The suite of that name.
pub fn find(name: &str) -> Option<&'static dyn Suite> {
    SUITES.iter().copied().find(|suite| suite.name() == name)
}

/// What planning a suite needs to know.
pub struct Context {
    pub options: RunOptions,
    pub cpus: Cpus,
    /// The second thread of two-threaded rows; the first round starts it.
    consumer: Arc<Consumer>,
    /// The threads of rows with any number of them; likewise.
    crew: Arc<Crew>,
}

impl Context {
    pub fn new(options: RunOptions, cpus: Cpus) -> Self {
        Self { options, cpus, consumer: Arc::new(Consumer::new(cpus)), crew: Arc::new(Crew::new(cpus)) }
    }

    /// Whether a first look is wanted: what is long is made short.
    fn quick(&self) -> bool {
        self.options.rounds <= 60
    }

    fn local(&self, entry: Entry, live: usize, round: LocalRound) -> Box<dyn Work> {
        let (touch, order) = (self.options.touch, self.options.order);
        Box::new(LocalWork { entry, live, round: LocalRound { touch, order, ..round } })
    }

    fn remote(&self, entry: Entry, size: usize, bulk: bool) -> Box<dyn Work> {
        Box::new(RemoteWork { entry, size, bulk, consumer: Arc::clone(&self.consumer) })
    }
}

/// A row before it is measured.
pub struct RowPlan {
    pub id: String,
    pub group: String,
    pub title: String,
    pub size_bytes: usize,
    pub live: usize,
    pub threads: usize,
    pub unit: Unit,
    pub target: Option<f64>,
    pub published_cycles: BTreeMap<String, f64>,
    pub method: Method,
}

impl RowPlan {
    /// A row of one thread and one live object, in nanoseconds, with no target; the fields that differ are set on it.
    pub fn new(
        id: impl Into<String>,
        group: impl Into<String>,
        title: impl Into<String>,
        method: Method,
    ) -> Self {
        Self {
            id: id.into(),
            group: group.into(),
            title: title.into(),
            size_bytes: 0,
            live: 1,
            threads: 1,
            unit: Unit::Ns,
            target: None,
            published_cycles: BTreeMap::new(),
            method,
        }
    }
}

fn lane(name: impl Into<String>, role: Role, work: Box<dyn Work>) -> Lane {
    Lane { name: name.into(), role, work }
}

/// A lane of runs.
pub(crate) fn run_lane(
    name: impl Into<String>,
    role: Role,
    run: impl FnMut() -> Result<Sample, String> + 'static,
) -> RunLane {
    RunLane { name: name.into(), role, run: Box::new(run) }
}

/// A lane for every peer.
fn peers<'a>(work: impl Fn(Entry) -> Box<dyn Work> + 'a) -> impl Iterator<Item = Lane> + 'a {
    contestants::peers().iter().map(move |&peer| lane(peer.name, Role::Peer, work(peer)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::Order;
    use std::collections::HashSet;

    fn context() -> Context {
        let options = RunOptions {
            rounds: 1,
            round_us: 0,
            object_size_bytes: 256,
            touch: false,
            order: Order::Fifo,
            check: true,
        };
        Context::new(options, Cpus { first: 0, second: None, allowed: 1 })
    }

    #[test]
    fn rows_have_one_subject_all_peers_and_a_name_of_their_own() {
        for suite in SUITES {
            let mut ids = HashSet::new();
            for row in suite.rows(&context()) {
                let lanes = row.method.lanes();
                let count = |role| lanes.iter().filter(|lane| lane.1 == role).count();
                assert_eq!(count(Role::Subject), 1, "{}", row.id);
                if matches!(row.method, Method::Rounds(_)) {
                    assert_eq!(count(Role::Peer), contestants::peers().len(), "{}", row.id);
                }
                let mut names: Vec<_> = lanes.iter().map(|lane| lane.0).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), lanes.len(), "{}: a name twice", row.id);
                assert!(ids.insert(row.id.clone()), "{} twice", row.id);
            }
            assert!(!ids.is_empty());
        }
    }

    #[test]
    fn suites_are_found_by_name() {
        assert_eq!(find("pair").map(|suite| suite.name()), Some("pair"));
        assert!(find("pears").is_none());
    }
}

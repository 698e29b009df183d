//! Suite `order`: slabs of 1 to 32 pages, against speed and memory; and a build under LD_PRELOAD.
//!
//! The kernel's slab order trades speed for memory: a larger slab serves more objects before the
//! page layer is asked, and one live object keeps more pages. A lane is a cache whose slabs all
//! have one order; "uslab" is a cache as it comes, "deep queue" one whose sheaves hold 256 objects.
//! An object that does not fit an order takes the lowest that holds one. The readings of a size are
//! rows of the same runs (rounds/orders.rs), each in a process of its own.
//!
//! The tables of 2009 had loads that do much besides allocating. The build is one of them; ADR 0026
//! has the reason why messages and transactions were removed.

use super::shared::Runs;
use super::{Context, RowPlan, Suite};
use crate::child;
use crate::measure::{Lane, Method, Sample};
use crate::preload;
use crate::programs;
use crate::results::{Role, Row, Scale, Unit};
use crate::rounds::orders::{self, Slabs};
use crate::task::Task;
use std::rc::Rc;
use std::time::Duration;

/// The published sizes from 64 bytes on.
pub const SIZES: [usize; 9] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
pub const ORDERS: [(u32, &str); 6] =
    [(0, "order 0"), (1, "order 1"), (2, "order 2"), (3, "order 3"), (4, "order 4"), (5, "order 5")];
const DEEP_QUEUE: usize = 256;
/// Live bytes of a run, unless the least number of objects comes to more.
const LIVE_BYTES: usize = 16 << 20;
/// The published batch.
const MIN_OBJECTS: usize = 10_000;
/// A run takes less than a second.
const LIMIT: Duration = Duration::from_secs(60);
/// The bytes that a figure of memory is for: those of the table's unit.
const MIB: f64 = (1 << 20) as f64;

/// What is read of a run.
pub struct Reading {
    /// The end of a row's id.
    pub id: &'static str,
    /// The table.
    pub group: &'static str,
    name: &'static str,
    pub unit: Unit,
}

pub const READINGS: [Reading; 5] = [
    Reading { id: "grow", group: "allocated for the first time", name: orders::GROW, unit: Unit::Ns },
    Reading { id: "batch", group: "10000 allocated, then freed", name: orders::BATCH, unit: Unit::Ns },
    Reading {
        id: "churn",
        group: "random quarters freed and made again, beyond the sheaves",
        name: orders::CHURN,
        unit: Unit::Ns,
    },
    Reading {
        id: "full",
        group: "resident memory of each live MiB, all live",
        name: orders::FULL,
        unit: Unit::Bytes,
    },
    Reading {
        id: "tenth",
        group: "resident memory of each live MiB, a random 90 % freed and trimmed",
        name: orders::TENTH,
        unit: Unit::Bytes,
    },
];

pub const ORDER: Suite =
    Suite::new("order", "slab orders 0 to 5 against speed and memory; and a build", |context| {
        let scale = context.options.scale();
        let sizes: &[usize] = if scale == Scale::Check { &[64, 4096] } else { &SIZES };
        let runs: Vec<_> = sizes.iter().map(|&size| (size, runs_of(size, scale))).collect();
        let rows = |reading| {
            runs.iter().map(move |(size, lanes)| row(*size, reading, lanes, context)).collect::<Vec<_>>()
        };
        READINGS.iter().flat_map(rows).chain([build_row(context)]).collect()
    });

/// A lane's name, its part and its runs.
type Lanes = Vec<(&'static str, Role, Rc<Runs>)>;

fn runs_of(object_bytes: usize, scale: Scale) -> Lanes {
    let objects = scale.pick(100, MIN_OBJECTS, MIN_OBJECTS.max(LIVE_BYTES / object_bytes));
    let slabs = Slabs { object_bytes, objects, order: None, sheaf_capacity: None };
    let lane =
        |name, role, slabs: Slabs| (name, role, Runs::new(move || child::run(&Task::Order(slabs), LIMIT)));
    let of_order = |(order, name)| lane(name, Role::Ours, Slabs { order: Some(order), ..slabs });
    let deep = Slabs { sheaf_capacity: Some(DEEP_QUEUE), ..slabs };
    let first = std::iter::once(lane("uslab", Role::Subject, slabs));
    first.chain(ORDERS.into_iter().map(of_order)).chain([lane("deep queue", Role::Ours, deep)]).collect()
}

fn row(size: usize, reading: &'static Reading, runs: &Lanes, context: &Context) -> RowPlan {
    let read = |sample: &Sample| {
        let value =
            sample.extra.get(reading.name).ok_or_else(|| format!("a run without {}", reading.name))?;
        Ok(Sample::of(if reading.unit == Unit::Bytes { value.max(1e-3) * MIB } else { *value }))
    };
    let lanes = runs.iter().map(|(name, role, runs)| runs.lane(name, *role, read)).collect();
    let row = Row::new(format!("order/{size}/{}", reading.id), reading.group, format!("{size} B"));
    Row { size_bytes: size, live: 0, unit: reading.unit, ..row }.by(Method::Runs(times(context, 1, 7), lanes))
}

/// Runs of each lane.
fn times(context: &Context, quick: usize, full: usize) -> usize {
    context.options.runs.unwrap_or(context.options.scale().pick(1, quick, full))
}

fn build_row(context: &Context) -> RowPlan {
    let scale = context.options.scale();
    let lane = |library: &'static preload::Library, role| {
        Lane::of_runs(library.name, role, move || {
            super::programs::run(programs::BUILD.name, &library.find()?, scale)
        })
    };
    let lanes = vec![lane(&preload::USLAB, Role::Subject), lane(&preload::GLIBC, Role::Peer)];
    let row = Row::new("build", "make -j of a generated project", (programs::BUILD.title)(scale));
    Row { unit: Unit::Seconds, live: 0, ..row }.by(Method::Runs(times(context, 1, 5), lanes))
}

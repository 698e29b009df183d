//! Suite `threads`: 1 to 64 threads on the CPUs there are, each with a live set of its own, of
//! mixed small sizes.
//!
//! A row's figure is the time of one free and one allocation over all threads. It should fall up to
//! as many threads as CPUs, and stay there. Up to that number it is measured in rounds; beyond,
//! where the scheduler matters, in longer runs. The last row is the resident set of 64 threads with
//! their live sets, in a process of its own for each contestant.
//!
//! uslab must be as fast as the best peer with any number of threads, and take a tenth less memory.

use super::{Context, RowPlan, Suite, everyone};
use crate::child;
use crate::lineup::MALLOC;
use crate::measure::{Lane, Method};
use crate::results::{Row, Unit};
use crate::rounds::Entry;
use crate::rounds::crew::Job;
use crate::rounds::memory::Crowd;
use crate::rounds::mixed::{LIVE, MixedRound, OPERATIONS};
use crate::task::Task;
use std::sync::Arc;
use std::time::Duration;

const THREADS_OF_ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Repetitions of a round, each of `OPERATIONS`.
const ROUND: usize = 20;

const TIME_TARGET: f64 = 1.0;

const MEMORY_THREADS: usize = 64;
const MEMORY_TARGET: f64 = 0.9;
const MEMORY_LIMIT: Duration = Duration::from_secs(60);

pub const THREADS: Suite = Suite::new(
    "threads",
    "malloc and free of mixed small sizes in 1 to 64 threads on the CPUs there are, \
     and what 64 threads hold in memory",
    |context| {
        let times = THREADS_OF_ROWS.into_iter().map(|threads| time_row(context, threads));
        times.chain([memory_row(context)]).collect()
    },
);

fn job(entry: Entry, repeats: usize) -> Job {
    let round = MixedRound::new(repeats);
    Arc::new(move |seat| (entry.mixed)(&round, seat))
}

fn time_row(context: &Context, threads: usize) -> RowPlan {
    let method = if threads <= context.cpus.allowed {
        let counts = (threads, threads * OPERATIONS, ROUND);
        let lanes = everyone(MALLOC).map(|(entry, role)| {
            context.crew_lane(entry.name, role, counts, move |repeats| job(entry, repeats))
        });
        Method::Rounds(lanes.collect())
    } else {
        let repeats = context.pick(1, 20.max(1000 / threads), 200.max(4000 / threads));
        context.runs(threads * repeats * OPERATIONS, |entry| {
            let crew = Arc::clone(&context.crew);
            Box::new(move || crew.run(threads, &job(entry, repeats)).ns)
        })
    };
    let group = "threads with live sets of their own, 16 to 527 bytes";
    let title = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
    let row = Row::new(format!("mixed/t{threads}"), group, title);
    let target = if threads == 1 { Some(TIME_TARGET) } else { context.if_parallel(TIME_TARGET) };
    Row { live: threads * LIVE, threads, target, ..row }.by(method)
}

fn memory_row(context: &Context) -> RowPlan {
    let crowd = |threads, live, repeats| Crowd { threads, live, repeats };
    let crowd =
        context.pick(crowd(4, 100, 1), crowd(MEMORY_THREADS, 1000, 20), crowd(MEMORY_THREADS, 1000, 100));
    let lanes = everyone(MALLOC).map(|(entry, role)| {
        let task = Task::Crowd { contestant: entry.name.into(), crowd };
        Lane::of_runs(entry.name, role, move || child::run(&task, MEMORY_LIMIT))
    });
    let group = "resident memory above the empty process, with all live sets there";
    Row {
        live: crowd.threads * crowd.live,
        threads: crowd.threads,
        unit: Unit::Bytes,
        target: Some(MEMORY_TARGET),
        ..Row::new(
            format!("resident/t{MEMORY_THREADS}"),
            group,
            format!("{} threads, {} objects each", crowd.threads, crowd.live),
        )
    }
    .by(Method::Runs(context.pick(1, 1, 3), lanes.collect()))
}

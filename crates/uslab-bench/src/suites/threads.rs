//! Suite `threads`: 1 to 64 threads on the CPUs there are, each with a live set of its own, of mixed small sizes.
//!
//! A row's figure is the time of one free and one allocation over all threads: with as many threads as CPUs it falls
//! to its share, and with more it must stay there. Up to that number it is measured in rounds; beyond, where the
//! scheduler needs time to show itself, in runs. Then the memory: what 64 threads hold while their live sets are
//! there, in a process of its own for each contestant, which must be no more than the best peer's (issue 3).

use super::{Context, RowPlan, Suite, crewed};
use crate::child::{self, Task};
use crate::contestants::Entry;
use crate::measure::{Method, RunLane};
use crate::results::{Run, Unit};
use crate::rounds::crew::Job;
use crate::rounds::crowd::Crowd;
use crate::rounds::mixed::{LIVE, MixedRound, OPERATIONS};
use crate::table;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Repetitions of a round, and of each thread's run with more threads than CPUs (for function, at a first look, in
/// earnest), each of `OPERATIONS`.
const ROUND: usize = 20;
const RUN_ALL: [usize; 3] = [0, 1000, 4000];
const RUN_LEAST: [usize; 3] = [1, 20, 200];

const MEMORY_THREADS: usize = 64;
const MEMORY_TARGET: f64 = 1.0;
const MEMORY_LIMIT: Duration = Duration::from_secs(60);
const MEMORY_RUNS: [usize; 3] = [1, 1, 3];

const TIME_GROUP: &str = "threads with live sets of their own, 16 to 527 bytes";
const MEMORY_GROUP: &str = "resident memory above the empty process, with all live sets there";

pub struct Threads;

impl Suite for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn summary(&self) -> &'static str {
        "malloc and free of mixed small sizes in 1 to 64 threads on the CPUs there are, and what 64 threads hold in memory"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let mut rows: Vec<RowPlan> = THREADS.into_iter().map(|threads| time_row(context, threads)).collect();
        rows.push(memory_row(context));
        rows
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)
    }
}

fn job(entry: Entry, repeats: usize) -> Job {
    let round = MixedRound::new(repeats);
    Arc::new(move |seat| (entry.crew.mixed)(&round, seat))
}

fn time_row(context: &Context, threads: usize) -> RowPlan {
    let method = if threads <= context.cpus.allowed {
        let counts = (threads, threads * OPERATIONS, ROUND);
        let lanes = crewed::everybody().map(|(entry, role)| {
            crewed::crew_lane(context, entry.name, role, counts, move |repeats| job(entry, repeats))
        });
        Method::Rounds(lanes.collect())
    } else {
        let [all, least] = [RUN_ALL, RUN_LEAST].map(|choices| crewed::by_length(context, choices));
        let repeats = least.max(all / threads);
        crewed::runs(context, threads * repeats * OPERATIONS, |entry| {
            let crew = Arc::clone(&context.crew);
            Box::new(move || crew.run(threads, &job(entry, repeats)).ns)
        })
    };
    RowPlan {
        live: threads * LIVE,
        threads,
        ..RowPlan::new(
            format!("mixed/t{threads}"),
            TIME_GROUP,
            format!("{threads} thread{}", if threads == 1 { "" } else { "s" }),
            method,
        )
    }
}

fn memory_row(context: &Context) -> RowPlan {
    let crowd = crewed::by_length(
        context,
        [
            Crowd { threads: 4, live: 100, repeats: 1 },
            Crowd { threads: MEMORY_THREADS, live: 1000, repeats: 20 },
            Crowd { threads: MEMORY_THREADS, live: 1000, repeats: 100 },
        ],
    );
    let lanes = crewed::everybody().map(|(entry, role)| {
        let task = Task::Crowd { contestant: entry.name.into(), crowd };
        RunLane { name: entry.name.into(), role, run: Box::new(move || child::run(&task, MEMORY_LIMIT)) }
    });

    RowPlan {
        live: crowd.threads * crowd.live,
        threads: crowd.threads,
        unit: Unit::Bytes,
        target: Some(MEMORY_TARGET),
        ..RowPlan::new(
            format!("resident/t{MEMORY_THREADS}"),
            MEMORY_GROUP,
            format!("{} threads, {} objects each", crowd.threads, crowd.live),
            Method::Runs(crewed::by_length(context, MEMORY_RUNS), lanes.collect()),
        )
    }
}

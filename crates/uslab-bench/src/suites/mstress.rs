//! Suite `mstress`: objects of very different sizes that migrate between threads and outlive them (after mimalloc-bench;
//! rounds/mstress.rs).
//!
//! For information: it has no target. The rows are as many threads as CPUs, and four times as many.

use super::{Context, RowPlan, Suite, crewed};
use crate::results::Run;
use crate::rounds::crew::{self, Job};
use crate::rounds::mstress::MstressRound;
use crate::table;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

/// Waves of threads in a run.
const WAVES: usize = 4;

/// Allocations of a run, in all threads: for function, at a first look, in earnest.
const ALL: [usize; 3] = [10_000, 400_000, 1_600_000];

const GROUP: &str = "four waves of threads, sizes of a heavy tail, one in four objects to other threads; with the making of threads";

pub struct Mstress;

impl Suite for Mstress {
    fn name(&self) -> &'static str {
        "mstress"
    }

    fn summary(&self) -> &'static str {
        "objects of 16 bytes to 128 KiB, some of which pass to other threads and outlive their own"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        crewed::counts(context).into_iter().map(|threads| row(context, threads)).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)
    }
}

fn row(context: &Context, threads: usize) -> RowPlan {
    let allocations = crewed::by_length(context, ALL) / threads / WAVES;
    let cpus = context.cpus;
    let method = crewed::runs(context, WAVES * threads * allocations, |entry| {
        Box::new(move || {
            let round = Arc::new(MstressRound::new(allocations));
            let job: Job = {
                let round = Arc::clone(&round);
                Arc::new(move |seat| (entry.crew.mstress)(&round, seat))
            };
            let start = Instant::now();
            (0..WAVES).for_each(|_| {
                crew::fresh(threads, cpus, entry, &job);
            });
            (entry.crew.mstress_end)(&round);
            start.elapsed().as_nanos() as f64
        })
    });
    RowPlan {
        threads,
        ..RowPlan::new(format!("t{threads}"), GROUP, format!("{threads} threads at once"), method)
    }
}

//! Suite `cache-scratch`: false sharing that an allocator passes on (Berger and others 2000; rounds/cache_scratch.rs).
//! The figure is the time of one write, over all threads.
//!
//! For information: it has no target. The rows are as many threads as CPUs, and four times as many.

use super::{Context, RowPlan, Suite, crewed};
use crate::measure::Method;
use crate::results::Run;
use crate::rounds::cache_scratch::{BYTES, OBJECTS, ScratchRound, WRITES};
use crate::table;
use std::fmt::Write;
use std::sync::Arc;

/// Repetitions of a round.
const ROUND: usize = 50;

const GROUP: &str = "threads free a small object that they were given, then allocate, write 100 times and free their own; a write";

pub struct CacheScratch;

impl Suite for CacheScratch {
    fn name(&self) -> &'static str {
        "cache-scratch"
    }

    fn summary(&self) -> &'static str {
        "whether an allocator passes false sharing on: threads write small objects that were neighbours"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        crewed::counts(context).into_iter().map(|threads| row(context, threads)).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)
    }
}

fn row(context: &Context, threads: usize) -> RowPlan {
    let counts = (threads, threads * OBJECTS * WRITES, ROUND);
    let lanes = crewed::everybody().map(|(entry, role)| {
        crewed::crew_lane(context, entry.name, role, counts, move |repeats| {
            let round = ScratchRound::new(threads, repeats);
            (entry.crew.scratch_objects)(&round);
            Arc::new(move |seat| (entry.crew.cache_scratch)(&round, seat))
        })
    });
    RowPlan {
        size_bytes: BYTES,
        live: threads,
        threads,
        ..RowPlan::new(
            format!("t{threads}"),
            GROUP,
            format!("{BYTES} B, {threads} threads"),
            Method::Rounds(lanes.collect()),
        )
    }
}

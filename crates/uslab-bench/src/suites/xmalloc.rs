//! Suite `xmalloc`: threads that only allocate and threads that only free (Lever and Boreham 2000; rounds/xmalloc.rs).
//!
//! Target: ahead of every peer (issue 3). The rows are as many threads as CPUs, and four times as many.

use super::{Context, RowPlan, Suite, crewed};
use crate::measure::Method;
use crate::results::Run;
use crate::rounds::xmalloc::{BOX, XmallocRound};
use crate::table;
use std::fmt::Write;
use std::sync::Arc;

/// Boxes of all threads in a round: a few milliseconds.
const BOXES: usize = 96;

/// Ahead of every peer (issue 3).
const TARGET: f64 = 1.0;

const GROUP: &str = "half the threads allocate, 16 to 2048 bytes, and the other half free";

pub struct Xmalloc;

impl Suite for Xmalloc {
    fn name(&self) -> &'static str {
        "xmalloc"
    }

    fn summary(&self) -> &'static str {
        "threads that only allocate and threads that only free, as in xmalloc-test"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        crewed::counts(context).into_iter().map(|threads| row(context, threads)).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)
    }
}

fn row(context: &Context, threads: usize) -> RowPlan {
    let threads = threads.next_multiple_of(2);
    let counts = (threads, threads / 2 * BOX, (BOXES * 2 / threads).max(1));
    let lanes = crewed::everybody().map(|(entry, role)| {
        crewed::crew_lane(context, entry.name, role, counts, move |boxes| {
            let round = XmallocRound::new(threads, boxes);
            Arc::new(move |seat| (entry.crew.xmalloc)(&round, seat))
        })
    });
    RowPlan {
        threads,
        // On one CPU the threads take turns, and the scheduler is what is measured.
        target: context.cpus.second.map(|_| TARGET),
        ..RowPlan::new(
            format!("t{threads}"),
            GROUP,
            format!("{threads} threads"),
            Method::Rounds(lanes.collect()),
        )
    }
}

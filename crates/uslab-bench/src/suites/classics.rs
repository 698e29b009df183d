//! Suites `larson` and `xmalloc`: the patterns of two well-known benchmarks.
//!
//! Each has a row with as many threads as CPUs, and one with four times as many. The files of the
//! same names in rounds/ describe the patterns and their sources. xmalloc is judged: it must be
//! ahead of every peer. larson is for information.

use super::{Context, RowPlan, Suite, everyone};
use crate::lineup::MALLOC;
use crate::results::Row;
use crate::rounds::crew::{self, Job};
use crate::rounds::larson::LarsonRound;
use crate::rounds::xmalloc::{BOX, XmallocRound};
use std::sync::Arc;

pub const LARSON: Suite =
    Suite::new("larson", "threads that come and go while their objects stay, as in a server", |context| {
        context.thread_counts().map(|threads| larson(context, threads)).into()
    });

pub const XMALLOC: Suite = Suite::new(
    "xmalloc",
    "threads that only allocate and threads that only free, as in xmalloc-test",
    |context| context.thread_counts().map(|threads| xmalloc(context, threads)).into(),
);

fn row_of(threads: usize, group: &str, title: String) -> Row {
    Row { threads, ..Row::new(format!("t{threads}"), group, title) }
}

/// Blocks in the array of each chain of threads, and how many each thread replaces.
const BLOCKS: usize = 1000;
const REPLACEMENTS: usize = 5000;

fn larson(context: &Context, threads: usize) -> RowPlan {
    let all = context.pick(0, 1_000_000, 4_000_000);
    let generations = (all / threads / REPLACEMENTS).max(2);
    let round = LarsonRound { blocks: BLOCKS, generations, replacements: REPLACEMENTS };
    let cpus = context.cpus;
    let method = context.runs(threads * generations * REPLACEMENTS, |entry| {
        let job: Job = Arc::new(move |seat| (entry.larson)(&round, seat));
        Box::new(move || crew::fresh(threads, cpus, entry, &job).ns)
    });
    let group = "threads replace random blocks of an array, then hand it to a successor and end; \
                 with the making of threads";
    let row = row_of(threads, group, format!("{threads} threads at once"));
    Row { live: threads * BLOCKS, ..row }.by(method)
}

/// Boxes of all threads in a round: a few milliseconds.
const BOXES: usize = 96;

fn xmalloc(context: &Context, threads: usize) -> RowPlan {
    let threads = threads.next_multiple_of(2);
    let counts = (threads, threads / 2 * BOX, (BOXES * 2 / threads).max(1));
    let lanes = everyone(MALLOC).map(|(entry, role)| {
        context.crew_lane(entry.name, role, counts, move |boxes| {
            let round = XmallocRound::new(threads, boxes);
            Arc::new(move |seat| (entry.xmalloc)(&round, seat))
        })
    });
    let group = "half the threads allocate, 16 to 2048 bytes, and the other half free";
    let row = row_of(threads, group, format!("{threads} threads"));
    Row { target: context.if_parallel(1.0), ..row }.by_rounds(lanes)
}

//! The suites that others made, one pattern each: `larson`, `xmalloc`, `cache-scratch`.
//!
//! Rows are as many threads as CPUs, and four times as many. The patterns, and where they come
//! from, stand in the files of the same names in rounds/. xmalloc is judged: ahead of every peer.
//! The others are for information.

use super::{Context, RowPlan, Suite, everyone};
use crate::lineup::MALLOC;
use crate::results::Row;
use crate::rounds::cache_scratch::{BYTES, OBJECTS, ScratchRound, WRITES};
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

pub const CACHE_SCRATCH: Suite = Suite::new(
    "cache-scratch",
    "whether an allocator passes false sharing on: threads write small objects that were neighbours",
    |context| context.thread_counts().map(|threads| cache_scratch(context, threads)).into(),
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

/// Repetitions of a round.
const SCRATCHES: usize = 50;

fn cache_scratch(context: &Context, threads: usize) -> RowPlan {
    let counts = (threads, threads * OBJECTS * WRITES, SCRATCHES);
    let lanes = everyone(MALLOC).map(|(entry, role)| {
        context.crew_lane(entry.name, role, counts, move |repeats| {
            let round = ScratchRound::new(threads, repeats);
            (entry.scratch_objects)(&round);
            Arc::new(move |seat| (entry.cache_scratch)(&round, seat))
        })
    });
    let group = "threads free a small object that they were given, then allocate, write 100 times \
                 and free their own; a write";
    let row = row_of(threads, group, format!("{BYTES} B, {threads} threads"));
    Row { size_bytes: BYTES, live: threads, ..row }.by_rounds(lanes)
}

//! Suite `larson`: a server whose threads come and go while its objects stay (Larson and Krishnan 1998; rounds/larson.rs).
//!
//! For information: it has no target. The rows are as many threads as CPUs, and four times as many.

use super::{Context, RowPlan, Suite, crewed};
use crate::results::Run;
use crate::rounds::crew::{self, Job};
use crate::rounds::larson::LarsonRound;
use crate::table;
use std::fmt::Write;
use std::sync::Arc;

/// Blocks in the array of each chain of threads, and how many each thread replaces.
const BLOCKS: usize = 1000;
const REPLACEMENTS: usize = 5000;

/// Replacements of a run, in all threads: for function, at a first look, in earnest.
const ALL: [usize; 3] = [0, 1_000_000, 4_000_000];

const GROUP: &str = "threads replace random blocks of an array, then hand it to a successor and end; with the making of threads";

pub struct Larson;

impl Suite for Larson {
    fn name(&self) -> &'static str {
        "larson"
    }

    fn summary(&self) -> &'static str {
        "threads that come and go while their objects stay, as in a server"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        crewed::counts(context).into_iter().map(|threads| row(context, threads)).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)
    }
}

fn row(context: &Context, threads: usize) -> RowPlan {
    let generations = (crewed::by_length(context, ALL) / threads / REPLACEMENTS).max(2);
    let round = LarsonRound { blocks: BLOCKS, generations, replacements: REPLACEMENTS };
    let cpus = context.cpus;
    let method = crewed::runs(context, threads * generations * REPLACEMENTS, |entry| {
        let job: Job = Arc::new(move |seat| (entry.crew.larson)(&round, seat));
        Box::new(move || crew::fresh(threads, cpus, entry, &job).ns)
    });
    RowPlan {
        live: threads * BLOCKS,
        threads,
        ..RowPlan::new(format!("t{threads}"), GROUP, format!("{threads} threads at once"), method)
    }
}

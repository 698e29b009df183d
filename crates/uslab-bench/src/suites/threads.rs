//! Suite `threads`: 1 to 64 threads on the CPUs there are, each with a live set of its own, of
//! mixed small sizes.
//!
//! A row's figure is the time of one free and one allocation over all threads. It should fall up to
//! as many threads as CPUs, and stay there. Each number of threads is measured twice:
//!
//! * `mixed`, with all allocators linked to this program. Up to as many threads as CPUs it is
//!   measured in rounds; beyond, where the scheduler matters, in longer runs.
//! * `preloaded`, in a process of its own for each run, with the allocator preloaded, as users
//!   start programs with it. The program is programs/live_sets.c. It also tells its resident
//!   memory, and how many pages a thread's live set lies in.
//!
//! The last row is the resident set of 64 threads with their live sets, in a process of its own for
//! each contestant.
//!
//! uslab must be as fast as the best peer with any number of threads, and take a tenth less memory.

use super::shared::{figure, runs_of};
use super::{Context, RowPlan, Suite, everyone};
use crate::child;
use crate::lineup::MALLOC;
use crate::locality::{Program, Source};
use crate::measure::{Lane, Method};
use crate::preload::{self, Library};
use crate::results::{Row, Scale, Unit};
use crate::rounds::Entry;
use crate::rounds::crew::Job;
use crate::rounds::memory::Crowd;
use crate::rounds::mixed::{LIVE, MixedRound, OPERATIONS};
use crate::task::Task;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const THREADS_OF_ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Repetitions of a round, each of `OPERATIONS`.
const ROUND: usize = 20;

const TIME_TARGET: f64 = 1.0;

const LIVE_SETS: Source = Source {
    file: "live_sets.c",
    text: include_str!("../programs/live_sets.c"),
    compiler: ("cc", "gcc"),
    flags: &["-std=gnu11", "-pthread"],
};

/// What is read of a run of the program: the end of a row's id, the table, the figure's name, the
/// unit and the target.
const READINGS: [(&str, &str, &str, Unit, Option<f64>); 4] = [
    ("time", "the same, preloaded in a program", "replace_ns", Unit::Ns, Some(TIME_TARGET)),
    ("resident", "resident memory above the start's", "resident_bytes", Unit::Bytes, Some(MEMORY_TARGET)),
    ("set", "pages that a thread's live set lies in", "pages_of_a_set", Unit::Count, None),
    ("all", "pages that all live sets lie in", "pages_of_all", Unit::Count, None),
];

const MEMORY_THREADS: usize = 64;
const MEMORY_TARGET: f64 = 0.9;
const MEMORY_LIMIT: Duration = Duration::from_secs(60);

pub const THREADS: Suite = Suite::new(
    "threads",
    "malloc and free of mixed small sizes in 1 to 64 threads on the CPUs there are, \
     and what 64 threads hold in memory",
    |context| {
        let times = THREADS_OF_ROWS.into_iter().map(|threads| time_row(context, threads));
        times.chain(preloaded_rows(context)).chain([memory_row(context)]).collect()
    },
);

fn title(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

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
    let row = Row::new(format!("mixed/t{threads}"), group, title(threads));
    let target = if threads == 1 { Some(TIME_TARGET) } else { context.if_parallel(TIME_TARGET) };
    Row { live: threads * LIVE, threads, target, ..row }.by(method)
}

fn preloaded_rows(context: &Context) -> Vec<RowPlan> {
    let scale = context.options.scale();
    let program = Rc::new(Program::new(&LIVE_SETS, scale));
    // For function, one peer is enough.
    let taken = |peer: &Library| scale != Scale::Check || peer.name == preload::GLIBC.name;
    let runs = THREADS_OF_ROWS.map(|threads| (threads, runs_of(&program, &arguments(threads, scale), taken)));
    let rows = READINGS.iter().flat_map(|&(id, group, name, unit, target)| {
        runs.iter().map(move |(threads, runs)| {
            let lanes = runs.iter().map(|(library, role, runs)| {
                runs.lane(library.name, *role, move |sample| figure(sample, name, 1e-3))
            });
            let times = context.options.runs.unwrap_or(scale.pick(1, 1, 5));
            let target = target.filter(|_| *threads == 1 || context.cpus.second.is_some());
            let row = Row::new(format!("preloaded/t{threads}/{id}"), group, title(*threads));
            Row { live: threads * LIVE, threads: *threads, unit, target, ..row }
                .by(Method::Runs(times, lanes.collect()))
        })
    });
    rows.collect()
}

/// Threads, replacements of each, and rounds.
fn arguments(threads: usize, scale: Scale) -> Vec<String> {
    let replacements = scale.pick(100, 50_000, 200_000);
    let rounds = scale.pick(1, 5, 10.max(100 / threads));
    [threads, replacements, rounds].map(|number| number.to_string()).into()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_tells_each_figure() {
        let glibc = preload::GLIBC.find().unwrap();
        let program = Program::new(&LIVE_SETS, Scale::Check);
        for threads in [1, 3, 64] {
            let sample = match program.run(&glibc, &arguments(threads, Scale::Check)) {
                Ok(sample) => sample,
                // Without a compiler there is nothing to see but the reason.
                Err(why) => return assert!(why.contains("apt-get install"), "{why}"),
            };
            assert!(figure(&sample, "replace_ns", 1e-3).unwrap().value > 1.0);
            // 256 objects of 271 bytes on average are 17 pages at least, with each thread.
            let [of_a_set, of_all, resident] =
                ["pages_of_a_set", "pages_of_all", "resident_bytes"].map(|name| sample.extra[name]);
            assert!(resident >= of_all * 4096.0, "{resident}");
            assert!((16.0..256.0).contains(&of_a_set), "{of_a_set}");
            assert!((16.0 * threads as f64..256.0 * threads as f64).contains(&of_all), "{of_all}");
        }
        let none = program.run(&glibc, &["0", "1", "1"].map(String::from));
        assert!(none.unwrap_err().contains("1 to 64 threads"));
    }
}

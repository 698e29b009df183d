//! Suite `fork`: how long a fork holds the other threads of a process, under LD_PRELOAD of uslab
//! and of glibc.
//!
//! While a thread forks, an allocator keeps the other threads from changing what the kernel copies.
//! glibc holds the locks of its arenas, and threads wait that need one; its thread caches serve the
//! rest. uslab takes the sheaves out of use, and a thread waits at its next call. Beside both, the
//! kernel holds each thread that writes to memory until it has copied the page tables.
//!
//! The row `none` has the kernel's part alone: its threads write, and allocate nothing. With live
//! memory the kernel's part grows, by a page table for 2 MiB, or by one entry where a huge page
//! backs them. The program is programs/forks.c. The forking thread has the first CPU for itself,
//! the other threads the rest. Other work on the machine looks like a hold: `chrt -f 1 uslab bench
//! fork` keeps it away, but for the rows with several threads, which leave that priority.

use super::shared::{Lanes, figure, runs_of};
use super::{Context, RowPlan, Suite};
use crate::locality::{Program, Source};
use crate::measure::Method;
use crate::preload;
use crate::results::{Row, Scale, Unit};
use std::rc::Rc;

pub const FORK: Suite =
    Suite::new("fork", "how long a fork holds other threads, under LD_PRELOAD of uslab and of glibc", rows);

const FORKS: Source = Source {
    file: "forks.c",
    text: include_str!("../programs/forks.c"),
    compiler: ("cc", "gcc"),
    flags: &["-std=gnu11", "-pthread"],
};

/// What the threads beside the forking one do, and the memory that the process holds.
struct Load {
    id: &'static str,
    title: &'static str,
    work: &'static str,
    threads: usize,
    live_mib: usize,
}

const LOADS: [Load; 5] = [
    Load { id: "none", title: "no allocation: the kernel alone", work: "none", threads: 1, live_mib: 0 },
    Load { id: "pairs", title: "pairs", work: "pairs", threads: 1, live_mib: 0 },
    Load { id: "bursts", title: "bursts of 200, 16-1000 B", work: "bursts", threads: 1, live_mib: 0 },
    Load { id: "bursts-64m", title: "bursts, 64 MiB live", work: "bursts", threads: 1, live_mib: 64 },
    Load { id: "bursts-4t", title: "bursts in 4 threads", work: "bursts", threads: 4, live_mib: 0 },
];

/// What is read of a run: the end of a row's id, the table, the figure's name and the target.
struct Reading {
    id: &'static str,
    group: &'static str,
    name: &'static str,
    target: Option<f64>,
}

const READINGS: [Reading; 4] = [
    Reading {
        id: "median",
        group: "a fork holds another thread, median",
        name: "hold_median_ns",
        target: Some(1.0),
    },
    Reading { id: "p99", group: "a fork holds another thread, p99", name: "hold_p99_ns", target: Some(1.0) },
    Reading {
        id: "longest",
        group: "a fork holds another thread, longest",
        name: "hold_longest_ns",
        target: None,
    },
    Reading { id: "call", group: "the call of fork, median", name: "fork_median_ns", target: None },
];

fn rows(context: &Context) -> Vec<RowPlan> {
    let scale = context.options.scale();
    let program = Rc::new(Program::new(&FORKS, scale));
    let runs = LOADS.map(|load| {
        let runs = runs_of(&program, &arguments(&load, scale), |peer| peer.name == preload::GLIBC.name);
        (load, runs)
    });
    READINGS
        .iter()
        .flat_map(|reading| runs.iter().map(|(load, runs)| row(load, reading, runs, context)))
        .collect()
}

fn arguments(load: &Load, scale: Scale) -> Vec<String> {
    let forks = scale.pick(3, 100, 400);
    let live_mib = scale.pick(1, load.live_mib, load.live_mib);
    let numbers = [load.threads, forks, live_mib].map(|number| number.to_string());
    [load.work.to_owned()].into_iter().chain(numbers).collect()
}

fn row(load: &Load, reading: &'static Reading, runs: &Lanes, context: &Context) -> RowPlan {
    let lanes = runs
        .iter()
        .map(|(library, role, runs)| {
            runs.lane(library.name, *role, |sample| figure(sample, reading.name, 1.0))
        })
        .collect();
    let scale = context.options.scale();
    let row = Row::new(format!("fork/{}/{}", load.id, reading.id), reading.group, load.title);
    let times = context.options.runs.unwrap_or(scale.pick(1, 1, 5));
    // The row without allocation compares two kernels' parts, and is not judged.
    let target = reading.target.filter(|_| load.work != "none");
    Row { unit: Unit::Ns, threads: load.threads, target, ..row }.by(Method::Runs(times, lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_tells_each_figure() {
        let glibc = preload::GLIBC.find().unwrap();
        let program = Program::new(&FORKS, Scale::Check);
        for load in &LOADS {
            let sample = match program.run(&glibc, &arguments(load, Scale::Check)) {
                Ok(sample) => sample,
                // Without a compiler, or without a CPU for the thread, there is but the reason.
                Err(why) => {
                    assert!(why.contains("apt-get install") || why.contains("no thread ran"), "{why}");
                    continue;
                }
            };
            for reading in &READINGS {
                assert!(figure(&sample, reading.name, 1.0).unwrap().value >= 1.0, "{}", reading.name);
            }
            assert!(sample.extra["hold_longest_ns"] >= sample.extra["hold_median_ns"]);
        }
    }

    #[test]
    fn arguments_are_those_of_the_program() {
        assert_eq!(arguments(&LOADS[3], Scale::Full).join(" "), "bursts 1 400 64");
    }
}

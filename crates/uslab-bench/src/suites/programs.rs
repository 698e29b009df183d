//! Suite `programs`: whole programs, each under each allocator by LD_PRELOAD: elapsed, user and system seconds and
//! the peak of resident memory.
//!
//! This is what a user of the library meets who changes nothing but a variable. Programs do much else than
//! allocate, so differences are small where figures of one call differ manifold; runs are few, and the mark "~"
//! says where they do not tell two allocators apart. Libraries of peers are Debian's; one that is not installed is
//! left out with the name of its package, and so is a program.

use super::baseline::{BASELINE, percent, percent_of_extra};
use super::{Context, RowPlan, Suite, run_lane};
use crate::measure::{Method, RunLane};
use crate::preload::{self, Library};
use crate::programs::{self, Scale, WORKLOADS, Workload, sqlite};
use crate::results::{Role, Row, Run, Unit};
use crate::table::{self, Grid};
use std::fmt::Write;

const GROUP: &str = "whole programs under LD_PRELOAD";

pub struct Programs;

impl Suite for Programs {
    fn name(&self) -> &'static str {
        "programs"
    }

    fn summary(&self) -> &'static str {
        "redis, python, g++ and sqlite3 under LD_PRELOAD of each allocator: time and peak memory"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let scale = Scale::of(&context.options);
        WORKLOADS.iter().map(|&workload| row(workload, scale)).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        run.rows.iter().try_for_each(|row| render(row, &run.mode, out))
    }
}

fn row(workload: &'static dyn Workload, scale: Scale) -> RowPlan {
    let mut lanes = vec![lane(&preload::USLAB, Role::Subject, workload, scale)];
    // For function, every peer with the program that starts fastest is enough.
    let all = scale != Scale::Check || workload.name() == sqlite::Index.name();
    let peers = preload::PEERS.iter().filter(|peer| all || peer.name == BASELINE);
    lanes.extend(peers.map(|peer| lane(peer, Role::Peer, workload, scale)));
    let method = Method::Runs(scale.pick(1, 1, 5), lanes);
    let mut plan = RowPlan::new(format!("program/{}", workload.name()), GROUP, workload.title(scale), method);
    (plan.unit, plan.live) = (Unit::Seconds, 0);
    plan
}

fn lane(library: &'static Library, role: Role, workload: &'static dyn Workload, scale: Scale) -> RunLane {
    run_lane(library.name, role, move || programs::run(workload.name(), &library.find()?, scale))
}

fn render(row: &Row, mode: &str, out: &mut dyn Write) -> std::fmt::Result {
    writeln!(out, "\n{} · uslab in {mode} mode · seconds; percent against {BASELINE}", row.title)?;
    let mut grid = Grid::new(&["", "least s", "median", "", "user s", "system s", "peak MiB", ""]);
    for figure in &row.figures {
        let extra = |name: &str, unit| table::value(figure.extra.get(name).copied(), unit);
        let best = if row.best_peer.as_deref() == Some(&figure.contestant) { "*" } else { "" };
        grid.row([
            figure.contestant.clone(),
            format!("{best}{}", table::value(Some(figure.value.min), row.unit)),
            table::value(Some(figure.value.median), row.unit),
            percent(figure, row),
            extra("user_s", Unit::Seconds),
            extra("system_s", Unit::Seconds),
            extra("peak_bytes", Unit::Bytes),
            percent_of_extra(figure, row, "peak_bytes"),
        ]);
    }
    if !row.figures.is_empty() {
        grid.write(out)?;
    }
    match row.skipped.as_slice() {
        // The program itself is missing: once, not for every allocator.
        [first, rest @ ..] if row.figures.is_empty() && rest.iter().all(|other| other.why == first.why) => {
            writeln!(out, "left out: {}", first.why)
        }
        _ => table::skipped(std::slice::from_ref(row), out),
    }
}

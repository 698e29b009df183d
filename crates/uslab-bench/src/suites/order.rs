//! Suite `order`: the knobs of 2009. A build under LD_PRELOAD; messages of 13 sizes over UDP and TCP; transactions
//! by 1 to 16 threads. Every cell with its percent against glibc, and "~" where confidence is too low.
//!
//! Six configurations were compared then: two allocators, each vanilla, with operations on this CPU, and with
//! slabs of high order. Here they are uslab with and without restartable sequences (`--both-modes`), each vanilla,
//! with slabs of high order, and with deeper queues. A preloaded library has no knobs, so a build has one
//! configuration a mode.
//!
//! The 2009 tables have mean and standard deviation, so the build's has too: of a few runs of many seconds, beside
//! the median that percents are of.

use super::baseline::{BASELINE, percent};
use super::{Context, RowPlan, Suite, run_lane};
use crate::child::{self, Task};
use crate::measure::{Method, RunLane, Sample};
use crate::order::loopback::{Loopback, Protocol};
use crate::order::oltp::Oltp;
use crate::order::{CONFIGURATIONS, Configuration};
use crate::preload::{self, Library};
use crate::programs::{self, Scale};
use crate::results::{Figure, Role, Row, Run, Unit};
use crate::table::{self, Grid};
use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

const MESSAGES: [usize; 13] = [64, 128, 256, 1024, 2048, 3312, 4096, 6144, 8192, 10240, 12288, 14336, 16384];
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

const BUILD_GROUP: &str = "make -j of a generated project";
const OLTP_GROUP: &str = "transactions on SQLite";

pub struct Order;

impl Suite for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    fn summary(&self) -> &'static str {
        "the knobs: slab order and queue depth under a build, UDP and TCP messages of 13 sizes, SQLite by 1 to 16 threads"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let scale = Scale::of(&context.options);
        let mut rows = build_rows(scale);
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            rows.extend(MESSAGES.iter().map(|&size| message_row(protocol, size, scale, context.cpus.second)));
        }
        rows.extend(THREADS.iter().map(|&threads| oltp_row(threads, scale)));
        rows
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        let (build, others): (Vec<_>, Vec<_>) = run.rows.iter().partition(|row| row.group == BUILD_GROUP);
        render_build(&build, &run.mode, out)?;
        for rows in others.chunk_by(|a, b| a.group == b.group) {
            render_configurations(rows, &run.mode, out)?;
        }
        Ok(())
    }
}

/// What the builds so far took, of one library.
type Builds = Rc<RefCell<Vec<Sample>>>;

/// Elapsed, user and system of the same builds: the first row that is asked for a build makes it.
fn build_rows(scale: Scale) -> Vec<RowPlan> {
    let times = scale.pick(1, 1, 5);
    let builds = [(&preload::USLAB, Role::Subject), (&preload::GLIBC, Role::Peer)]
        .map(|(library, role)| (library, role, Builds::default()));
    let row = |part: &'static str| {
        let lane = |(library, role, builds): &(&'static Library, Role, Builds)| {
            build_lane(library, *role, Rc::clone(builds), part, scale)
        };
        let method = Method::Runs(times, builds.iter().map(lane).collect());
        let title = format!("{}: {part}", programs::BUILD.title(scale));
        let mut plan = RowPlan::new(format!("build/{part}"), BUILD_GROUP, title, method);
        (plan.unit, plan.live) = (Unit::Seconds, 0);
        plan
    };
    ["elapsed", "user", "system"].map(row).into()
}

fn build_lane(
    library: &'static Library,
    role: Role,
    builds: Builds,
    part: &'static str,
    scale: Scale,
) -> RunLane {
    let mut turn = 0;
    run_lane(library.name, role, move || {
        let mut builds = builds.borrow_mut();
        if builds.len() == turn {
            builds.push(programs::run(programs::BUILD.name(), &library.find()?, scale)?);
        }
        let build = &builds[turn];
        turn += 1;
        let value = match part {
            "elapsed" => build.value,
            // Not 0, which a short build of few ticks may be: nothing is a percent of it.
            _ => build.extra[&format!("{part}_s")].max(1e-6),
        };
        Ok(Sample { value, ..build.clone() })
    })
}

fn message_row(protocol: Protocol, size: usize, scale: Scale, receiver_cpu: Option<usize>) -> RowPlan {
    let (name, id) = match protocol {
        Protocol::Udp => ("UDP", "udp"),
        Protocol::Tcp => ("TCP", "tcp"),
    };
    let messages = scale.pick(2, 64, 128);
    let lane = |configuration: Configuration| {
        let mut running: Option<Loopback> = None;
        run_lane(configuration.name(), role(configuration), move || {
            if running.is_none() {
                let mut fresh = Loopback::start(protocol, size, configuration, receiver_cpu)?;
                // What memory costs the first time is not what a message costs.
                fresh.round(messages)?;
                running = Some(fresh);
            }
            let ns = running.as_mut().map_or(Ok(0.0), |running| running.round(messages))?;
            Ok(Sample::of(ns / messages as f64))
        })
    };
    let method = Method::Runs(scale.pick(1, 60, 300), CONFIGURATIONS.map(lane).into());
    let group = format!("{name} on loopback, a buffer a message");
    let mut plan = RowPlan::new(format!("{id}/{size}"), group, format!("{size} B"), method);
    (plan.size_bytes, plan.threads) = (size, 2);
    plan
}

const OLTP_LIMIT: Duration = Duration::from_secs(300);

fn oltp_row(threads: usize, scale: Scale) -> RowPlan {
    let (transactions, rows) = scale.pick((1, 20), (1000, 1000), (8000, 5000));
    let lane = |configuration: Configuration| {
        let task = Task::Oltp(Oltp { configuration, threads, transactions, rows });
        run_lane(configuration.name(), role(configuration), move || child::run(&task, OLTP_LIMIT))
    };
    let method = Method::Runs(scale.pick(1, 3, 7), CONFIGURATIONS.map(lane).into());
    let title = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
    let mut plan = RowPlan::new(format!("oltp/{threads}"), OLTP_GROUP, title, method);
    (plan.threads, plan.live) = (threads, 0);
    plan
}

fn role(configuration: Configuration) -> Role {
    match configuration {
        Configuration::Vanilla => Role::Subject,
        Configuration::HighOrder | Configuration::DeepQueue => Role::Ours,
        Configuration::Glibc => Role::Peer,
    }
}

fn render_build(rows: &[&Row], mode: &str, out: &mut dyn Write) -> std::fmt::Result {
    let Some(first) = rows.first() else { return Ok(()) };
    let title = first.title.rsplit_once(':').map_or("", |(title, _)| title);
    writeln!(out, "\n{title} · uslab in {mode} mode · seconds; percent of medians against {BASELINE}")?;
    let mut grid = Grid::new(&["", "", "mean", "stddev", "min", "max", "median", ""]);
    for (row, figure) in rows.iter().flat_map(|row| row.figures.iter().map(move |figure| (row, figure))) {
        let (mean, deviation, most) = moments(figure);
        let part = row.title.rsplit_once(": ").map_or("", |(_, part)| part);
        let shown = |value| table::value(Some(value), Unit::Seconds);
        grid.row([
            part.to_owned(),
            figure.contestant.clone(),
            shown(mean),
            shown(deviation),
            shown(figure.value.min),
            shown(most),
            shown(figure.value.median),
            percent(figure, row),
        ]);
    }
    if rows.iter().any(|row| !row.figures.is_empty()) {
        grid.write(out)?;
    }
    rows.iter().take(1).try_for_each(|row| table::skipped(std::slice::from_ref(*row), out))
}

/// Mean, standard deviation of the sample, and the largest of all runs.
fn moments(figure: &Figure) -> (f64, f64, f64) {
    let one = [[0.0, figure.value.median]];
    let runs = figure.series.get("value_by_run").map_or(one.as_slice(), Vec::as_slice);
    let n = runs.len() as f64;
    let mean = runs.iter().map(|run| run[1]).sum::<f64>() / n;
    let squares = runs.iter().map(|run| (run[1] - mean).powi(2)).sum::<f64>();
    let most = runs.iter().map(|run| run[1]).fold(f64::MIN, f64::max);
    (mean, (squares / (n - 1.0).max(1.0)).sqrt(), most)
}

fn render_configurations(rows: &[&Row], mode: &str, out: &mut dyn Write) -> std::fmt::Result {
    let Some(first) = rows.first() else { return Ok(()) };
    let unit = if first.group == OLTP_GROUP { "µs a transaction" } else { "ns a message" };
    let scale = if first.group == OLTP_GROUP { 1e3 } else { 1.0 };
    writeln!(
        out,
        "\n{} · uslab in {mode} mode · {unit}, median of the runs; percent against {BASELINE}",
        first.group
    )?;
    let mut header = vec!["", BASELINE];
    for configuration in CONFIGURATIONS.iter().filter(|configuration| configuration.name() != BASELINE) {
        header.extend([configuration.name(), ""]);
    }
    let mut grid = Grid::new(&header);
    for row in rows {
        let shown = |figure: Option<&Figure>| table::number(figure.map(|f| f.value.median / scale));
        let mut cells = vec![row.title.clone(), shown(row.named(BASELINE))];
        for &name in header[2..].iter().step_by(2) {
            let figure = row.named(name);
            cells.extend([shown(figure), figure.map_or(String::new(), |figure| percent(figure, row))]);
        }
        grid.row(cells);
    }
    grid.write(out)?;
    let owned: Vec<Row> = rows.iter().map(|&row| row.clone()).collect();
    table::skipped(&owned, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Cost;
    use std::collections::BTreeMap;

    #[test]
    fn mean_and_deviation_are_of_all_runs() {
        let runs = [2.0, 4.0, 6.0].iter().enumerate().map(|(i, &value)| [i as f64, value]).collect();
        let figure = Figure {
            contestant: "x".into(),
            role: Role::Peer,
            value: Cost { min: 2.0, median: 4.0, median_low: 2.0, median_high: 6.0 },
            cycles: None,
            extra: BTreeMap::new(),
            series: BTreeMap::from([("value_by_run".into(), runs)]),
            ratio: None,
            ratio_of_medians: None,
            ratio_above_floor: None,
            rounds: 3,
            redone: 0,
        };
        assert_eq!(moments(&figure), (4.0, 2.0, 6.0));
        let once = Figure { series: BTreeMap::new(), ..figure };
        assert_eq!(moments(&once), (4.0, 0.0, 4.0));
    }
}

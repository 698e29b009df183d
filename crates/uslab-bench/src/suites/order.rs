//! Suite `order`: the knobs of 2009. A build under LD_PRELOAD; messages of 13 sizes over UDP and
//! TCP; transactions by 1 to 16 threads. Every cell with its percent against glibc, and "~" where
//! confidence is too low.
//!
//! Six configurations were compared then: two allocators, each vanilla, with operations on this
//! CPU, and with slabs of high order. Here they are uslab with and without restartable sequences
//! (`--both-modes`), each vanilla, with slabs of high order, and with deeper queues. A preloaded
//! library has no knobs, so a build has one configuration a mode.

use super::{Context, RowPlan, Suite, Tables};
use crate::child;
use crate::measure::{Errand, Lane, Method, Sample};
use crate::order::loopback::{Loopback, Protocol};
use crate::order::oltp::Oltp;
use crate::order::{CONFIGURATIONS, Configuration};
use crate::preload::{self, Library};
use crate::programs;
use crate::results::{Role, Row, Scale, Unit};
use crate::task::Task;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const MESSAGES: [usize; 13] = [64, 128, 256, 1024, 2048, 3312, 4096, 6144, 8192, 10240, 12288, 14336, 16384];
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

pub const ORDER: Suite = Suite {
    tables: Tables::Lines,
    ..Suite::new(
        "order",
        "the knobs: slab order and queue depth under a build, UDP and TCP messages of 13 sizes, \
         SQLite by 1 to 16 threads",
        rows,
    )
};

fn rows(context: &Context) -> Vec<RowPlan> {
    let scale = context.options.scale();
    let mut rows = build_rows(scale);
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        rows.extend(MESSAGES.iter().map(|&size| message_row(protocol, size, scale, context.cpus.second)));
    }
    rows.extend(THREADS.iter().map(|&threads| oltp_row(threads, scale)));
    rows
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
        let title = format!("{}: {part}", (programs::BUILD.title)(scale));
        let row = Row::new(format!("build/{part}"), "make -j of a generated project", title);
        Row { unit: Unit::Seconds, live: 0, ..row }.by(method)
    };
    ["elapsed", "user", "system"].map(row).into()
}

fn build_lane(
    library: &'static Library,
    role: Role,
    builds: Builds,
    part: &'static str,
    scale: Scale,
) -> Lane<Errand> {
    let mut turn = 0;
    Lane::of_runs(library.name, role, move || {
        let mut builds = builds.borrow_mut();
        if builds.len() == turn {
            builds.push(super::programs::run(programs::BUILD.name, &library.find()?, scale)?);
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
        Lane::of_runs(configuration.name(), role(configuration), move || {
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
    let row = Row::new(format!("{id}/{size}"), group, format!("{size} B"));
    Row { size_bytes: size, threads: 2, ..row }.by(method)
}

const OLTP_LIMIT: Duration = Duration::from_secs(300);

fn oltp_row(threads: usize, scale: Scale) -> RowPlan {
    let (transactions, rows) = scale.pick((1, 20), (1000, 1000), (8000, 5000));
    let lane = |configuration: Configuration| {
        let task = Task::Oltp(Oltp { configuration, threads, transactions, rows });
        Lane::of_runs(configuration.name(), role(configuration), move || child::run(&task, OLTP_LIMIT))
    };
    let method = Method::Runs(scale.pick(1, 3, 7), CONFIGURATIONS.map(lane).into());
    let title = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
    let row = Row::new(format!("oltp/{threads}"), "transactions on SQLite", title);
    Row { threads, live: 0, ..row }.by(method)
}

fn role(configuration: Configuration) -> Role {
    match configuration {
        Configuration::Vanilla => Role::Subject,
        Configuration::HighOrder | Configuration::DeepQueue => Role::Ours,
        Configuration::Glibc => Role::Peer,
    }
}

//! Suite `hardening`: whole programs under uslab as it comes, with each mitigation of
//! `USLAB_SECURE` alone, and with all.
//!
//! The programs allocate much for what they do: a compiler, a database, and a script's trees. The
//! suite judges processor time, user and system together, of "all" by the row's target.

use super::programs::run_hardened;
use super::shared::Runs;
use super::{Context, RowPlan, Suite};
use crate::measure::{Method, Sample};
use crate::preload;
use crate::programs::{Workload, cpp, scripts, sqlite};
use crate::results::{Role, Row, Scale, Unit};

pub const HARDENING: Suite =
    Suite::new("hardening", "whole programs with each mitigation of USLAB_SECURE alone, and with all", rows);

const WORKLOADS: [&Workload; 3] = [&cpp::UNIT, &sqlite::INDEX, &scripts::LUA];

/// The lanes: their names, and the values of the variable.
const VALUES: [(&str, &str); 8] = [
    ("all", "1"),
    ("off", "0"),
    ("check", "check"),
    ("canary", "canary"),
    ("zero", "zero"),
    ("quarantine", "quarantine"),
    ("order", "order"),
    ("ranges", "ranges"),
];

/// Processor time of "all" to that of "off".
const TARGET: f64 = 1.3;

fn rows(context: &Context) -> Vec<RowPlan> {
    // For function, the program that starts fastest is enough.
    let scale = context.options.scale();
    let workloads = if scale == Scale::Check { &WORKLOADS[1..2] } else { &WORKLOADS[..] };
    workloads.iter().flat_map(|workload| rows_of(workload, context)).collect()
}

fn rows_of(workload: &'static Workload, context: &Context) -> [RowPlan; 2] {
    let scale = context.options.scale();
    let runs = VALUES.map(|(name, value)| {
        let role = match name {
            "all" => Role::Subject,
            "off" => Role::Peer,
            _ => Role::Ours,
        };
        let run = move || run_hardened(workload.name, &preload::USLAB.find()?, scale, value);
        (name, role, Runs::new(run))
    });
    let times = context.options.runs.unwrap_or(scale.pick(1, 1, 5));
    [
        (
            "cpu",
            "hardened programs: user and system time",
            Unit::Seconds,
            Some(TARGET),
            &["user_s", "system_s"][..],
        ),
        ("peak", "hardened programs: peak of resident memory", Unit::Bytes, None, &["peak_bytes"]),
    ]
    .map(|(id, group, unit, target, extras)| {
        let read = move |sample: &Sample| {
            let sum: f64 = extras.iter().filter_map(|name| sample.extra.get(*name)).sum();
            // A run too short for a tick of its clock has a figure above nothing all the same.
            Ok(Sample::of(sum.max(1e-6)))
        };
        let lanes = runs.iter().map(|(name, role, runs)| runs.lane(name, *role, read)).collect();
        let row = Row::new(format!("hardening/{}/{id}", workload.name), group, (workload.title)(scale));
        Row { unit, live: 0, target, ..row }.by(Method::Runs(times, lanes))
    })
}

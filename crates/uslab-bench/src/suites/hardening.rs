//! Suite `hardening`: whole programs under uslab as it comes, with each mitigation of
//! `USLAB_SECURE` alone, and with all.
//!
//! Three programs that allocate much for what they do have a lane for each mitigation: a compiler,
//! a database, and a script's trees. The other programs of suite `programs` run with all and with
//! none. The suite judges processor time, user and system together, of "all" by the row's target.

use super::programs::{CPU, MEAN, PEAK, read, run_hardened};
use super::shared::Runs;
use super::{Context, RowPlan, Suite};
use crate::measure::{Method, Sample};
use crate::overall;
use crate::preload;
use crate::programs::{WORKLOADS, Workload, cpp, scripts, sqlite};
use crate::results::{Role, Row, Scale};

pub const HARDENING: Suite = Suite {
    notes: overall::lines,
    ..Suite::new("hardening", "whole programs with each mitigation of USLAB_SECURE alone, and with all", rows)
};

/// The programs with a lane for each mitigation.
const DETAILED: [&Workload; 3] = [&cpp::UNIT, &sqlite::INDEX, &scripts::LUA];

/// The lanes: their names, and the values of the variable. Each program has the first two.
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
    let workloads = match context.options.scale() {
        // For function, the program that starts fastest is enough.
        Scale::Check => &DETAILED[1..2],
        Scale::Quick => &DETAILED[..],
        Scale::Full => &WORKLOADS[..],
    };
    workloads.iter().flat_map(|workload| rows_of(workload, context)).collect()
}

fn rows_of(workload: &'static Workload, context: &Context) -> [RowPlan; 3] {
    let scale = context.options.scale();
    let is_detailed = DETAILED.iter().any(|detailed| detailed.name == workload.name);
    let values = if is_detailed { &VALUES[..] } else { &VALUES[..2] };
    let runs = values.iter().map(|&(name, value)| {
        let role = match name {
            "all" => Role::Subject,
            "off" => Role::Peer,
            _ => Role::Ours,
        };
        let run = move || run_hardened(workload.name, &preload::USLAB.find()?, scale, value);
        (name, role, Runs::new(run))
    });
    let runs: Vec<_> = runs.collect();
    let times = context.options.runs.unwrap_or(scale.pick(1, 1, 5));
    [
        (&CPU, "hardened programs: user and system time", Some(TARGET)),
        (&PEAK, "hardened programs: peak of resident memory", None),
        (&MEAN, "hardened programs: mean resident memory over the run", None),
    ]
    .map(|(reading, group, target)| {
        let read = |sample: &Sample| Ok(Sample::of(read(reading, sample)));
        let lanes = runs.iter().map(|(name, role, runs)| runs.lane(name, *role, read)).collect();
        let row =
            Row::new(format!("hardening/{}/{}", workload.name, reading.id), group, (workload.title)(scale));
        Row { unit: reading.unit, live: 0, target, ..row }.by(Method::Runs(times, lanes))
    })
}

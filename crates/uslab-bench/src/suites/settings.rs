//! Suites `hardening` and `profile`: whole programs under uslab with a setting, beside the same
//! programs without it.
//!
//! Suite `hardening` runs the programs of suite `programs` with all mitigations of `USLAB_SECURE`
//! and with none. Three programs that allocate much for what they do also have a lane for each
//! mitigation: a compiler, a database, and a script's trees. Suite `profile` runs the programs with
//! a heap profile at the default period and without one.
//!
//! The suites judge processor time, user and system together, by the row's target.

use super::programs::{CPU, MEAN, PEAK, read, run_with};
use super::shared::Runs;
use super::{Context, RowPlan, Suite};
use crate::measure::{Method, Sample};
use crate::overall;
use crate::preload;
use crate::programs::{WORKLOADS, Workload, cpp, scripts, sqlite};
use crate::results::{Role, Row, Scale};

pub const HARDENING: Suite = suite(
    "hardening",
    "whole programs with each mitigation of USLAB_SECURE alone, and with all",
    |context| rows(&USLAB_SECURE, context),
);

pub const PROFILE: Suite =
    suite("profile", "whole programs with a heap profile at the default period, and without", |context| {
        rows(&USLAB_PROFILE, context)
    });

const fn suite(name: &'static str, summary: &'static str, rows: fn(&Context) -> Vec<RowPlan>) -> Suite {
    Suite { notes: overall::lines, ..Suite::new(name, summary, rows) }
}

/// The programs with a lane for each value, and the ones of a quick run.
const DETAILED: [&Workload; 3] = [&cpp::UNIT, &sqlite::INDEX, &scripts::LUA];

/// A setting that a suite compares.
struct Setting {
    /// The first part of row ids.
    id: &'static str,
    variable: &'static str,
    /// The lanes: their names, and the values of the variable. The first is judged beside the
    /// second, and each program has these two.
    values: &'static [(&'static str, &'static str)],
    /// Processor time of the first lane to that of the second.
    target: f64,
    /// The tables of processor time, of peak and of mean memory.
    groups: [&'static str; 3],
}

static USLAB_SECURE: Setting = Setting {
    id: "hardening",
    variable: "USLAB_SECURE",
    values: &[
        ("all", "1"),
        ("off", "0"),
        ("check", "check"),
        ("canary", "canary"),
        ("zero", "zero"),
        ("quarantine", "quarantine"),
        ("order", "order"),
        ("ranges", "ranges"),
    ],
    target: 1.3,
    groups: [
        "hardened programs: user and system time",
        "hardened programs: peak of resident memory",
        "hardened programs: mean resident memory over the run",
    ],
};

static USLAB_PROFILE: Setting = Setting {
    id: "profile",
    variable: "USLAB_PROFILE",
    values: &[("profile", "1"), ("off", "0")],
    target: 1.01,
    groups: [
        "profiled programs: user and system time",
        "profiled programs: peak of resident memory",
        "profiled programs: mean resident memory over the run",
    ],
};

fn rows(setting: &'static Setting, context: &Context) -> Vec<RowPlan> {
    let workloads = match context.options.scale() {
        // For function, the program that starts fastest is enough.
        Scale::Check => &DETAILED[1..2],
        Scale::Quick => &DETAILED[..],
        Scale::Full => &WORKLOADS[..],
    };
    workloads.iter().flat_map(|workload| rows_of(workload, setting, context)).collect()
}

fn rows_of(workload: &'static Workload, setting: &'static Setting, context: &Context) -> [RowPlan; 3] {
    let scale = context.options.scale();
    let is_detailed = DETAILED.iter().any(|detailed| detailed.name == workload.name);
    let values = if is_detailed { setting.values } else { &setting.values[..2] };
    let runs = values.iter().enumerate().map(|(index, &(name, value))| {
        let role = [Role::Subject, Role::Peer].get(index).copied().unwrap_or(Role::Ours);
        let settings = vec![(setting.variable.to_owned(), value.to_owned())];
        let run = move || run_with(workload.name, &preload::USLAB.find()?, scale, settings.clone());
        (name, role, Runs::new(run))
    });
    let runs: Vec<_> = runs.collect();
    let times = context.options.runs.unwrap_or(scale.pick(1, 1, 5));
    let [cpu, peak, mean] = setting.groups;
    [(&CPU, cpu, Some(setting.target)), (&PEAK, peak, None), (&MEAN, mean, None)].map(
        |(reading, group, target)| {
            let read = |sample: &Sample| Ok(Sample::of(read(reading, sample)?));
            let lanes = runs.iter().map(|(name, role, runs)| runs.lane(name, *role, read)).collect();
            let id = format!("{}/{}/{}", setting.id, workload.name, reading.id);
            let row = Row::new(id, group, (workload.title)(scale));
            Row { unit: reading.unit, live: 0, target, ..row }.by(Method::Runs(times, lanes))
        },
    )
}

//! Suite `programs`: whole programs, each under each allocator by LD_PRELOAD: processor time,
//! elapsed time, and the peak and the mean of resident memory.
//!
//! This is what a user of the library meets who changes nothing but a variable. Programs do more
//! than allocate, so differences are small where one call differs manifold. Runs are few, and the
//! mark "~" stands where they do not tell two allocators apart. The readings of a program are rows
//! of the same runs. The suite judges processor time, user and system together: other users of the
//! machine disturb it less than elapsed time. The peak is that of the largest process; the mean is
//! that of all processes over the run (resident.rs).
//!
//! Every run has a process and a folder of its own; its input is generated and the same each time.
//! An allocator that is not there is left out with the name of its package, and so is a program.

use super::shared::{Lanes, Runs, libraries};
use super::{Context, RowPlan, Suite};
use crate::child;
use crate::measure::{Method, Sample};
use crate::overall;
use crate::preload::{self, Library};
use crate::programs::{Job, Settings, WORKLOADS, Workload, scratch, sqlite};
use crate::results::{Role, Row, Run, Scale, Unit};
use crate::task::Task;
use std::path::Path;
use std::time::Duration;

pub const PROGRAMS: Suite = Suite {
    notes,
    ..Suite::new(
        "programs",
        "whole programs under LD_PRELOAD of each allocator: processor and elapsed time, peak and mean memory",
        rows,
    )
};

/// What is read of a run: the end of a row's id, the table, the unit and the target.
pub(super) struct Reading {
    pub id: &'static str,
    group: &'static str,
    pub unit: Unit,
    target: Option<f64>,
    /// Of a run's extras, summed; of none, the run's value, which is elapsed time.
    of: &'static [&'static str],
}

pub(super) const CPU: Reading = Reading {
    id: "cpu",
    group: "whole programs under LD_PRELOAD: user and system time",
    unit: Unit::Seconds,
    target: Some(1.04),
    of: &["user_s", "system_s"],
};

pub(super) const PEAK: Reading = Reading {
    id: "peak",
    group: "whole programs: peak of resident memory",
    unit: Unit::Bytes,
    target: Some(1.05),
    of: &["peak_bytes"],
};

pub(super) const MEAN: Reading = Reading {
    id: "mean",
    group: "whole programs: mean resident memory over the run",
    unit: Unit::Bytes,
    target: None,
    of: &["mean_bytes"],
};

const READINGS: [&Reading; 5] = [
    &CPU,
    &Reading {
        id: "user",
        group: "whole programs: user time",
        unit: Unit::Seconds,
        target: None,
        of: &["user_s"],
    },
    &Reading {
        id: "elapsed",
        group: "whole programs: elapsed time",
        unit: Unit::Seconds,
        target: None,
        of: &[],
    },
    &PEAK,
    &MEAN,
];

fn rows(context: &Context) -> Vec<RowPlan> {
    let runs = WORKLOADS.map(|workload| (workload, runs_of(workload, context)));
    READINGS.iter().flat_map(|reading| runs.iter().map(|(w, runs)| row(w, reading, runs, context))).collect()
}

/// The runs of each allocator, ours first.
fn runs_of(workload: &'static Workload, context: &Context) -> Lanes {
    let scale = context.options.scale();
    // For function, every peer of the system with the program that starts fastest is enough.
    let all = scale != Scale::Check;
    let taken = move |peer: &Library| {
        all || peer.name == preload::GLIBC.name || (workload.name == sqlite::INDEX.name && peer.is_packaged())
    };
    libraries(taken)
        .map(|(library, role)| {
            (library, role, Runs::new(move || run(workload.name, &library.find()?, scale)))
        })
        .collect()
}

fn row(workload: &Workload, reading: &'static Reading, runs: &Lanes, context: &Context) -> RowPlan {
    let lanes = runs.iter().map(|(library, role, runs)| {
        runs.lane(library.name, *role, |sample| Ok(Sample::of(read(reading, sample)?)))
    });
    let lanes = lanes.collect();
    let scale = context.options.scale();
    let id = format!("program/{}/{}", workload.name, reading.id);
    let row = Row::new(id, reading.group, (workload.title)(scale));
    let times = context.options.runs.unwrap_or(scale.pick(1, 1, 5));
    Row { unit: reading.unit, live: 0, target: reading.target, ..row }.by(Method::Runs(times, lanes))
}

/// A run too short for a tick of its clock has a figure above nothing all the same. A run without
/// one of the extras has no figure: no other reading may stand for it.
pub(super) fn read(reading: &Reading, sample: &Sample) -> Result<f64, String> {
    if reading.of.is_empty() {
        return Ok(sample.value);
    }
    let extra = |name: &&str| {
        sample.extra.get(*name).copied().ok_or_else(|| format!("the run has no reading {name}"))
    };
    let figures: Vec<f64> = reading.of.iter().map(extra).collect::<Result<_, _>>()?;
    Ok(figures.iter().sum::<f64>().max(1e-6))
}

/// How many programs meet what is asked of all together, and where each allocator stands.
fn notes(run: &Run) -> Vec<String> {
    let mut lines: Vec<String> = [(&CPU, [1.0, 1.04]), (&PEAK, [1.0, 1.05]), (&MEAN, [1.0, 1.05])]
        .iter()
        .filter_map(|(reading, bounds)| Some(counts(&ratios(run, reading)?, reading, *bounds)))
        .collect();
    lines.extend(overall::lines(run));
    lines
}

/// Of each program, ours to the best peer's; nothing where no row has one.
fn ratios(run: &Run, reading: &Reading) -> Option<Vec<f64>> {
    let rows = run.rows.iter().filter(|row| row.group == reading.group);
    let ratios: Vec<f64> = rows.filter_map(|row| row.figure(Role::Subject)?.ratio).collect();
    (!ratios.is_empty()).then_some(ratios)
}

fn counts(ratios: &[f64], reading: &Reading, bounds: [f64; 2]) -> String {
    let met = bounds.map(|bound| ratios.iter().filter(|&&ratio| ratio <= bound).count());
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    format!(
        "{} to the best peer of each: ≤ {:.2} in {} of {}, ≤ {:.2} in {}; geometric mean {mean:.3}",
        reading.id,
        bounds[0],
        met[0],
        ratios.len(),
        bounds[1],
        met[1]
    )
}

/// Long enough for the slowest machine; it ends a hang.
const LIMIT: Duration = Duration::from_secs(600);

/// One run of `workload` under `library`, in a child and a folder of its own.
pub fn run(workload: &str, library: &Path, scale: Scale) -> Result<Sample, String> {
    run_with(workload, library, scale, Settings::new())
}

/// [`run`], with these variables.
pub fn run_with(workload: &str, library: &Path, scale: Scale, settings: Settings) -> Result<Sample, String> {
    let folder = scratch()?;
    let (workload, library, place) = (workload.into(), library.into(), folder.path().to_owned());
    let job = Job { workload, library, scale, folder: place, settings };
    child::run(&Task::Program(job), LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_counted_against_both_bounds() {
        let text = counts(&[0.5, 1.0, 1.04, 2.0], &CPU, [1.0, 1.04]);
        assert!(text.starts_with("cpu to the best peer of each: ≤ 1.00 in 2 of 4, ≤ 1.04 in 3; "), "{text}");
        assert!(text.ends_with("mean 1.010"), "{text}");
    }

    #[test]
    fn a_reading_sums_its_extras_is_never_nothing_and_takes_no_other() {
        let mut sample = Sample::of(9.0);
        for (name, value) in [("user_s", 1.5), ("system_s", 0.25), ("peak_bytes", 4096.0)] {
            sample.extra.insert(name.into(), value);
        }
        assert_eq!(read(&CPU, &sample), Ok(1.75));
        assert_eq!(read(&PEAK, &sample), Ok(4096.0));
        assert!(read(&MEAN, &sample).unwrap_err().contains("mean_bytes"));
        sample.extra.insert("mean_bytes".into(), 1024.0);
        assert_eq!(read(&MEAN, &sample), Ok(1024.0));
        sample.extra.insert("user_s".into(), 0.0);
        sample.extra.insert("system_s".into(), 0.0);
        assert!(read(&CPU, &sample).unwrap() > 0.0);
    }
}

//! Suite `programs`: whole programs, each under each allocator by LD_PRELOAD: elapsed, user and
//! system seconds and the peak of resident memory.
//!
//! This is what a user of the library meets who changes nothing but a variable. Programs do much
//! else than allocate, so differences are small where figures of one call differ manifold; runs are
//! few, and the mark "~" says where they do not tell two allocators apart. Libraries of peers are
//! Debian's; one that is not installed is left out with the name of its package, and so is a
//! program.

use super::{Context, RowPlan, Suite, Tables};
use crate::child;
use crate::measure::{Errand, Lane, Method, Sample};
use crate::preload::{self, Library};
use crate::programs::{Job, WORKLOADS, Workload, scratch, sqlite};
use crate::results::{Role, Row, Scale, Unit};
use crate::task::Task;
use std::path::Path;
use std::time::Duration;

pub const PROGRAMS: Suite = Suite {
    tables: Tables::Lines,
    ..Suite::new(
        "programs",
        "redis, python, g++ and sqlite3 under LD_PRELOAD of each allocator: time and peak memory",
        |context| WORKLOADS.map(|workload| row(workload, context)).into(),
    )
};

fn row(workload: &'static Workload, context: &Context) -> RowPlan {
    let scale = context.options.scale();
    let lane = |library: &'static Library, role| -> Lane<Errand> {
        Lane::of_runs(library.name, role, move || run(workload.name, &library.find()?, scale))
    };
    // For function, every peer with the program that starts fastest is enough.
    let all = scale != Scale::Check || workload.name == sqlite::INDEX.name;
    let peers = preload::PEERS.iter().filter(|peer| all || peer.name == preload::GLIBC.name);
    let lanes = [lane(&preload::USLAB, Role::Subject)].into_iter();
    let lanes = lanes.chain(peers.map(|peer| lane(peer, Role::Peer))).collect();
    let id = format!("program/{}", workload.name);
    let row = Row::new(id, "whole programs under LD_PRELOAD", (workload.title)(scale));
    Row { unit: Unit::Seconds, live: 0, ..row }.by(Method::Runs(scale.pick(1, 1, 5), lanes))
}

/// Long enough for the slowest machine; it ends a hang.
const LIMIT: Duration = Duration::from_secs(600);

/// One run of `workload` under `library`, in a child and a folder of its own.
pub fn run(workload: &str, library: &Path, scale: Scale) -> Result<Sample, String> {
    let folder = scratch()?;
    let (workload, library, place) = (workload.into(), library.into(), folder.path().to_owned());
    let job = Job { workload, library, scale, folder: place };
    child::run(&Task::Program(job), LIMIT)
}

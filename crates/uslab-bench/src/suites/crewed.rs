//! What the suites of several threads share: who takes part, how many threads, how much of each.
//!
//! Must never: give two contestants of a row different numbers of anything.

use super::{Context, lane};
use crate::contestants::{self, Entry, uslab_malloc};
use crate::measure::{Lane, Method, RunLane, Sample};
use crate::results::Role;
use crate::rounds::crew::{CrewWork, Job};
use std::sync::Arc;

/// Rounds up to which a run is a first look.
const QUICK_ROUNDS: usize = 60;

/// Runs of each lane where rounds will not do: for function, at a first look, in earnest.
const RUNS: [usize; 3] = [1, 3, 7];

/// uslab's malloc, which is judged, and everybody else's.
pub fn everybody() -> impl Iterator<Item = (Entry, Role)> {
    let peers = contestants::peers().iter().map(|&peer| (peer, Role::Peer));
    std::iter::once((uslab_malloc::CALLED, Role::Subject)).chain(peers)
}

/// As many threads as CPUs, and four times as many; two at least.
pub fn counts(context: &Context) -> [usize; 2] {
    let cpus = context.cpus.allowed;
    [cpus.max(2), (4 * cpus).max(4)]
}

/// One of three: for function, at a first look, in earnest.
pub fn by_length<T: Copy>(context: &Context, choices: [T; 3]) -> T {
    match (context.options.check, context.options.rounds <= QUICK_ROUNDS) {
        (true, _) => choices[0],
        (_, true) => choices[1],
        _ => choices[2],
    }
}

/// Rounds of the context's crew: `operations` in all threads for a repetition, and what the threads do in a round of
/// so many repetitions.
pub fn crew_lane(
    context: &Context,
    name: impl Into<String>,
    role: Role,
    (threads, operations, repeats): (usize, usize, usize),
    job: impl Fn(usize) -> Job + 'static,
) -> Lane {
    let crew = Arc::clone(&context.crew);
    let work = CrewWork { crew, threads, objects_per_repeat: operations, repeats, job: Arc::new(job) };
    lane(name, role, Box::new(work))
}

/// Runs of everybody, each of which makes `operations` and returns the nanoseconds they took.
pub fn runs(context: &Context, operations: usize, run: impl Fn(Entry) -> Box<dyn FnMut() -> f64>) -> Method {
    let lanes = everybody().map(|(entry, role)| {
        let mut run = run(entry);
        RunLane {
            name: entry.name.into(),
            role,
            run: Box::new(move || Ok(Sample::of(run() / operations as f64))),
        }
    });
    Method::Runs(by_length(context, RUNS), lanes.collect())
}

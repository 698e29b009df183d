//! `uslab metrics`: the figures of processes for Prometheus and the tools that read its formats.
//!
//! Three ways out, one text: printed once, written to a file for node_exporter's textfile
//! collector, or served over HTTP.

mod exposition;
mod families;
mod serve;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use crate::accounts::Parts;
use crate::args::Metrics;
use crate::failure::{FAILED, Failure, Outcome, complain, print};
use crate::find::{find_all, in_containers, publishing_copies};
use crate::snapshot::Snapshot;
use crate::{output, process, residence, snapdir};

pub use exposition::Format;

/// One process at one instant.
pub struct Process {
    pub snapshot: Snapshot,
    pub command: String,
    /// `None` for a process that ended between the two reads, or that shows no memory.
    pub parts: Option<Parts>,
}

/// Prints, writes or serves the metrics.
pub fn metrics(options: &Metrics) -> Outcome {
    let named = Named::new(&options.pids);
    if let Some(address) = options.listen {
        return serve::serve(address, &named);
    }
    let Some(file) = &options.output else {
        return print(&named.first_text(options.format.unwrap_or(Format::OpenMetrics))?);
    };
    let format = options.format.unwrap_or(Format::Prometheus);
    write(file, &named.first_text(format)?)?;
    let Some(seconds) = options.every else { return Ok(0) };
    loop {
        sleep(Duration::from_secs(seconds));
        match named.text(format) {
            Ok(text) => write(file, &text)?,
            Err(failure) => {
                // Figures of processes that are gone would be collected for ever.
                write(file, &text(&[], format))?;
                return Err(failure);
            }
        }
    }
}

fn text(processes: &[Process], format: Format) -> String {
    exposition::text(&families::of(processes), format)
}

/// The processes that the user named: none stands for all that publish.
pub struct Named {
    pids: Vec<i32>,
    /// Those that could not be read at the last time.
    missing: Mutex<BTreeSet<i32>>,
}

impl Named {
    fn new(pids: &[i32]) -> Named {
        // Two samples of one series are an error to those who read them.
        let mut pids = pids.to_vec();
        pids.sort_unstable();
        pids.dedup();
        Named { pids, missing: Mutex::default() }
    }

    /// The metrics, if every process can be read.
    fn first_text(&self, format: Format) -> Result<String, Failure> {
        let (snapshots, failures) = self.read();
        match failures.into_iter().next() {
            Some((_, failure)) => Err(failure),
            None => Ok(shown(snapshots, format)),
        }
    }

    /// The metrics of the processes that can still be read, if there are any. Of each other one the
    /// user is told once.
    fn text(&self, format: Format) -> Result<String, Failure> {
        let (snapshots, mut failures) = self.read();
        let missing = failures.iter().map(|(pid, _)| *pid).collect();
        let mut known = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *known, missing);
        drop(known);
        if snapshots.is_empty() && !failures.is_empty() {
            return Err(failures.swap_remove(0).1);
        }
        for (_, failure) in failures.iter().filter(|(pid, _)| !before.contains(pid)) {
            complain(&failure.message);
        }
        Ok(shown(snapshots, format))
    }

    fn read(&self) -> (Vec<Snapshot>, Vec<(i32, Failure)>) {
        if self.pids.is_empty() {
            return (everything(), Vec::new());
        }
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        for &pid in &self.pids {
            match find_all(pid) {
                Ok(snapshots) => found.extend(snapshots),
                Err(failure) => failures.push((pid, failure)),
            }
        }
        (found, failures)
    }
}

fn shown(snapshots: Vec<Snapshot>, format: Format) -> String {
    text(&snapshots.into_iter().map(with_memory).collect::<Vec<_>>(), format)
}

/// Snapshots of all processes of this user, of each copy of the library.
fn everything() -> Vec<Snapshot> {
    let mut found: Vec<Snapshot> =
        snapdir::own().iter().flat_map(|directory| publishing_copies(directory)).collect();
    found.extend(in_containers().into_iter().flat_map(|pid| find_all(pid).unwrap_or_default()));
    found.sort_by_key(|snapshot| (snapshot.pid, snapshot.copy));
    found.dedup_by_key(|snapshot| (snapshot.pid, snapshot.copy));
    found
}

fn with_memory(snapshot: Snapshot) -> Process {
    let command = i32::try_from(snapshot.pid).ok().and_then(process::command_name);
    let parts = residence::read(&snapshot).map(|residence| Parts::of(&snapshot, residence));
    Process { command: command.unwrap_or_else(|| "?".to_owned()), parts, snapshot }
}

/// Replaces the file, so that a collector never reads half of it. Every user may read it, as the
/// collector's own user must.
fn write(file: &Path, text: &str) -> Result<(), Failure> {
    output::replace(file, text.as_bytes(), Some(0o644))
        .map_err(|error| Failure::new(FAILED, format_args!("cannot write {}: {error}", file.display())))
}

//! `uslab metrics`: the figures of processes for Prometheus and the tools that read its formats.
//!
//! Three ways out, one text: printed once, written to a file for node_exporter's textfile
//! collector, or served over HTTP.

mod exposition;
mod families;
mod serve;

use std::path::Path;
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
    /// `None` for a process that ended between the two looks, or that shows no memory.
    pub parts: Option<Parts>,
}

/// Prints, writes or serves the metrics.
pub fn metrics(options: &Metrics) -> Outcome {
    if let Some(address) = options.listen {
        return serve::serve(address, &options.pids);
    }
    let Some(file) = &options.output else {
        return print(&text(&options.pids, options.format.unwrap_or(Format::OpenMetrics))?);
    };
    let format = options.format.unwrap_or(Format::Prometheus);
    loop {
        write(file, &text(&options.pids, format)?)?;
        match options.every {
            Some(seconds) => sleep(Duration::from_secs(seconds)),
            None => return Ok(0),
        }
    }
}

/// The metrics of these processes, or of all that publish if there are none.
fn text(pids: &[i32], format: Format) -> Result<String, Failure> {
    Ok(exposition::text(&families::of(&look(pids)?), format))
}

fn look(pids: &[i32]) -> Result<Vec<Process>, Failure> {
    let snapshots = if pids.is_empty() {
        everything()
    } else {
        let found: Vec<_> = pids.iter().map(|&pid| find_all(pid)).collect::<Result<_, _>>()?;
        found.into_iter().flatten().collect()
    };
    Ok(snapshots.into_iter().map(with_memory).collect())
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

/// Reports that a scrape found nothing to show.
fn refused(failure: &Failure) {
    complain(&failure.message);
}

//! `uslab metrics`: the figures of processes for Prometheus and the tools that read its formats.
//!
//! Three ways out, one text: printed once, written to a file for node_exporter's textfile
//! collector, or served over HTTP.

mod exposition;
mod families;
mod serve;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::accounts::Parts;
use crate::args::Metrics;
use crate::failure::{FAILED, Failure, Outcome, complain, print};
use crate::find::{find, in_containers, publishing};
use crate::snapshot::Snapshot;
use crate::{process, residence, snapdir};

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
        pids.iter().map(|&pid| find(pid)).collect::<Result<_, _>>()?
    };
    Ok(snapshots.into_iter().map(with_memory).collect())
}

/// Snapshots of all processes of this user.
fn everything() -> Vec<Snapshot> {
    let directories = snapdir::own();
    let mut found: Vec<Snapshot> =
        directories.iter().flat_map(|directory| publishing(directory)).map(|(found, _)| found).collect();
    found.extend(in_containers().into_iter().map(|(found, _)| found));
    found.sort_by_key(|snapshot| snapshot.pid);
    found.dedup_by_key(|snapshot| snapshot.pid);
    found
}

fn with_memory(snapshot: Snapshot) -> Process {
    let command = i32::try_from(snapshot.pid).ok().and_then(process::command_name);
    let parts = residence::read(&snapshot).map(|residence| Parts::of(&snapshot, residence));
    Process { command: command.unwrap_or_else(|| "?".to_owned()), parts, snapshot }
}

/// Replaces the file in one step, so that a collector never reads half of it. Every user may read
/// it, as the collector's own user must.
fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let fail = |error| Failure::new(FAILED, format_args!("cannot write {}: {error}", file.display()));
    let Some(name) = file.file_name() else {
        return Err(Failure::new(FAILED, format_args!("cannot write {}: it names no file", file.display())));
    };
    // Collectors read names that end in `.prom`: the temporary name must not.
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = file.with_file_name(temporary);
    let written =
        fs::OpenOptions::new().write(true).create_new(true).open(&temporary).and_then(|mut made| {
            made.write_all(text.as_bytes())?;
            made.set_permissions(fs::Permissions::from_mode(0o644))?;
            fs::rename(&temporary, file)
        });
    written.inspect_err(|_| drop(fs::remove_file(&temporary))).map_err(fail)
}

/// Reports that a scrape found nothing to show.
fn refused(failure: &Failure) {
    complain(&failure.message);
}

//! `uslab info`: the caches of a running process, or the processes that publish.

use crate::args::Info;
use crate::failure::{FAILED, Failure, Outcome, complain, print};
use crate::find::{find, find_copy, in_containers, named, note_copies, publishing};
use crate::snapshot::Snapshot;
use crate::{json, process, residence, snapdir, text};

/// Prints what was asked for.
pub fn info(options: &Info) -> Outcome {
    for directory in snapdir::own() {
        snapdir::sweep(&directory);
    }
    match options.pid {
        Some(pid) => one(pid, options),
        None => list(options),
    }
}

fn one(pid: i32, options: &Info) -> Outcome {
    let snapshot = find_copy(pid, options.copy)?;
    note_copies(&snapshot, options.copy);
    let command = process::command_name(pid).unwrap_or_else(|| "?".to_owned());
    if options.settings {
        return print(text::settings::text(&snapshot, process::boot_ns()));
    }
    if options.json && options.reports.numa {
        return print(json::by_node(&snapshot, &command, residence::read_by_node(&snapshot)));
    }
    let report = options.reports.text(&snapshot).map_err(|reason| Failure::new(FAILED, reason))?;
    if let Some(report) = report {
        return print(&report);
    }
    print(&match (options.json, options.table) {
        (true, _) => json::process(&snapshot, &command),
        (_, true) => text::table::text(&snapshot, &command),
        _ => text::slabinfo::text(&snapshot),
    })
}

fn list(options: &Info) -> Outcome {
    let directories = if options.all { snapdir::everyone() } else { snapdir::own() };
    let mut processes: Vec<(Snapshot, String)> =
        directories.iter().flat_map(|directory| publishing(directory)).collect();
    processes.extend(in_containers().into_iter().filter_map(|pid| find(pid).ok()).map(named));
    processes.sort_by_key(|(snapshot, _)| snapshot.pid);
    processes.dedup_by_key(|(snapshot, _)| snapshot.pid);
    if options.json {
        return print(json::list(&processes));
    }
    if processes.is_empty() {
        complain("no process publishes; start one with `uslab run -- PROGRAM`");
        return Ok(0);
    }
    print(text::list::text(&processes))
}

//! `uslab info`: the caches of a running process, or the processes that publish.

use std::path::{Path, PathBuf};

use crate::args::Info;
use crate::failure::{FAILED, Failure, Outcome, complain, print};
use crate::snapshot::{self, Snapshot, Trouble};
use crate::{json, process, snapdir, text};

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
    let snapshot = find(pid)?;
    let command = process::command_name(pid).unwrap_or_else(|| "?".to_owned());
    print(&match (options.json, options.table) {
        (true, _) => json::process(&snapshot, &command),
        (_, true) => text::table::text(&snapshot, &command),
        _ => text::slabinfo::text(&snapshot),
    })
}

/// Finds the snapshot of a process, or says why there is none to show.
fn find(pid: i32) -> Result<Snapshot, Failure> {
    let fail = |line: String| Failure::new(FAILED, line);
    if !process::alive(pid) {
        return Err(fail(format!("no such process: {pid}")));
    }
    let places = snapdir::of_process(pid);
    let who = match process::command_name(pid) {
        Some(command) => format!("process {pid} ({command})"),
        None => format!("process {pid}"),
    };
    for place in &places {
        let file = place.join(pid.to_string());
        match snapshot::read(&file, pid) {
            Ok(snapshot) if snapdir::is_from_before(snapshot.start_ns, pid) => {}
            Ok(snapshot) => return Ok(snapshot),
            Err(Trouble::Missing) => {}
            Err(Trouble::Denied) => return Err(fail(denied(&who, pid))),
            Err(trouble) => return Err(fail(format!("cannot read the snapshot of {who}: {trouble}"))),
        }
    }
    // Without a readable environment we may have missed the directory that it was told, so do not
    // claim too much.
    if process::owner(pid).is_some_and(|user| user != snapdir::own_user()) && snapdir::own_user() != 0 {
        return Err(fail(denied(&who, pid)));
    }
    Err(fail(format!("{who} does not run under uslab: there is no snapshot in {}", listed(&places))))
}

fn denied(who: &str, pid: i32) -> String {
    match process::owner(pid) {
        Some(user) => format!("permission denied: {who} belongs to user {user}; ask as that user or as root"),
        None => format!("permission denied: the snapshot of {who} cannot be read"),
    }
}

fn listed(places: &[PathBuf]) -> String {
    if places.is_empty() {
        return "any of the usual directories".to_owned();
    }
    places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ")
}

fn list(options: &Info) -> Outcome {
    let directories = if options.all { snapdir::everyone() } else { snapdir::own() };
    let mut processes: Vec<(Snapshot, String)> =
        directories.iter().flat_map(|directory| publishing(directory)).collect();
    processes.sort_by_key(|(snapshot, _)| snapshot.pid);
    if options.json {
        return print(&json::list(&processes));
    }
    if processes.is_empty() {
        complain("no process publishes; start one with `uslab run -- PROGRAM`");
        return Ok(0);
    }
    print(&text::list::text(&processes))
}

/// Processes that are alive and have a snapshot in this directory. One that cannot be read is not
/// silently left out.
fn publishing(directory: &Path) -> Vec<(Snapshot, String)> {
    let mut found = Vec::new();
    for pid in snapdir::pids(directory).into_iter().filter(|&pid| process::alive(pid)) {
        let file = directory.join(pid.to_string());
        match snapshot::read(&file, pid) {
            Ok(snapshot) if snapdir::is_from_before(snapshot.start_ns, pid) => {}
            Ok(snapshot) => {
                found.push((snapshot, process::command_name(pid).unwrap_or_else(|| "?".to_owned())));
            }
            Err(Trouble::Missing) => {}
            Err(trouble) => complain(&format!("cannot read {}: {trouble}", file.display())),
        }
    }
    found
}

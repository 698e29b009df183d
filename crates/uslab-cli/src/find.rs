//! Finds the snapshots of running processes: of one by its id, or of all in a directory.

use std::fs::File;
use std::path::Path;

use crate::failure::{FAILED, Failure, complain};
use crate::snapdir::Place;
use crate::snapshot::{self, Snapshot, Trouble};
use crate::{process, snapdir};

/// The snapshot of a process, or the reason why there is none to show.
pub fn find(pid: i32) -> Result<Snapshot, Failure> {
    Ok(find_open(pid, false)?.1)
}

/// As [`find`], with the open file; for writing, too, if `writes`.
pub fn find_open(pid: i32, writes: bool) -> Result<(File, Snapshot), Failure> {
    let fail = |line: String| Failure::new(FAILED, line);
    if !process::alive(pid) {
        return Err(fail(format!("no such process: {pid}")));
    }
    let places = snapdir::of_process(pid);
    let who = process::described(pid);
    for place in &places {
        let file = place.path.join(process::inner_pid(pid).to_string());
        match snapshot::open(&file, pid, writes) {
            Ok((_, snapshot)) if snapdir::is_from_before(snapshot.start_ns, pid) => {}
            Ok(found) => return Ok(found),
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

fn listed(places: &[Place]) -> String {
    if places.is_empty() {
        return "any of the usual directories".to_owned();
    }
    places.iter().map(|place| place.shown.display().to_string()).collect::<Vec<_>>().join(" or ")
}

/// Processes that are alive and have a snapshot in this directory. One that cannot be read is not
/// silently left out.
pub fn publishing(directory: &Path) -> Vec<(Snapshot, String)> {
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

/// Processes in containers that have a snapshot there, and whose files this user may read.
pub fn in_containers() -> Vec<(Snapshot, String)> {
    let elsewhere = process::all().into_iter().filter(|&pid| process::has_other_mounts(pid));
    let found = elsewhere.filter_map(|pid| {
        process::environment_variable(pid, snapdir::VARIABLE)?;
        Some((find(pid).ok()?, process::command_name(pid).unwrap_or_else(|| "?".to_owned())))
    });
    found.collect()
}

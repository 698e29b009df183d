//! Finds the snapshots of running processes: of one by its id, or of all in a directory.
//!
//! A process may contain the library several times, each copy with a snapshot. Unless a copy is
//! chosen, that which holds the most memory is shown.

use std::cmp::Reverse;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::failure::{FAILED, Failure, complain};
use crate::layout::MAX_COPIES;
use crate::snapdir::Place;
use crate::snapshot::{self, Snapshot, Trouble};
use crate::{process, snapdir};

/// A snapshot that was found.
pub struct Found {
    pub file: File,
    pub snapshot: Snapshot,
    /// The path by which this program reached it.
    pub path: PathBuf,
    /// Keeps a path through a container's directory valid.
    _place: Option<Place>,
}

/// The snapshot of a process, or the reason why there is none to show.
pub fn find(pid: i32) -> Result<Snapshot, Failure> {
    find_copy(pid, None)
}

/// As [`find`], of one copy of the library if one is chosen.
pub fn find_copy(pid: i32, copy: Option<u32>) -> Result<Snapshot, Failure> {
    Ok(find_open(pid, copy, false)?.snapshot)
}

/// The snapshots of all copies of the library in a process.
pub fn find_all(pid: i32) -> Result<Vec<Snapshot>, Failure> {
    Ok(copies_of(pid, false)?.1.into_iter().map(|found| found.snapshot).collect())
}

/// Tells the user, if there are several copies and none was chosen, which one is shown.
pub fn note_copies(snapshot: &Snapshot, chosen: Option<u32>) {
    let Snapshot { pid, copy, copies, .. } = snapshot;
    if *copies > 1 && chosen.is_none() {
        complain(&format!(
            "process {pid} contains {copies} copies of the library; this is copy {copy}, which holds the most \
             memory (--copy N chooses)"
        ));
    }
}

/// As [`find_copy`], with the open file; for writing, too, if `writes`.
pub fn find_open(pid: i32, copy: Option<u32>, writes: bool) -> Result<Found, Failure> {
    let (place, mut copies) = copies_of(pid, writes)?;
    let count = copies.len();
    // Of equal ones the first.
    copies.sort_by_key(|found| (Reverse(found.snapshot.used_bytes), found.snapshot.copy));
    let found = copies.into_iter().find(|found| copy.is_none_or(|copy| found.snapshot.copy == copy));
    let found = found.map(|found| Found { _place: Some(place), ..found });
    found.ok_or_else(|| {
        let (who, copy) = (process::described(pid), copy.unwrap_or(0));
        let s = if count == 1 { "y" } else { "ies" };
        Failure::new(
            FAILED,
            format_args!("{who} contains {count} cop{s} of the library: none is number {copy}"),
        )
    })
}

/// The snapshots of all copies of the library in a process, at least one, and where they are.
fn copies_of(pid: i32, writes: bool) -> Result<(Place, Vec<Found>), Failure> {
    let fail = |line: String| Failure::new(FAILED, line);
    if !process::alive(pid) {
        return Err(fail(format!("no such process: {pid}")));
    }
    let places = snapdir::of_process(pid);
    let shown = listed(&places);
    let who = process::described(pid);
    for place in places {
        match copies_in(&place.path, pid, writes) {
            Ok(copies) if copies.is_empty() => {}
            Ok(copies) => return Ok((place, copies)),
            Err((_, Trouble::Denied)) => return Err(fail(denied(&who, pid))),
            Err((_, trouble)) => return Err(fail(format!("cannot read the snapshot of {who}: {trouble}"))),
        }
    }
    // Without a readable environment we may have missed the directory that it was told, so do not
    // claim too much.
    if process::owner(pid).is_some_and(|user| user != snapdir::own_user()) && snapdir::own_user() != 0 {
        return Err(fail(denied(&who, pid)));
    }
    Err(fail(format!(
        "{who} does not run under uslab: there is no snapshot in {shown}. If it does, start it by `uslab run`, or \
         with USLAB_SNAPSHOT=auto"
    )))
}

/// The snapshots of a process in this directory. One that cannot be read is an error if it is that
/// of the first copy: others come and go.
pub fn copies_in(directory: &Path, pid: i32, writes: bool) -> Result<Vec<Found>, (PathBuf, Trouble)> {
    let mut copies = Vec::new();
    let inner_pid = process::inner_pid(pid);
    for copy in 1..=MAX_COPIES {
        let path = directory.join(snapdir::file_name(inner_pid, copy));
        match snapshot::open(&path, pid, writes) {
            Ok((_, snapshot)) if snapdir::is_from_before(snapshot.start_ns, pid) => {}
            Ok((file, snapshot)) => {
                copies.push(Found { file, snapshot: Snapshot { copy, ..snapshot }, path, _place: None });
            }
            Err(Trouble::Missing) => {}
            Err(trouble) if copy == 1 => return Err((path, trouble)),
            Err(_) => {}
        }
    }
    let count = copies.len() as u32;
    copies.iter_mut().for_each(|found| found.snapshot.copies = count);
    Ok(copies)
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

/// Processes that are alive and have a snapshot in this directory.
pub fn publishing(directory: &Path) -> Vec<(Snapshot, String)> {
    let mut found = publishing_copies(directory);
    found.sort_by_key(|snapshot| (snapshot.pid, Reverse(snapshot.used_bytes), snapshot.copy));
    found.dedup_by_key(|snapshot| snapshot.pid);
    found.into_iter().map(named).collect()
}

/// As [`publishing`], with the snapshot of each copy of the library. One that cannot be read is not
/// silently left out.
pub fn publishing_copies(directory: &Path) -> Vec<Snapshot> {
    let mut found = Vec::new();
    for pid in snapdir::pids(directory).into_iter().filter(|&pid| process::alive(pid)) {
        match copies_in(directory, pid, false) {
            Ok(copies) => found.extend(copies.into_iter().map(|found| found.snapshot)),
            Err((file, trouble)) => complain(&format!("cannot read {}: {trouble}", file.display())),
        }
    }
    found
}

/// A snapshot with the name of its process.
pub fn named(snapshot: Snapshot) -> (Snapshot, String) {
    let command = i32::try_from(snapshot.pid).ok().and_then(process::command_name);
    (snapshot, command.unwrap_or_else(|| "?".to_owned()))
}

/// Processes in containers that were told where to publish.
pub fn in_containers() -> Vec<i32> {
    let elsewhere = process::all().into_iter().filter(|&pid| process::has_other_mounts(pid));
    elsewhere.filter(|&pid| process::environment_variable(pid, snapdir::VARIABLE).is_some()).collect()
}

//! Finds the snapshots of running processes: of one by its id, or of all in a directory.
//!
//! A process may contain the library several times, each copy with a snapshot. Unless a copy is
//! chosen, that which holds the most memory is shown.

use std::cmp::Reverse;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{FAILED, Failure, complain};
use crate::layout::MAX_COPIES;
use crate::snapdir::Place;
use crate::snapshot::{self, Snapshot, Trouble};
use crate::{process, snapdir};

/// The time that a library gets from the creation of its snapshot until it is complete.
const START: Duration = Duration::from_millis(20);

/// A snapshot that was found.
pub struct Found {
    pub file: File,
    pub snapshot: Snapshot,
    /// The path by which this program reached it.
    pub path: PathBuf,
    /// Keeps a path through a container's directory valid.
    _place: Option<Place>,
}

/// The snapshots of a process in one directory.
#[derive(Default)]
pub struct Copies {
    pub found: Vec<Found>,
    /// Those that are there and cannot be read, by copy: the library may be of another version.
    pub unread: Vec<(u32, PathBuf, Trouble)>,
}

/// The snapshot of a process, or the reason why there is none to show.
pub fn find(pid: i32) -> Result<Snapshot, Failure> {
    find_copy(pid, None)
}

/// As [`find`], of one copy of the library if one is chosen.
pub fn find_copy(pid: i32, copy: Option<u32>) -> Result<Snapshot, Failure> {
    Ok(find_open(pid, copy, false)?.snapshot)
}

/// The snapshots of all copies of the library in a process. Those that cannot be read are
/// complained about; it is an error if none can.
pub fn find_all(pid: i32) -> Result<Vec<Snapshot>, Failure> {
    let (_, Copies { found, unread }) = copies_of(pid, false)?;
    if found.is_empty() {
        return Err(unreadable(pid, unread));
    }
    complain_of(&unread);
    Ok(found.into_iter().map(|found| found.snapshot).collect())
}

/// Tells the user, if there are several copies and none was chosen, which one is shown.
pub fn note_copies(snapshot: &Snapshot, chosen: Option<u32>) {
    let Snapshot { pid, copy, copies, unread_copies, .. } = snapshot;
    if *copies > 1 && chosen.is_none() {
        let of = match unread_copies {
            0 => String::new(),
            unread => format!(" of those that this program can read, all but {unread}"),
        };
        complain(&format!(
            "process {pid} contains {copies} copies of the library; this is copy {copy}, which holds the most \
             memory{of} (--copy N chooses)"
        ));
    }
}

/// As [`find_copy`], with the open file; for writing, too, if `writes`.
pub fn find_open(pid: i32, copy: Option<u32>, writes: bool) -> Result<Found, Failure> {
    let (place, Copies { mut found, unread }) = copies_of(pid, writes)?;
    let count = found.len() + unread.len();
    // Of equal ones the first.
    found.sort_by_key(|found| (Reverse(found.snapshot.used_bytes), found.snapshot.copy));
    let is_chosen = |number: u32| copy.is_none_or(|copy| number == copy);
    if let Some(found) = found.into_iter().find(|found| is_chosen(found.snapshot.copy)) {
        return Ok(Found { _place: Some(place), ..found });
    }
    let unread: Vec<_> = unread.into_iter().filter(|(number, ..)| is_chosen(*number)).collect();
    if !unread.is_empty() {
        return Err(unreadable(pid, unread));
    }
    let (who, copy) = (process::described(pid), copy.unwrap_or(0));
    let s = if count == 1 { "y" } else { "ies" };
    let none = format_args!("{who} contains {count} cop{s} of the library: none is number {copy}");
    Err(Failure::new(FAILED, none))
}

/// The snapshots of all copies of the library in a process, at least one, and where they are.
fn copies_of(pid: i32, writes: bool) -> Result<(Place, Copies), Failure> {
    let fail = |line: String| Failure::new(FAILED, line);
    if !process::runs(pid) {
        return Err(fail(format!("no such process: {pid}")));
    }
    let places = snapdir::of_process(pid);
    let shown = listed(&places);
    let who = process::described(pid);
    for place in places {
        let copies = copies_in(&place.path, pid, writes);
        if !copies.found.is_empty() || !copies.unread.is_empty() {
            return Ok((place, copies));
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

/// The snapshots of a process in this directory. Those that an earlier process with its id left are
/// left out.
pub fn copies_in(directory: &Path, pid: i32, writes: bool) -> Copies {
    let mut copies = Copies::default();
    let inner_pid = process::inner_pid(pid);
    let namespace = process::pid_namespace(pid);
    // 0 is an unknown one.
    let is_elsewhere = |written_in: u64| written_in != 0 && namespace.is_some_and(|own| own != written_in);
    for copy in 1..=MAX_COPIES {
        let path = directory.join(snapdir::file_name(inner_pid, copy));
        match snapshot::open(&path, pid, writes) {
            Ok((_, snapshot)) if snapdir::is_from_before(snapshot.start_ns, pid) => {}
            // A process of another namespace, in which it has this id, wrote the file.
            Ok((_, snapshot)) if is_elsewhere(snapshot.pid_namespace) => {}
            Ok((file, snapshot)) => {
                let snapshot = Snapshot { copy, ..snapshot };
                copies.found.push(Found { file, snapshot, path, _place: None });
            }
            Err(Trouble::Missing) => {}
            // A copy that is being loaded, or a file that another process left.
            Err(Trouble::NotASnapshot | Trouble::OtherProcess(_)) if copy > 1 => {}
            Err(trouble) => copies.unread.push((copy, path, trouble)),
        }
    }
    let unread = copies.unread.len() as u32;
    let count = copies.found.len() as u32 + unread;
    for found in &mut copies.found {
        (found.snapshot.copies, found.snapshot.unread_copies) = (count, unread);
    }
    copies
}

/// The failure to read the snapshots of a process; the first one's reason is given.
fn unreadable(pid: i32, unread: Vec<(u32, PathBuf, Trouble)>) -> Failure {
    let who = process::described(pid);
    let line = match unread.into_iter().next() {
        Some((_, _, Trouble::Denied)) => denied(&who, pid),
        Some((1, _, trouble)) => format!("cannot read the snapshot of {who}: {trouble}"),
        Some((copy, _, trouble)) => format!("cannot read the snapshot of copy {copy} in {who}: {trouble}"),
        None => format!("{who} has no snapshot"),
    };
    Failure::new(FAILED, line)
}

fn complain_of(unread: &[(u32, PathBuf, Trouble)]) {
    for (_, file, trouble) in unread {
        complain(&format!("cannot read {}: {trouble}", file.display()));
    }
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

/// Processes that run and have a snapshot in this directory.
pub fn publishing(directory: &Path) -> Vec<(Snapshot, String)> {
    let mut found = publishing_copies(directory);
    found.sort_by_key(|snapshot| (snapshot.pid, Reverse(snapshot.used_bytes), snapshot.copy));
    found.dedup_by_key(|snapshot| snapshot.pid);
    found.into_iter().map(named).collect()
}

/// As [`publishing`], with the snapshot of each copy of the library. One that cannot be read is not
/// silently left out; that of a process that is just starting gets a moment.
pub fn publishing_copies(directory: &Path) -> Vec<Snapshot> {
    let mut found = Vec::new();
    for pid in snapdir::pids(directory).into_iter().filter(|&pid| process::runs(pid)) {
        let mut copies = copies_in(directory, pid, false);
        if copies.unread.iter().any(|(.., trouble)| matches!(trouble, Trouble::NotASnapshot)) {
            std::thread::sleep(START);
            copies = copies_in(directory, pid, false);
        }
        complain_of(&copies.unread);
        found.extend(copies.found.into_iter().map(|found| found.snapshot));
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

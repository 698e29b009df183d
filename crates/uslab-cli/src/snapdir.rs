//! Where snapshots live: one directory a user, one file a process, named by its pid. If a process
//! contains the library several times, each copy has a file: `PID`, `PID.2`, and so on.
//!
//! The directory is in memory (/dev/shm) when there is one. Those places are open to every user. So
//! the program uses a directory only if it is no link, belongs to the user, and refuses writes of
//! other users: then only the user can put a file in it. If another user took the name first, the
//! program tries the next place.
//!
//! Files of processes that were killed, or left without running exit handlers, stay behind until
//! [`sweep`] finds them: at the start of every `uslab run` and `uslab info`.

use std::collections::HashSet;
use std::env;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::unistd::geteuid;

use crate::failure::{Failure, RUN_FAILED};
use crate::layout::MAX_COPIES;
use crate::process;
use crate::snapshot::{self, Origin};

/// The variable that tells a process where to publish, and that names another directory to this
/// program.
pub const VARIABLE: &str = "USLAB_SNAPSHOT";
/// The variable that names the process which reads a file after its writer's end: our pid. A
/// process whose parent that is leaves its file at exit; every other one may remove its own, so
/// that `uslab run -- make` does not fill the directory.
pub const READER_VARIABLE: &str = "USLAB_SNAPSHOT_READER";
/// Permission bits that a directory of snapshots must not have: write for the group and for other
/// users.
const OTHERS_WRITE: u32 = 0o022;
const PRIVATE: u32 = 0o700;

/// The user whom this program acts for.
pub fn own_user() -> u32 {
    geteuid().as_raw()
}

/// The value of [`VARIABLE`] that stands for the first usual directory that can be used.
const AUTO: &str = "auto";

/// The directory that the environment names instead of the usual ones.
fn named() -> Option<PathBuf> {
    env::var_os(VARIABLE).filter(|value| !value.is_empty() && value != AUTO).map(PathBuf::from)
}

/// Usual directories of a user, best first.
fn usual(user: u32) -> Vec<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty() && user == own_user());
    let runtime = runtime.map(|parent| PathBuf::from(parent).join(format!("uslab-{user}")));
    let [first, others @ ..] = places_of(user);
    std::iter::once(first).chain(runtime).chain(others).collect()
}

/// Where the library publishes for a user if it is told [`AUTO`], best first.
fn places_of(user: u32) -> [PathBuf; 3] {
    let parents = ["/dev/shm", &format!("/run/user/{user}"), "/tmp"];
    parents.map(|parent| Path::new(parent).join(format!("uslab-{user}")))
}

/// Makes, or checks, the directory that a new process shall publish in, and returns its absolute
/// path.
pub fn prepare() -> Result<PathBuf, Failure> {
    let places = named().map_or_else(|| usual(own_user()), |directory| vec![directory]);
    let mut reasons = Vec::new();
    for place in &places {
        match prepare_one(place) {
            Ok(directory) => return Ok(directory),
            Err(error) => reasons.push(format!("{}: {error}", place.display())),
        }
    }
    Err(Failure::new(RUN_FAILED, format_args!("no directory for the snapshot: {}", reasons.join("; "))))
}

fn prepare_one(directory: &Path) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(PRIVATE).create(directory) {
        // The umask may have taken away bits that we need.
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(PRIVATE))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    check(directory, own_user())?;
    directory.canonicalize()
}

/// Whether the directory can only hold what `user` put there.
fn check(directory: &Path, user: u32) -> io::Result<()> {
    let data = fs::symlink_metadata(directory)?;
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    if data.is_symlink() {
        return refuse("is a symbolic link".into());
    }
    if !data.is_dir() {
        return refuse("is not a directory".into());
    }
    if data.uid() != user {
        return refuse(format!("belongs to user {}", data.uid()));
    }
    if data.mode() & OTHERS_WRITE != 0 {
        return refuse(format!("others may write there (mode {:o})", data.mode() & 0o7777));
    }
    Ok(())
}

/// Whether a process of `user` publishes in the directory, as the library decides it.
fn is_trusted(directory: &Path, user: u32) -> bool {
    [user, 0].into_iter().any(|user| check(directory, user).is_ok())
}

/// Directories of this user that exist and can be trusted.
pub fn own() -> Vec<PathBuf> {
    let places = named().map_or_else(|| usual(own_user()), |directory| vec![directory]);
    places.into_iter().filter(|place| check(place, own_user()).is_ok()).collect()
}

/// Directories of every user that exist and can be trusted to be theirs.
pub fn everyone() -> Vec<PathBuf> {
    let mut found = own();
    for parent in ["/dev/shm", "/tmp"] {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let user = name.to_str().and_then(|name| name.strip_prefix("uslab-")?.parse().ok());
            if let Some(user) = user
                && check(&entry.path(), user).is_ok()
                && !found.contains(&entry.path())
            {
                found.push(entry.path());
            }
        }
    }
    found
}

/// A directory in which a process may publish.
pub struct Place {
    /// The path by which this program reaches it.
    pub path: PathBuf,
    /// The path as the process knows it.
    pub shown: PathBuf,
    /// Keeps a path through a container's directory valid.
    _directory: Option<OwnedFd>,
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Place {
        Place { shown: path.clone(), path, _directory: None }
    }
}

impl Place {
    /// The directory `told` of a process in a container. Links on the way lead where they lead
    /// inside the container, so that it cannot show this program another file.
    fn inside(pid: i32, told: &Path) -> Option<Place> {
        let root = File::open(format!("{}/root", process::directory(pid))).ok()?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let how = OpenHow::new()
            .flags(flags)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let directory = openat2(&root, told, how).ok()?;
        // With the dot, the path names the directory, not a link to it.
        let path = PathBuf::from(format!("/proc/self/fd/{}/.", directory.as_raw_fd()));
        Some(Place { path, shown: told.to_owned(), _directory: Some(directory) })
    }
}

/// Directories in which the process may publish, the most likely first: the one that it was told,
/// then the usual ones of its user and of ours (a server may have given up root after it started).
pub fn of_process(pid: i32) -> Vec<Place> {
    let owner = process::owner(pid).unwrap_or_else(own_user);
    let told = process::environment_variable(pid, VARIABLE).filter(|value| value != AUTO).map(PathBuf::from);
    if process::has_other_mounts(pid) {
        let user = process::inner_user(pid, owner);
        let places = told.filter(|told| told.is_absolute()).into_iter().chain(places_of(user));
        let places = places.filter_map(|told| Place::inside(pid, &told));
        return places.filter(|place| is_trusted(&place.path, owner)).collect();
    }
    // The process's user chose it: a process publishes only where no other user but root can change
    // anything.
    let mut places: Vec<PathBuf> = told.into_iter().filter(|place| is_trusted(place, owner)).collect();
    places.extend(named());
    for user in [owner, own_user()] {
        places.extend(usual(user).into_iter().filter(|place| check(place, user).is_ok()));
    }
    let mut seen = Vec::new();
    places.retain(|place| place.is_absolute() && !seen.contains(place) && (seen.push(place.clone()), true).1);
    places.into_iter().map(Place::from).collect()
}

/// Pids that have a file in the directory, in order.
pub fn pids(directory: &Path) -> Vec<i32> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut pids: Vec<i32> = names.filter_map(|name| pid_of_name(name.to_str()?)).collect();
    pids.sort_unstable();
    pids
}

/// A file name that is a pid as we would write it: anything else in the directory is not ours to
/// touch.
fn pid_of_name(name: &str) -> Option<i32> {
    let pid: i32 = name.parse().ok()?;
    (pid > 0 && pid.to_string() == name).then_some(pid)
}

/// Name of the file of copy `copy` of the library in process `pid`, an id of its own namespace.
pub fn file_name(pid: i32, copy: u32) -> String {
    if copy == 1 { pid.to_string() } else { format!("{pid}.{copy}") }
}

/// The process whose file has this name: its snapshot, that of another copy of the library in it,
/// or a heap profile that was asked for.
fn owner_of_name(name: &str) -> Option<i32> {
    let mut parts = name.split('.').peekable();
    let pid = pid_of_name(parts.next()?)?;
    parts.next_if(|part| (2..=MAX_COPIES).any(|copy| copy.to_string() == *part));
    let rest: Vec<&str> = parts.collect();
    [&[][..], &["profile"], &["profile", "new"]].contains(&&rest[..]).then_some(pid)
}

/// Removes the files that processes left which are gone. One whose pid is in use again waits for
/// that process to end: its new owner may be about to put its own file there. A file that no
/// process of the library wrote stays, whatever its name.
///
/// Processes of other pid namespaces, as containers have, can be seen from the first one alone. So
/// elsewhere their files stay, too.
pub fn sweep(directory: &Path) {
    let names = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let owned = names.filter_map(|name| Some((owner_of_name(&name)?, name)));
    let dead: Vec<(i32, String)> = owned.filter(|&(pid, _)| !process::alive(pid)).collect();
    if dead.is_empty() {
        return;
    }
    // A container that shares the directory names its files by ids of its own.
    let inner: HashSet<i32> = process::all().into_iter().map(process::inner_pid).collect();
    let own = process::pid_namespace(std::process::id().cast_signed());
    let sees_all = own == Some(process::FIRST_PID_NAMESPACE);
    for (_, name) in dead.into_iter().filter(|(pid, _)| !inner.contains(pid)) {
        let file = directory.join(name);
        let is_left = match snapshot::origin(&file) {
            Some(Origin::Snapshot(namespace)) => sees_all || namespace == own,
            Some(Origin::Profile) => sees_all,
            None => false,
        };
        if is_left {
            let _ = fs::remove_file(file);
        }
    }
}

/// Whether a snapshot was begun before its process was, so that another one with the same pid must
/// have made it.
pub fn is_from_before(snapshot_start_ns: u64, pid: i32) -> bool {
    process::start_ns(pid).is_some_and(|start_ns| snapshot_start_ns != 0 && snapshot_start_ns < start_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{HEADER_BYTES, Header, VERSION};
    use std::mem::offset_of;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_new_directory_is_private() {
        let base = tempfile::tempdir().expect("a folder");
        let base = base.path();
        let made = prepare_one(&base.join("d")).expect("made");
        assert_eq!(made.metadata().expect("there").mode() & 0o7777, PRIVATE);
        assert_eq!(prepare_one(&base.join("d")).expect("found again"), made);
    }

    #[test]
    fn a_directory_that_cannot_be_trusted_is_refused() {
        let base = tempfile::tempdir().expect("a folder");
        let base = base.path();
        let real = base.join("real");
        fs::create_dir(&real).expect("a folder");
        symlink(&real, base.join("link")).expect("a link");
        fs::write(base.join("file"), "").expect("a file");
        fs::create_dir(base.join("open")).expect("a folder");
        fs::set_permissions(base.join("open"), Permissions::from_mode(0o777)).expect("permissions");
        let reason = |name: &str| prepare_one(&base.join(name)).expect_err(name).to_string();
        assert_eq!(reason("link"), "is a symbolic link");
        assert_eq!(reason("file"), "is not a directory");
        assert_eq!(reason("open"), "others may write there (mode 777)");
        assert!(check(&real, own_user() + 1).expect_err("not theirs").to_string().starts_with("belongs to"));
    }

    #[test]
    fn only_pids_are_files_of_ours() {
        assert_eq!(pid_of_name("17"), Some(17));
        for name in ["017", "+17", "-17", "0", "17x", "", "99999999999", ".17"] {
            assert_eq!(pid_of_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn sweeping_takes_the_dead_and_nothing_else() {
        let base = tempfile::tempdir().expect("a folder");
        let base = base.path();
        let me = std::process::id().to_string();
        let dead = ["", ".2", ".profile", ".profile.new", ".8.profile"].map(|end| format!("2147483647{end}"));
        let kept =
            ["2147483647.9", "2147483647.notes", "2147483647.", "notes", &me, &format!("{me}.profile")];
        let namespace = process::pid_namespace(std::process::id().cast_signed()).unwrap_or(0);
        let snapshot = |namespace: u64| {
            let mut bytes = vec![0; HEADER_BYTES];
            bytes[..8].copy_from_slice(b"uslabsnp");
            let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
            put(offset_of!(Header, version), &VERSION.to_ne_bytes());
            put(offset_of!(Header, pid_namespace), &namespace.to_ne_bytes());
            bytes
        };
        for name in dead.iter().map(String::as_str).chain(kept) {
            let is_profile = name.contains("profile");
            let bytes = if is_profile { b"uslab-profile 1\n".to_vec() } else { snapshot(namespace) };
            fs::write(base.join(name), bytes).expect("a file");
        }
        fs::write(base.join("2147483645"), snapshot(namespace + 1)).expect("a file");
        // Files of the user's own.
        let own = ["2147483646", "2147483646.2", "2147483646.profile"];
        own.iter().for_each(|name| fs::write(base.join(name), "my notes").expect("a file"));
        sweep(base);
        own.iter().for_each(|name| assert!(base.join(name).exists(), "{name}"));
        // Another namespace's process may be one that cannot be seen.
        let sees_all = namespace == process::FIRST_PID_NAMESPACE;
        assert_eq!(base.join("2147483645").exists(), !sees_all);
        let dead = dead.iter().filter(|name| sees_all || !name.contains("profile"));
        dead.for_each(|name| assert!(!base.join(name).exists(), "{name}"));
        kept.iter().for_each(|name| assert!(base.join(name).exists(), "{name}"));
    }
}

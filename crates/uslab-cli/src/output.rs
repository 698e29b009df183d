//! Writes files whole, or not at all.
//!
//! ```text
//!   NAME.PID.uslab-tmp, 0600 ──▶ bytes ──▶ group and permissions ──▶ takes the name NAME
//!            └── an error, Ctrl-C: removed
//! ```
//!
//! A new file takes the name of the old one in one step. So a reader never sees half of a file, and
//! where the disk is full the old one stays. Its owner alone may read it until it is whole.
//!
//! Some files cannot be replaced: devices and pipes, files of other users, files with several
//! names, files that are mounted one by one, and those that a descriptor stands for
//! (`/dev/stdout`). [`write`] writes these in place.

mod held;

use std::ffi::{CStr, CString, OsString};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};

use crate::snapdir::own_user;
use held::Held;

/// The end of temporary names: it tells what a killed command left. Collectors read names that end
/// in `.prom`, so a temporary name must not.
const SUFFIX: &str = ".uslab-tmp";
/// Bytes that are written between two tests for a signal.
const PIECE_BYTES: usize = 1 << 20;
/// Links that a name may lead through, as the kernel has it: path_resolution(7).
const MAX_LINKS: usize = 40;

/// The attribute with a file's access list, acl(5).
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// The permissions of a new file.
enum Access<'a> {
    /// As of any new file in that folder.
    Usual,
    /// These.
    Mode(u32),
    /// The group and the permissions of the file that it replaces.
    Of(&'a Metadata),
}

/// Writes `bytes` to a new file beside `file`, which then takes its name. With `mode` it has these
/// permissions, otherwise the usual ones.
///
/// A link that another user planted under the name is replaced, not followed.
pub fn replace(file: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(data) if !data.is_file() => return Err(not_plain(&data)),
        // `/dev/stdout` leads to a plain file where a shell redirects to one.
        Ok(data) if leads_through_proc(file) => return Err(not_plain(&data)),
        _ => {}
    }
    replace_as(file, bytes, mode.map_or(Access::Usual, Access::Mode), &Held::new())
}

/// [`replace`], while signals are held.
fn replace_as(file: &Path, bytes: &[u8], access: Access, held: &Held) -> io::Result<()> {
    let (mut made, temporary) = make_beside(file, 0o600)?;
    let written = write_whole(&mut made, bytes, held).and_then(|()| {
        give(&made, access, file)?;
        fs::rename(&temporary, file)
    });
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Makes a temporary file in the folder of `file`, with the permissions of `mode` at most.
fn make_beside(file: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    let name = file.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode).custom_flags(libc::O_NOFOLLOW);
    let mut tries = 0;
    loop {
        let mut temporary = name.to_owned();
        // In a container a command often has the number of one that was killed.
        let again = if tries == 0 { String::new() } else { format!("-{tries}") };
        temporary.push(format!(".{}{again}{SUFFIX}", std::process::id()));
        let temporary = file.with_file_name(temporary);
        match options.open(&temporary) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < 100 => tries += 1,
            made => return made.map(|made| (made, temporary)),
        }
    }
}

fn write_whole(made: &mut File, bytes: &[u8], held: &Held) -> io::Result<()> {
    for piece in bytes.chunks(PIECE_BYTES) {
        if held.has_signal() {
            return Err(ErrorKind::Interrupted.into());
        }
        made.write_all(piece)?;
    }
    Ok(())
}

/// The permissions that the system gives a new file in the folder of `file`: by the umask, or by
/// the folder's list of access rights. An empty file shows them.
fn usual_mode(file: &Path) -> io::Result<u32> {
    let (made, temporary) = make_beside(file, 0o666)?;
    let data = made.metadata();
    fs::remove_file(temporary)?;
    Ok(data?.mode() & 0o777)
}

/// Gives a file that is complete its permissions; it is to get the name `file`.
fn give(made: &File, access: Access, file: &Path) -> io::Result<()> {
    let mode = match access {
        Access::Usual => usual_mode(file)?,
        Access::Mode(mode) => {
            remove_access_list(made)?;
            mode
        }
        Access::Of(data) => {
            remove_access_list(made)?;
            if made.metadata()?.gid() != data.gid() {
                fchown(made, None, Some(data.gid()))?;
            }
            data.mode() & 0o7777
        }
    };
    made.set_permissions(Permissions::from_mode(mode))
}

/// Removes the access list that a new file has from its folder: with a list, the mode alone does
/// not tell who may read.
#[allow(unsafe_code, reason = "a system call that no crate in use wraps")]
fn remove_access_list(made: &File) -> io::Result<()> {
    // SAFETY: a descriptor that is open, and a string that ends in 0.
    let status = unsafe { libc::fremovexattr(made.as_raw_fd(), ACCESS_LIST.as_ptr()) };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(code) if status != 0 && code != libc::ENODATA && code != libc::ENOTSUP => Err(error),
        _ => Ok(()),
    }
}

fn not_plain(data: &Metadata) -> io::Error {
    if data.is_dir() { ErrorKind::IsADirectory.into() } else { io::Error::other("it is not a regular file") }
}

/// Whether a name leads through a link of procfs, or to a file there. The text of such a link may
/// name another file here than it leads to in the file system of a process. And the file of a
/// descriptor must stay the one that the shell holds open.
fn leads_through_proc(file: &Path) -> bool {
    let Ok(mut at) = std::env::current_dir() else { return true };
    let mut rest: Vec<OsString> = Vec::new();
    let later = |rest: &mut Vec<OsString>, path: &Path| {
        rest.extend(path.components().rev().map(|part| part.as_os_str().to_owned()));
    };
    later(&mut rest, file);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        // Up to here no part is a link. An absolute path begins with the root, which replaces all.
        match part.to_str() {
            Some("..") => _ = at.pop(),
            Some(".") => {}
            _ => at.push(&part),
        }
        let Ok(target) = fs::read_link(&at) else { continue };
        at.pop();
        // `self` and `thread-self` are links like any other.
        if !part.to_string_lossy().ends_with("self") && is_on_procfs(&at) {
            return true;
        }
        links += 1;
        if links > MAX_LINKS {
            return false;
        }
        later(&mut rest, &target);
    }
    at.pop() && is_on_procfs(&at)
}

fn is_on_procfs(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|system| system.filesystem_type() == PROC_SUPER_MAGIC)
}

/// Writes `bytes` to a file that the user named: links are followed, and devices and pipes take
/// the bytes. A plain file is replaced, and keeps its permissions, its owner, its group, and its
/// other names. A new one has the permissions that one of a shell would have.
pub fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let replaced = match fs::metadata(file) {
        _ if leads_through_proc(file) => return fs::write(file, bytes),
        Ok(data)
            if data.is_file() && data.nlink() == 1 && data.uid() == own_user() && !has_access_list(file) =>
        {
            replace_as(&fs::canonicalize(file)?, bytes, Access::Of(&data), &Held::new())
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !file.is_symlink() => {
            replace_as(file, bytes, Access::Usual, &Held::new())
        }
        _ => return fs::write(file, bytes),
    };
    match replaced {
        Err(error) if can_write_in_place(error.kind()) => fs::write(file, bytes),
        _ => replaced,
    }
}

/// Whether a file has an access control list. A new file would not, and in the mode of such a file
/// the bits of the group are those of the list's mask.
#[allow(unsafe_code, reason = "a system call that no crate in use wraps")]
fn has_access_list(file: &Path) -> bool {
    let Ok(name) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: two strings that end in 0; without room the call returns the size of the list.
    unsafe { libc::getxattr(name.as_ptr(), ACCESS_LIST.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Whether a file that cannot be replaced may be written: its folder cannot be, its group is one
/// that the user is not in, its name leaves no room for a longer one, or it is mounted.
fn can_write_in_place(error: ErrorKind) -> bool {
    use ErrorKind::{CrossesDevices, InvalidFilename, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error, CrossesDevices | InvalidFilename | PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

/// Whether this is the usual name of standard output on a command line. A file of that name is
/// `./-`.
pub fn is_standard_output(file: &Path) -> bool {
    file == Path::new("-")
}

/// Whether two names lead to the same file.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|file| (file.dev(), file.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether [`write`] can be expected to succeed later: the file is no folder, and its folder
/// exists.
pub fn check(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(data) if data.is_dir() => Err(not_plain(&data)),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Err(_) => {
            let folder = file.parent().filter(|folder| *folder != Path::new(""));
            fs::metadata(folder.unwrap_or(Path::new("."))).map(drop)
        }
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;

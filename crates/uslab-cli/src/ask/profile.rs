//! Requests about the heap profile: start, stop, and write it.
//!
//! The process writes the profile beside its snapshot, as `PID.profile`, and answers when the file
//! is whole. This program reads the file and removes it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::args::Asked;
use super::ask;
use crate::failure::{FAILED, Failure};
use crate::find::{Found, find_open};
use crate::input::{MAX_BYTES, read_stream};
use crate::layout;
use crate::process;
use crate::snapdir::own_user;

/// Sends a request, and returns the answer's text.
pub fn request(asked: &Asked, text: &str) -> Result<String, Failure> {
    Ok(ask(asked, layout::VERB_PROFILE, [0; 2], text)?.allowed()?.text)
}

/// Has the process write its profile, and returns it.
pub fn dump(asked: &Asked) -> Result<String, Failure> {
    let found = find_open(asked.pid, asked.copy, false)?;
    let asked = &Asked { copy: Some(found.snapshot.copy), ..*asked };
    // Until the file is read, no other command may have it written anew.
    let _answered = ask(asked, layout::VERB_PROFILE, [0; 2], "dump")?.allowed()?;
    read(&found, asked.pid).map_err(|error| {
        Failure::new(FAILED, format_args!("cannot read the profile of process {}: {error}", asked.pid))
    })
}

/// Reads the file beside the snapshot, and removes it.
fn read(found: &Found, pid: i32) -> io::Result<String> {
    // By the directory in which the snapshot was found: a process in a container has another one
    // under that name than this program.
    let mut name = found.path.clone().into_os_string();
    name.push(".profile");
    take(Path::new(&name), pid)
}

/// Reads a file that process `pid` wrote, and removes it.
fn take(path: &Path, pid: i32) -> io::Result<String> {
    // As for snapshots: neither follow a link nor wait for the other end of a pipe.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let data = file.metadata()?;
    let is_theirs = data.uid() == own_user() || data.uid() == 0 || Some(data.uid()) == process::owner(pid);
    if !data.is_file() || !is_theirs {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a file of that process"));
    }
    let bytes = read_stream(file, MAX_BYTES)?;
    // Another command may have removed it. One that stays is removed with the process's snapshot.
    let _ = fs::remove_file(path);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_removed_is_read() {
        let me = std::process::id() as i32;
        assert!(take(Path::new("/proc/self/limits"), me).expect("readable").starts_with("Limit"));
        assert!(take(Path::new("/proc/self/no such file"), me).is_err());
    }
}

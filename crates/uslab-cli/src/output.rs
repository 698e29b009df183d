//! Writes files whole, or not at all.
//!
//! A new file takes the name of the old one in one step. So a reader never sees half of a file, and
//! where the disk is full the old one stays. Devices and pipes are never replaced.

use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::snapdir::own_user;

/// Writes `bytes` to a new file beside `file`, which then takes its name. With `mode` it has these
/// permissions, otherwise the usual ones.
///
/// A link that another user planted under the name is replaced, not followed.
pub fn replace(file: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    match fs::metadata(file) {
        // `/dev/stdout` leads to a plain file where a shell redirects to one.
        Ok(data) if !data.is_file() || fs::read_link(file).is_ok_and(|to| to.starts_with("/proc")) => {
            return Err(not_plain(&data));
        }
        _ => {}
    }
    let name = file.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    // Collectors read names that end in `.prom`: the temporary name must not.
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = file.with_file_name(temporary);
    let mut made =
        OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(&temporary)?;
    let written = made.write_all(bytes).and_then(|()| {
        mode.map_or(Ok(()), |mode| made.set_permissions(Permissions::from_mode(mode)))?;
        fs::rename(&temporary, file)
    });
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

fn not_plain(data: &Metadata) -> io::Error {
    if data.is_dir() { ErrorKind::IsADirectory.into() } else { io::Error::other("it is not a regular file") }
}

/// Writes `bytes` to a file that the user named: links are followed, and devices and pipes take
/// the bytes. A plain file is replaced, and keeps its permissions, its owner, and its other names.
pub fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let replaced = match fs::metadata(file) {
        Ok(data) if data.is_file() && data.nlink() == 1 && data.uid() == own_user() => {
            replace(&fs::canonicalize(file)?, bytes, Some(data.mode() & 0o7777))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !file.is_symlink() => replace(file, bytes, None),
        _ => return fs::write(file, bytes),
    };
    match replaced.as_ref().map_err(io::Error::kind) {
        // The file may be written, and its folder not; or its name leaves no room for a longer one.
        Err(ErrorKind::PermissionDenied | ErrorKind::InvalidFilename) => fs::write(file, bytes),
        _ => replaced,
    }
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
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        fs::write(&target, "precious").expect("written");
        symlink(&target, &link).expect("a link");
        replace(&link, b"page", Some(0o640)).expect("replaced");
        assert_eq!(fs::read(&target).expect("there"), b"precious");
        assert_eq!(fs::read(&link).expect("there"), b"page");
        let data = fs::symlink_metadata(&link).expect("there");
        assert!(data.is_file() && data.permissions().mode() & 0o777 == 0o640);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }
    #[test]
    fn neither_devices_nor_pipes_nor_folders_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        symlink("/dev/null", place("null")).expect("a link");
        fs::create_dir(place("dir")).expect("a folder");
        for name in ["pipe", "null", "dir"] {
            let error = replace(&place(name), b"page", Some(0o644)).expect_err(name).to_string();
            assert!(["it is not a regular file", "is a directory"].contains(&&*error), "{error}");
        }
        assert!(replace(Path::new("/dev/stdout"), b"page", None).is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3);
        assert!(write(&place("dir"), b"page").is_err());
        write(&place("null"), b"page").expect("the device takes it");
        assert!(fs::symlink_metadata(place("null")).expect("there").is_symlink());
    }

    #[test]
    fn a_file_that_the_user_named_keeps_its_links_and_permissions() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        write(&place("file"), b"old").expect("written");
        fs::set_permissions(place("file"), Permissions::from_mode(0o604)).expect("set");
        symlink("file", place("link")).expect("a link");
        write(&place("link"), b"new").expect("written");
        assert!(fs::symlink_metadata(place("link")).expect("there").is_symlink());
        assert_eq!(fs::metadata(place("file")).expect("there").mode() & 0o777, 0o604);
        fs::hard_link(place("file"), place("name")).expect("a second name");
        write(&place("file"), b"newer").expect("written");
        for name in ["file", "link", "name"] {
            assert_eq!(fs::read(place(name)).expect("there"), b"newer", "{name}");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_known_before() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(check(folder.path()).is_err() && check(&folder.path().join("none/file")).is_err());
        for file in [&*folder.path().join("file"), Path::new("file"), Path::new("/dev/null")] {
            check(file).expect("may be written");
        }
    }
}

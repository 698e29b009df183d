//! Replaces files in one step.
//!
//! A reader never sees half of a file, and a link that another user planted under its name is
//! replaced, not followed.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Writes `bytes` to a new file beside `file`, which then takes its name. With `mode` it has these
/// permissions, otherwise the usual ones.
pub fn replace(file: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
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
}

//! Which file a program's name means, and whether a library can be preloaded into it.
//!
//! The search is execvp(3)'s, done here because its one errno does not tell "not found" from "found
//! and not executable" well enough for a message, and because the file has to be looked at before
//! it runs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::AT_FDCWD;
use nix::unistd::{AccessFlags, faccessat, getegid, geteuid};

use crate::elf::{self, Kind};
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND};

/// Where execvp(3) of the GNU C library looks when there is no PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Scripts whose interpreter is a script: as many levels as the kernel follows.
const SCRIPT_DEPTH_MAX: usize = 5;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// Finds the file that a shell would run for `name`.
pub fn find(name: &OsStr, path: Option<OsString>) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return check(&file).map(|()| file);
    }
    let mut refused = None;
    let path = path.unwrap_or_else(|| DEFAULT_PATH.into());
    for folder in std::env::split_paths(&path) {
        // An empty entry is the current folder (POSIX, 8.3).
        let folder = if folder.as_os_str().is_empty() { Path::new(".").to_owned() } else { folder };
        let file = folder.join(name);
        match check(&file) {
            Ok(()) if !name.is_empty() => return Ok(file),
            // A folder of that name in PATH is not the program that was meant.
            Err(failure) if failure.code == NOT_EXECUTABLE && !file.is_dir() => refused = Some(failure),
            _ => {}
        }
    }
    Err(refused
        .unwrap_or_else(|| Failure::new(NOT_FOUND, format_args!("program not found: {}", name.display()))))
}

fn check(file: &Path) -> Result<(), Failure> {
    let shown = file.display();
    match file.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(Failure::new(NOT_EXECUTABLE, format_args!("cannot execute {shown}: {error}")))
        }
        Err(_) => Err(Failure::new(NOT_FOUND, format_args!("program not found: {shown}"))),
        Ok(data) if data.is_dir() => {
            Err(Failure::new(NOT_EXECUTABLE, format_args!("cannot execute {shown}: it is a directory")))
        }
        Ok(_) => {
            faccessat(AT_FDCWD, file, AccessFlags::X_OK, nix::fcntl::AtFlags::AT_EACCESS).map_err(|error| {
                Failure::new(NOT_EXECUTABLE, format_args!("cannot execute {shown}: {}", error.desc()))
            })
        }
    }
}

/// Why the allocator will not be under this program, where that can be seen beforehand.
///
/// A program that gains privileges has AT_SECURE set, and ld.so(8) then ignores a preloaded path; a
/// static one has no ld.so; one for another machine refuses the library.
pub fn cannot_preload(file: &Path, library: &Path) -> Option<String> {
    cannot_preload_at_depth(file, library, 0)
}

fn cannot_preload_at_depth(file: &Path, library: &Path, depth: usize) -> Option<String> {
    let shown = file.display();
    // Files that cannot be read can still be executed: then there is nothing to say.
    match elf::inspect(file).ok() {
        Some(Kind::Script(interpreter)) if depth < SCRIPT_DEPTH_MAX => {
            // The kernel ignores the set-id bits of a script; those of its interpreter count.
            return cannot_preload_at_depth(Path::new(&interpreter), library, depth + 1);
        }
        Some(Kind::Elf(program)) => {
            if !program.dynamic {
                return Some(format!("{shown} is static: it runs on its own allocator"));
            }
            if let Ok(Kind::Elf(library)) = elf::inspect(library)
                && library.machine != program.machine
            {
                return Some(format!("{shown} is for another machine than {}", crate::preload::LIBRARY));
            }
        }
        _ => {}
    }
    let bit = gained_privilege(file)?;
    Some(format!(
        "{shown} is {bit}: the dynamic loader preloads nothing into it, it runs on its own allocator"
    ))
}

/// The bit that makes the program run as another user or group.
fn gained_privilege(file: &Path) -> Option<&'static str> {
    let data = file.metadata().ok()?;
    if data.mode() & SETUID != 0 && data.uid() != geteuid().as_raw() {
        return Some("setuid");
    }
    // Without the group's execute bit, setgid is not a privilege.
    let setgid = data.mode() & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE;
    (setgid && data.gid() != getegid().as_raw()).then_some("setgid")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn file(folder: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permissions");
        path
    }

    fn code(found: Result<PathBuf, Failure>) -> u8 {
        found.expect_err("not a program").code
    }

    #[test]
    fn path_is_searched_as_execvp_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        fs::create_dir_all(folder.join("b/prog")).expect("a folder");
        file(folder, "notes", "text", 0o644);
        let program = file(folder, "prog", "#!/bin/sh\n", 0o755);
        let path = OsString::from(format!("/nonexistent:{0}/b:{0}", folder.display()));
        let find = |name: &str| find(OsStr::new(name), Some(path.clone()));
        assert_eq!(find("prog").expect("found"), program);
        assert_eq!(code(find("notes")), NOT_EXECUTABLE);
        assert_eq!(code(find("nothing")), NOT_FOUND);
        assert_eq!(code(find("")), NOT_FOUND);
        assert_eq!(code(find("/nonexistent/prog")), NOT_FOUND);
        assert_eq!(code(find(folder.to_str().expect("UTF-8"))), NOT_EXECUTABLE);
    }

    #[test]
    fn without_a_path_the_standard_folders_are_searched() {
        assert!(find(OsStr::new("sh"), None).is_ok());
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let library = Path::new("/proc/self/exe");
        let script = file(folder, "script", "#!/bin/sh\n", 0o6755);
        assert_eq!(cannot_preload(&script, library), None);
        let knot = folder.join("knot");
        let knot = file(folder, "knot", &format!("#!{}\n", knot.display()), 0o755);
        assert_eq!(cannot_preload(&knot, library), None);
    }
}

//! The library that goes under a program, and the variable that puts it there.
//!
//! ld.so(8) splits LD_PRELOAD at blanks and colons and knows no escape, so a path that holds one
//! cannot be preloaded. The path must be absolute: the program's children inherit it and may stand
//! in another folder.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, RUN_FAILED};
use crate::process::own_folder;

/// The library's file name.
pub const LIBRARY: &str = "libuslab_malloc.so";
/// The variable that names another library.
pub const LIBRARY_VARIABLE: &str = "USLAB_LIB";

/// Finds the library: the one that USLAB_LIB names, else the one of the installation that this
/// program belongs to.
pub fn find() -> Result<PathBuf, Failure> {
    let places = match env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) => vec![PathBuf::from(named)],
        None => places_beside(&own_folder().unwrap_or_default()),
    };
    let Some(found) = places.iter().find(|place| place.is_file()) else {
        return Err(Failure::new(RUN_FAILED, not_found(&places)));
    };
    let path = found.canonicalize().map_err(|error| {
        Failure::new(RUN_FAILED, format_args!("cannot use the library {}: {error}", found.display()))
    })?;
    if path.as_os_str().as_bytes().iter().any(|&byte| separates(byte)) {
        let line = format!(
            "the library cannot be preloaded from {}: ld.so splits paths at blanks and colons; \
             copy it elsewhere and set {LIBRARY_VARIABLE}",
            path.display()
        );
        return Err(Failure::new(RUN_FAILED, line));
    }
    Ok(path)
}

/// Where an installation has it (bin beside lib), where Debian's package has it (in a folder of its
/// own among the architecture's libraries: several architectures may be installed, and nothing is
/// linked with it), and where a build has it (all in one folder).
fn places_beside(folder: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(above) = folder.parent() {
        let lib = above.join("lib");
        places.push(lib.join(LIBRARY));
        // Debian's name of a 64-bit architecture is Rust's, with the system's after it.
        places.push(lib.join(format!("{}-linux-gnu", env::consts::ARCH)).join("uslab").join(LIBRARY));
    }
    places.push(folder.join(LIBRARY));
    places
}

fn not_found(places: &[PathBuf]) -> String {
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    format!("cannot find {LIBRARY}; looked at {} (set {LIBRARY_VARIABLE} to its path)", looked.join(" and "))
}

/// LD_PRELOAD with the library first, and once, before what is there already.
pub fn with_library(library: &Path, existing: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().as_bytes().to_vec();
    let existing = existing.map_or(&b""[..], OsStr::as_bytes);
    for entry in existing.split(|&byte| separates(byte)) {
        if !entry.is_empty() && entry != library.as_os_str().as_bytes() {
            list.push(b':');
            list.extend_from_slice(entry);
        }
    }
    OsString::from_vec(list)
}

fn separates(byte: u8) -> bool {
    byte == b' ' || byte == b':'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let library = Path::new("/l/u.so");
        let list = |existing: &str| with_library(library, Some(OsStr::new(existing)));
        assert_eq!(with_library(library, None), "/l/u.so");
        assert_eq!(list(""), "/l/u.so");
        assert_eq!(list("/a.so /b.so"), "/l/u.so:/a.so:/b.so");
        assert_eq!(list("/a.so::/l/u.so:"), "/l/u.so:/a.so");
    }

    #[test]
    fn installations_and_a_build_are_searched() {
        let places = places_beside(Path::new("/opt/uslab/bin"));
        let multiarch = format!("/opt/uslab/lib/{}-linux-gnu/uslab/libuslab_malloc.so", env::consts::ARCH);
        let expected = ["/opt/uslab/lib/libuslab_malloc.so", &multiarch, "/opt/uslab/bin/libuslab_malloc.so"];
        assert_eq!(places, expected.map(PathBuf::from));
        assert!(expected.iter().all(|place| not_found(&places).contains(place)));
    }
}

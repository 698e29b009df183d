//! Allocators as libraries to preload: ours, and those that Debian packages.
//!
//! glibc's malloc is preloaded as well: a program may be linked with another allocator (Debian's
//! redis-server with jemalloc), and then "nothing preloaded" is not glibc.
//!
//! ld.so splits LD_PRELOAD at blanks and colons, and ignores missing files. So each library is
//! found first, and preloaded by its absolute path.
//!
//! Must never: load one of them into this process.

use std::env;
use std::path::{Path, PathBuf};

/// An allocator that programs can be started with.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Its name in tables.
    pub name: &'static str,
    file: &'static str,
    /// The Debian package.
    package: &'static str,
}

pub const USLAB: Library = Library { name: "uslab malloc", file: "libuslab_malloc.so", package: "" };

pub const GLIBC: Library = Library { name: "glibc", file: "libc.so.6", package: "libc6" };

/// The other allocators.
pub const PEERS: &[Library] = &[
    Library { name: "mimalloc v2", file: "libmimalloc.so.2", package: "libmimalloc2.0" },
    Library { name: "jemalloc", file: "libjemalloc.so.2", package: "libjemalloc2" },
    Library {
        name: "tcmalloc (gperftools)",
        file: "libtcmalloc_minimal.so.4",
        package: "libtcmalloc-minimal4",
    },
    Library { name: "TBB", file: "libtbbmalloc_proxy.so.2", package: "libtbbmalloc2" },
    GLIBC,
];

/// The variable that names another build of uslab's library.
const OURS: &str = "USLAB_LIB";

impl Library {
    /// Where it is. An error is one line that says what to do.
    pub fn find(&self) -> Result<PathBuf, String> {
        let ours = self.file == USLAB.file;
        let places = if ours { places_of_ours() } else { system_folders() };
        let found =
            places.iter().map(|place| if place.is_dir() { place.join(self.file) } else { place.clone() });
        let path = found.into_iter().find(|path| path.is_file()).ok_or_else(|| {
            if ours {
                format!("no {} beside this program or in ../lib; set {OURS} to its path", self.file)
            } else {
                format!("no {}; on Debian: apt-get install {}", self.file, self.package)
            }
        })?;
        let path = path.canonicalize().map_err(|error| format!("cannot use {}: {error}", path.display()))?;
        match path.to_str() {
            Some(text) if !text.contains([' ', ':']) => Ok(path),
            _ => Err(format!("{} cannot be preloaded: its path has a blank or a colon", path.display())),
        }
    }
}

/// The library's places in a build (one folder) and in an installation (bin beside lib).
fn places_of_ours() -> Vec<PathBuf> {
    if let Some(named) = env::var_os(OURS).filter(|value| !value.is_empty()) {
        return vec![PathBuf::from(named)];
    }
    let program = env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    vec![folder.join("../lib").join(USLAB.file), folder.join(USLAB.file)]
}

/// ld.so's folders, on Debian and on other systems.
fn system_folders() -> Vec<PathBuf> {
    let triple = format!("{}-linux-gnu", env::consts::ARCH);
    ["/usr/local/lib", "/lib", "/usr/lib"]
        .iter()
        .map(|folder| Path::new(folder).join(&triple))
        .chain(["/usr/local/lib", "/usr/lib64", "/lib64", "/usr/lib"].map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_is_found_and_what_is_absent_names_its_package() {
        assert!(GLIBC.find().unwrap().is_absolute());
        let absent = Library { name: "x", file: "libx-of-nobody.so.9", package: "libx9" };
        let why = absent.find().unwrap_err();
        assert!(why.contains("libx9") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = PEERS.iter().chain([&USLAB]).map(|library| library.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PEERS.len() + 1);
    }
}

//! Allocators as libraries to preload: ours, those that Debian packages, and those that are made of
//! the sources of the peers linked with this program (built.rs).
//!
//! glibc's malloc is preloaded as well: a program may be linked with another allocator (Debian's
//! redis-server with jemalloc), and then "nothing preloaded" is not glibc.
//!
//! ld.so splits LD_PRELOAD at blanks and colons, and ignores missing files. So each library is
//! found first, and preloaded by its absolute path.
//!
//! Must never: load one of them into this process.

use crate::built::{self, Recipe};
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
    /// How it is made, where no package has it.
    recipe: Option<&'static Recipe>,
}

pub const USLAB: Library = Library::packaged("uslab malloc", "libuslab_malloc.so", "");

/// A second build of ours, beside the first, where a variable names it.
const BESIDE: Library = Library::packaged("uslab malloc, beside", "", "");

pub const GLIBC: Library = Library::packaged("glibc", "libc.so.6", "libc6");

/// The other allocators.
pub const PEERS: &[Library] = &[
    Library::made("mimalloc v3", &built::MIMALLOC),
    Library::packaged("jemalloc", "libjemalloc.so.2", "libjemalloc2"),
    Library::packaged("gperftools", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    Library::made("snmalloc", &built::SNMALLOC),
    Library::made("rpmalloc", &built::RPMALLOC),
    Library::packaged("TBB", "libtbbmalloc_proxy.so.2", "libtbbmalloc2"),
    GLIBC,
];

/// The variables that name another build of uslab's library, and a second one.
const OURS: &str = "USLAB_LIB";
const OURS_BESIDE: &str = "USLAB_LIB_BESIDE";

/// The second build of ours, where there is one.
pub fn beside() -> Option<&'static Library> {
    named(OURS_BESIDE).map(|_| &BESIDE)
}

fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl Library {
    const fn packaged(name: &'static str, file: &'static str, package: &'static str) -> Self {
        Self { name, file, package, recipe: None }
    }

    const fn made(name: &'static str, recipe: &'static Recipe) -> Self {
        Self { name, file: "", package: "", recipe: Some(recipe) }
    }

    /// Whether it is a file of the system's, and costs no compiler's time.
    pub fn is_packaged(&self) -> bool {
        self.recipe.is_none()
    }

    /// Where it is. An error is one line that says what to do.
    pub fn find(&self) -> Result<PathBuf, String> {
        let path = self.recipe.map_or_else(|| self.installed(), Recipe::library)?;
        let path = path.canonicalize().map_err(|error| format!("cannot use {}: {error}", path.display()))?;
        match path.to_str() {
            Some(text) if !text.contains([' ', ':']) => Ok(path),
            _ => Err(format!("{} cannot be preloaded: its path has a blank or a colon", path.display())),
        }
    }

    fn installed(&self) -> Result<PathBuf, String> {
        if self.name == BESIDE.name {
            let path = named(OURS_BESIDE).filter(|path| path.is_file());
            return path.ok_or_else(|| format!("{OURS_BESIDE} names no file"));
        }
        let ours = self.name == USLAB.name;
        let places = if ours { places_of_ours() } else { system_folders() };
        let found =
            places.iter().map(|place| if place.is_dir() { place.join(self.file) } else { place.clone() });
        found.into_iter().find(|path| path.is_file()).ok_or_else(|| {
            if ours {
                format!("no {} beside this program or in ../lib; set {OURS} to its path", self.file)
            } else {
                format!("no {}; on Debian: apt-get install {}", self.file, self.package)
            }
        })
    }
}

/// The library's places in a build (one folder) and in an installation (bin beside lib).
fn places_of_ours() -> Vec<PathBuf> {
    if let Some(named) = named(OURS) {
        return vec![named];
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
        let absent = Library::packaged("x", "libx-missing.so.9", "libx9");
        let why = absent.find().unwrap_err();
        assert!(why.contains("libx9") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = PEERS.iter().chain([&USLAB, &BESIDE]).map(|library| library.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PEERS.len() + 2);
    }
}

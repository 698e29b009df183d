//! Peers to preload that Debian has not, or not lately: shared libraries made of the sources that
//! cargo has fetched for the peers linked with this program, at their first use.
//!
//! ```text
//!   Recipe ── ~/.cargo/registry/src/*/CRATE-VERSION ── cc ── peers/NAME-VERSION-HASH.so beside
//!                                                            this program
//! ```
//!
//! The flags are those of each project's own release build of its shared library, and that which
//! aligns functions as uslab's are aligned. The name has a hash of them, so that other flags make
//! another file. Where sources or a compiler are missing, the peer is left out with a line.
//!
//! Must never: fetch anything; leave half a library; compile while rows are planned.

use crate::process;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// How a library is made of a crate's sources.
#[derive(Debug)]
pub struct Recipe {
    /// The crate, and its version in Cargo.lock.
    pub source: (&'static str, &'static str),
    /// Relative to the crate's folder.
    pub files: &'static [&'static str],
    pub includes: &'static [&'static str],
    /// The compiler, and Debian's package of it.
    pub compiler: (&'static str, &'static str),
    pub flags: &'static [&'static str],
}

const SHARED: &[&str] = &[
    "-shared",
    "-fPIC",
    "-O3",
    "-DNDEBUG",
    "-ftls-model=initial-exec",
    // Functions start on cache lines, as those of uslab's library do (.cargo/config.toml).
    #[cfg(target_arch = "x86_64")]
    "-falign-functions=64",
];

pub const MIMALLOC: Recipe = Recipe {
    source: ("libmimalloc-sys", env!("USLAB_BENCH_LIBMIMALLOC_SYS")),
    files: &["c_src/mimalloc/v3/src/static.c"],
    includes: &["c_src/mimalloc/v3/include", "c_src/mimalloc/v3/src"],
    compiler: ("cc", "gcc"),
    flags: &[
        "-DMI_MALLOC_OVERRIDE",
        "-DMI_SHARED_LIB",
        "-DMI_SHARED_LIB_EXPORT",
        "-DMI_BUILD_RELEASE",
        "-DMI_DEBUG=0",
        "-fvisibility=hidden",
        "-fno-builtin-malloc",
        "-lpthread",
    ],
};

pub const SNMALLOC: Recipe = Recipe {
    source: ("snmalloc-sys", env!("USLAB_BENCH_SNMALLOC_SYS")),
    files: &["upstream/src/snmalloc/override/malloc.cc", "upstream/src/snmalloc/override/new.cc"],
    includes: &["upstream/src"],
    compiler: ("c++", "g++"),
    flags: &[
        "-std=c++20",
        #[cfg(target_arch = "x86_64")]
        "-mcx16",
        "-fomit-frame-pointer",
        "-ffunction-sections",
        "-fvisibility=hidden",
        "-DSNMALLOC_EXPORT=__attribute__((visibility(\"default\")))",
        "-DSNMALLOC_USE_CXX11_THREAD_ATEXIT_DIRECT",
        "-DSNMALLOC_USE_WAIT_ON_ADDRESS=1",
        // Of the library of C++ it has its own part, and shows none of it.
        "-static-libstdc++",
        "-Wl,--exclude-libs,ALL",
        "-lpthread",
    ],
};

pub const RPMALLOC: Recipe = Recipe {
    source: ("rpmalloc-sys", env!("USLAB_BENCH_RPMALLOC_SYS")),
    files: &["rpmalloc/rpmalloc/rpmalloc.c"],
    includes: &["rpmalloc/rpmalloc"],
    compiler: ("cc", "gcc"),
    flags: &[
        "-D_GNU_SOURCE",
        "-DENABLE_PRELOAD=1",
        "-DENABLE_OVERRIDE=1",
        "-fno-builtin-malloc",
        "-lpthread",
        "-ldl",
    ],
};

/// What was made or could not be, by crate: a failure is not repeated for every row.
static MADE: Mutex<BTreeMap<&str, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());

impl Recipe {
    /// The library, made where there is none yet. An error is one line.
    pub fn library(&self) -> Result<PathBuf, String> {
        let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        made.entry(self.source.0).or_insert_with(|| self.make(&folder(), &registries())).clone()
    }

    fn make(&self, folder: &Path, registries: &[PathBuf]) -> Result<PathBuf, String> {
        let library = folder.join(self.file_name());
        if library.is_file() {
            return Ok(library);
        }
        let (name, version) = self.source;
        let versioned = format!("{name}-{version}");
        let sources = registries.iter().map(|registry| registry.join(&versioned)).find(|path| path.is_dir());
        let sources = sources.ok_or_else(|| {
            format!("made of the crate {versioned}, which is not in ~/.cargo/registry; cargo fetch")
        })?;
        let cannot = |error| format!("cannot write to {}: {error}", folder.display());
        fs::create_dir_all(folder).map_err(cannot)?;
        let unfinished = tempfile::Builder::new().suffix(".so").tempfile_in(folder).map_err(cannot)?;
        let mut compiler = Command::new(self.compiler.0);
        compiler.args(SHARED);
        compiler.args(self.includes.iter().map(|include| format!("-I{}", sources.join(include).display())));
        compiler.args(self.files.iter().map(|file| sources.join(file)));
        compiler.arg("-o").arg(unfinished.path()).args(self.flags);
        process::run(compiler).map_err(|why| {
            format!("{versioned} does not compile: {why}; on Debian: apt-get install {}", self.compiler.1)
        })?;
        unfinished.persist(&library).map_err(|error| cannot(error.error))?;
        Ok(library)
    }

    fn file_name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (SHARED, self.files, self.includes, self.compiler, self.flags).hash(&mut hasher);
        format!("{}-{}-{:016x}.so", self.source.0, self.source.1, hasher.finish())
    }
}

/// Beside this program, which cargo's tests have one folder further down.
fn folder() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    let mut beside = program.parent().unwrap_or(Path::new("/"));
    if beside.ends_with("deps") {
        beside = beside.parent().unwrap_or(beside);
    }
    beside.join("peers")
}

/// The folders in which cargo keeps sources.
fn registries() -> Vec<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"))).unwrap_or_default();
    let folders = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    folders.map(|folder| folder.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_made_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let sources = folder.path().join("tiny-1.0");
        fs::create_dir(&sources).unwrap();
        fs::write(sources.join("tiny.c"), "int tiny(void) { return 7; }\n").unwrap();
        let recipe = Recipe {
            source: ("tiny", "1.0"),
            files: &["tiny.c"],
            includes: &[],
            compiler: ("cc", "gcc"),
            flags: &[],
        };
        let peers = folder.path().join("peers");
        let registry = [folder.path().to_owned()];
        let library = recipe.make(&peers, &registry).unwrap();
        assert!(library.is_file());
        assert_eq!(recipe.make(&peers, &[]).unwrap(), library, "no sources are needed again");
        let other = Recipe { flags: &["-g"], ..recipe };
        assert_ne!(other.file_name(), library.file_name().unwrap().to_string_lossy());
        assert!(other.make(&peers, &[]).is_err());
        assert_eq!(fs::read_dir(&peers).unwrap().count(), 1);
    }

    #[test]
    fn what_is_missing_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let why = RPMALLOC.make(folder.path(), &[]).unwrap_err();
        assert!(why.contains("rpmalloc-sys") && !why.contains('\n'), "{why}");
        let recipe = Recipe { compiler: ("no-such-compiler", "some-package"), ..RPMALLOC };
        let sources = folder.path().join(format!("rpmalloc-sys-{}", recipe.source.1));
        fs::create_dir(&sources).unwrap();
        let why = recipe.make(folder.path(), &[folder.path().to_owned()]).unwrap_err();
        assert!(why.contains("some-package") && !why.contains('\n'), "{why}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the sources");
    }
}

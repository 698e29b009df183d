//! The paths of the library and the command under test.
//!
//! By default the harness builds them, once for each test executable. An up-to-date build costs a
//! fraction of a second, and a test never uses a library older than the last edit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The files under test.
#[derive(Debug)]
pub struct Artifacts {
    /// The library to preload.
    pub library: PathBuf,
    /// The `uslab` command; without it, the harness sets `LD_PRELOAD` itself, as the command does.
    pub command: Option<PathBuf>,
    /// Whether the library is another allocator, set by `USLAB_LIB` as a control; then the harness
    /// requires no proof.
    pub control: bool,
}

/// Returns the files under test, and finds or builds them at the first call.
///
/// # Panics
/// If they do not exist and cannot be built.
pub fn artifacts() -> &'static Artifacts {
    static FOUND: OnceLock<Artifacts> = OnceLock::new();
    FOUND.get_or_init(|| {
        let library = std::env::var_os("USLAB_LIB").map(PathBuf::from);
        let command = std::env::var_os("USLAB_BIN").map(PathBuf::from);
        let found = match (library, command) {
            (Some(library), command) => Artifacts { control: !is_ours(&library), library, command },
            (None, Some(command)) => {
                Artifacts { library: beside(&command), command: Some(command), control: false }
            }
            (None, None) => build(),
        };
        for file in std::iter::once(&found.library).chain(&found.command) {
            assert!(file.is_file(), "{} is not there", file.display());
        }
        eprintln!("under test: {found:?}");
        found
    })
}

fn is_ours(library: &Path) -> bool {
    library.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libuslab"))
}

/// The library that belongs to a command: in the same directory (a build) or in `../lib` (an
/// installation).
fn beside(command: &Path) -> PathBuf {
    let dir = command.parent().unwrap_or(Path::new("."));
    let same = dir.join("libuslab_malloc.so");
    if same.is_file() { same } else { dir.join("../lib/libuslab_malloc.so") }
}

/// The target directory of the running test executable, `TARGET/debug/deps/NAME`.
fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("the path of the test executable");
    exe.ancestors().nth(3).expect("a target directory above the test executable").to_path_buf()
}

fn build() -> Artifacts {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace root");
    let target = target_dir();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Cargo sets variables of the test's package; a build started from here must not inherit them.
    let inherited =
        std::env::vars_os().map(|(k, _)| k).filter(|k| k.to_string_lossy().starts_with("CARGO_PKG_"));
    let mut build = Command::new(&cargo);
    inherited.for_each(|k| {
        build.env_remove(k);
    });
    let output = build
        .args(["build", "--release", "-p", "uslab-preload", "-p", "uslab-cli"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(root)
        .output()
        .unwrap_or_else(|e| panic!("cannot start {}: {e}", Path::new(&cargo).display()));
    assert!(
        output.status.success(),
        "cargo build --release -p uslab-preload -p uslab-cli failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let release = target.join("release");
    Artifacts {
        library: release.join("libuslab_malloc.so"),
        command: Some(release.join("uslab")),
        control: false,
    }
}

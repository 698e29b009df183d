//! A directory for each test: removed when the test passes, and printed when it fails.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{NOBODY, is_root};

/// A directory under the system's temporary directory.
///
/// The path is kept short because Unix sockets are made in it, and their addresses end at 107
/// bytes.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a new, empty directory; `name` appears in its path, for the reader of a failure.
    ///
    /// # Panics
    /// If the directory cannot be made.
    pub fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("uslab-{}-{number}-{name}", std::process::id()));
        // Process ids repeat; a directory of an earlier run with the same name is removed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
        Scratch { path }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path below the directory.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a directory below it.
    ///
    /// # Panics
    /// If that fails.
    pub fn dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
        path
    }

    /// Creates a directory below it to which no other user may write, whatever the umask: the
    /// library requires that for snapshots.
    ///
    /// # Panics
    /// If that fails.
    pub fn private_dir(&self, name: impl AsRef<Path>) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.dir(name);
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&path, private).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Makes a directory below it for an [unprivileged](super::Program::unprivileged) program.
    ///
    /// # Panics
    /// If that fails.
    pub fn unprivileged_dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.private_dir(name);
        if is_root() {
            let owner = Some(NOBODY);
            std::os::unix::fs::chown(&path, owner, owner)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        path
    }

    /// Writes a file below it and returns its path.
    ///
    /// # Panics
    /// If that fails.
    pub fn write(&self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, contents).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("USLAB_TEST_KEEP").is_some() {
            eprintln!("files kept in {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

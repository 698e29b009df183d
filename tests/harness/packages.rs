//! Finding the programs under test, and saying what to install where one is missing.

use std::path::{Path, PathBuf};

/// The file named `name` that is executable on `PATH`.
fn on_path(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let runs = |p: &Path| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|p| runs(p))
}

/// The program `name`, an absolute path.
///
/// # Panics
/// If it is not installed, with the Debian package that holds it. A missing program fails the test: a check that
/// silently did nothing would be taken for one that passed.
pub fn tool(name: &str, package: &str) -> PathBuf {
    on_path(name).unwrap_or_else(|| {
        panic!(
            "`{name}` is not installed. On Debian: apt-get install {package} \
             (all of them: xargs -a tests/programs/packages.txt apt-get install -y)"
        )
    })
}

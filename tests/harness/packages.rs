//! Finds the programs under test, and names the package of a missing one.

use std::path::{Path, PathBuf};

/// The executable file `name` on `PATH`.
fn on_path(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let runs = |p: &Path| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|p| runs(p))
}

/// The absolute path of the program `name`.
///
/// # Panics
/// If it is not installed, with the name of its Debian package. A missing program must fail the
/// test, because a skipped check would count as passed.
pub fn tool(name: &str, package: &str) -> PathBuf {
    on_path(name).unwrap_or_else(|| {
        panic!(
            "`{name}` is not installed. On Debian: apt-get install {package} \
             (all of them: xargs -a tests/programs/packages.txt apt-get install -y)"
        )
    })
}
